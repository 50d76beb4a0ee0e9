"""What convolutions allocate, forward and backward, on a GPU and under ``zerokit rehearse``."""

from __future__ import annotations

import torch

LAYERS: list[tuple[torch.nn.Module, tuple[int, ...]]] = [
    (torch.nn.Conv1d(80, 512, 3, padding=1), (4, 80, 3000)),
    (torch.nn.Conv2d(3, 64, 7, stride=2, padding=3), (16, 3, 224, 224)),
    (torch.nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1), (8, 64, 32, 32)),
    (torch.nn.Conv3d(3, 16, 3), (2, 3, 8, 64, 64)),
    (torch.nn.Conv2d(64, 64, 3, padding=1, groups=64), (8, 64, 56, 56)),
    (torch.nn.ConvTranspose1d(16, 8, 4, stride=2), (2, 16, 100)),
]


def peak_since(level: int) -> int:
    """Bytes above a level, at the most since the last call."""
    most = torch.cuda.max_memory_allocated() - level
    torch.cuda.reset_peak_memory_stats()
    return most


for layer, shape in LAYERS:
    for dtype in (torch.float32, torch.bfloat16):
        for channels_last in (False, True) if len(shape) == 4 else (False,):
            layer = layer.cuda().to(dtype)
            images = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
            if channels_last:
                images = images.to(memory_format=torch.channels_last)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            made = layer(images)
            forward, level = peak_since(before), torch.cuda.memory_allocated()
            made.sum().backward()
            print(
                type(layer).__name__,
                dtype,
                channels_last,
                made.shape,
                "fwd",
                forward,
                "bwd",
                peak_since(level),
            )
            layer.zero_grad()
            del images, made
