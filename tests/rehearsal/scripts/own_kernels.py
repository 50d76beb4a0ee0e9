"""Kernels of the script's own, tuned and plain; "--none" leaves their launches out."""

import sys

import torch
import triton
import triton.language as tl
from torch._inductor import compile_fx  # noqa: F401  (asks for Triton when it is imported)
from transformers.utils import is_triton_available
from triton.language.extra import libdevice


@triton.autotune([triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128})], key=["size"])
@triton.heuristics({"EVEN": lambda arguments: arguments["size"] % 2 == 0})
@triton.jit
def tuned(source, target, size, BLOCK: tl.constexpr, EVEN: tl.constexpr = True):  # noqa: N803
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offsets, libdevice.rsqrt(tl.load(source + offsets, mask=offsets < size)))


@triton.jit(do_not_specialize=["size"])
def plain(target, size, kind: tl.constexpr = tl.float32):
    tl.store(target, size)


assert is_triton_available()
for number in (1, 2, 3, 5, 1000, 4096, 2**31 + 1):
    assert triton.next_power_of_2(number) == 1 << (number - 1).bit_length()
    assert triton.cdiv(tl.constexpr(number), 7) == -(-number // 7)

weight = torch.ones(1_000_000, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(4):
    target = torch.empty(triton.next_power_of_2(weight.numel()), device="cuda")
    if "--none" not in sys.argv:
        tuned[lambda meta: (triton.cdiv(1_000_000, meta["BLOCK"]),)](weight.detach(), target, 1_000_000)
        plain[(1,)](target, size=3)
    (weight.sum() + target.sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
