"""What takes the time of an optimizer step: the key of each part in JSON, and its name for people."""

from __future__ import annotations

_LABELS = {
    "compute": "compute",
    "launch": "kernel launches",
    "link": "link",
    "network": "network",
    "pcie": "PCIe",
    "host": "optimizer on the CPU",
    "nvme": "NVMe",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer on the GPU",
    "retries": "allocator retries",
}
BOUNDS = {
    "compute": "the GPUs' compute",
    "launch": "the host, which launches kernels more slowly than the GPU runs them",
    "link": "the link between the GPUs of a node",
    "network": "the network between nodes",
    "pcie": "PCIe, over which offloaded data travels",
    "host": "the optimizer on the CPU",
    "nvme": "the NVMe disk",
    "bubble": "the pipeline's filling and draining",
    "optimizer": "the optimizer on the GPU",
    "retries": "the allocator, which gives memory back and maps it again",
}
"""What a step is bound by where the part takes most of it, in words."""


def label(part: str) -> str:
    """The part's name for people; a key that this version does not know, as it is."""
    return _LABELS.get(part, part)
