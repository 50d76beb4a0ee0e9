"""``torch.compile`` in its three forms, where Triton cannot be imported."""

import sys

sys.modules["triton"] = None

import torch  # noqa: E402


@torch.compile
def never_called(x):
    raise AssertionError


@torch.compile(dynamic=False)
def double(x):
    return x * 2


layer = torch.nn.Linear(8, 8).cuda()
layer.compile()
whole = torch.compile(torch.nn.Linear(8, 8).cuda())
double(whole(layer(torch.ones(4, 8, device="cuda")))).sum().backward()
