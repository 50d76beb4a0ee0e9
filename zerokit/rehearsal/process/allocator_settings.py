"""Settings of PyTorch's caching allocator, as the run's environment has them."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
MIN_BLOCK_BYTES = 512  # kMinBlockSize


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """``PYTORCH_CUDA_ALLOC_CONF`` (``c10/core/AllocatorConfig.cpp``).

    Attributes:
        max_split_bytes: larger blocks are never split (``max_split_size_mb``).
        power2_divisions: requests are rounded up to so many steps between powers of two; 0: not.
        unknown: settings that are not modelled, as written.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    power2_divisions: int = 0
    unknown: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Of the variable's text; lists in brackets (``roundup_power2_divisions:[…]``) are not modelled."""
        expandable, max_split, divisions, unknown = False, None, 0, []
        for part in _split(text):
            key, _, value = part.partition(":")
            key, value = key.strip(), value.strip()
            if key == "expandable_segments":
                expandable = value == "True"
            elif key == "max_split_size_mb" and value.isdigit():
                max_split = int(value) * MIB
            elif key == "roundup_power2_divisions" and value.isdigit():
                divisions = int(value)
            elif key not in _WITHOUT_EFFECT and (key, value) != ("backend", "native"):
                unknown.append(part.strip())
        return cls(
            expandable_segments=expandable,
            max_split_bytes=max_split,
            power2_divisions=divisions,
            unknown=tuple(unknown),
        )

    def rounded(self, size: int) -> int:
        """What a request takes of a pool (``round_size``)."""
        if size < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        if self.power2_divisions > 1 and size > MIN_BLOCK_BYTES * self.power2_divisions:
            step = (1 << (size.bit_length() - 1)) // self.power2_divisions
            return -(-size // step) * step
        return -(-size // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


_WITHOUT_EFFECT = (
    "",
    "garbage_collection_threshold",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom",
    "graph_capture_record_stream_reuse",
)
"""Settings that change no figure, or only what happens at a card's limit."""


def _split(text: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    return [part for part in (*parts, current) if part.strip()]
