"""PyTorch's own factory functions, kept before a library replaces them (``deepspeed.zero.Init`` does)."""

from __future__ import annotations

import torch

arange = torch.arange
empty = torch.empty
empty_strided = torch.empty_strided
full = torch.full
zeros = torch.zeros
