"""Which versions of packages are installed here, without importing them."""

from __future__ import annotations

import os
import re
import sys

from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION
from zerokit.notes import Note

DECIDING = ("torch", "transformers", "deepspeed", "accelerate", "trl", "peft", "bitsandbytes", "triton",
            "liger_kernel", "flash_attn", "apex", "transformer_engine", "mamba_ssm", "causal_conv1d",
            "xformers", "datasets")  # fmt: skip
"""Packages whose versions decide what a training script allocates, or which code it takes."""


def installed(name: str) -> str | None:
    """The version of an installed distribution, without importing it; ``None``: not installed.

    Read from the name of its ``.dist-info`` folder on ``sys.path``: ``importlib.metadata`` would take 30 ms
    to import, a tenth of what a plan takes.
    """
    pattern = re.compile(re.sub(r"[-_.]+", "[-_.]+", name) + r"-([^-]+)\.(dist|egg)-info", re.IGNORECASE)
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")  # noqa: PTH208
        except OSError:  # a zip file, or a folder that is not there
            continue
        for entry in entries:
            if match := pattern.fullmatch(entry):
                return match[1]
    return None


def keeps_recomputed(older_deepspeed: bool) -> bool:
    """Whether reentrant checkpoints keep frozen weights under ZeRO-3: DeepSpeed leaves them to another module
    from 0.19.3 on (runtime/zero/partitioned_param_coordinator.py), and Transformers before 5.23 checkpoints a
    layer's call, hooks included (modeling_layers.py, ``GradientCheckpointingLayer``).

    Args:
        older_deepspeed: what is assumed where DeepSpeed is not installed; of Transformers, the older one is.
    """
    from zerokit.catalog.profiles import is_before

    deepspeed = installed("deepspeed")
    is_older = older_deepspeed if deepspeed is None else is_before(deepspeed, "0.19.3", places=3)
    return not is_older and is_before(installed("transformers") or "", "5.23")


def deepspeed_note(trainer: str = "") -> tuple[Note, ...]:
    """A line to show when the DeepSpeed that is installed, or that a ``trainer`` asks for where none is, may
    allocate otherwise than predicted."""
    version = installed("deepspeed")
    if version == DEEPSPEED_VERSION or (version is None and not trainer):
        return ()
    runs = (
        f"{trainer} asks for an older DeepSpeed" if version is None else f"DeepSpeed {version} is installed"
    )
    text = (
        f"{runs}; what it allocates is predicted as of {DEEPSPEED_VERSION}, the version that the tables were "
        "read from (0.18.9 with offload at ZeRO-2 took 15 to 17 % more in rehearsals)"
    )
    return (Note("other-deepspeed", text),)
