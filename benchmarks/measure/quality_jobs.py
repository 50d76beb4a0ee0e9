"""The jobs whose strategies are compared, and the strategies that people would write by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A job and the cards it is planned for.

    Attributes:
        cards: GB, the smaller first.
        by_hand: strategies as options of ``zerokit plan``.
        batch_per_gpu: of the global batch. Sequences.
        options: of ``zerokit plan``, beyond the usual.
    """

    name: str
    model: str
    by_hand: tuple[Mapping[str, object], ...]
    cards: tuple[int, int] = (0, 0)
    gpus: int = 0
    seq_len: int = 2048
    batch_per_gpu: int = 8
    options: Mapping[str, object] = field(default_factory=dict)


def _hand(zero: int, micro: int, checkpointing: str = "none", **more: object) -> dict[str, object]:
    return {"zero": zero, "micro-batch": micro, "checkpointing": checkpointing, **more}


_ON_HOST = {"offload-optimizer": "cpu"}


JOBS: tuple[tuple[Comparison, Mapping[int, tuple[int, int]]], ...] = (
    (
        Comparison(
            name="1b-full",
            model="llama-3.2-1b",
            batch_per_gpu=16,
            by_hand=(
                _hand(1, 1), _hand(1, 4), _hand(2, 2), _hand(2, 4), _hand(3, 1), _hand(3, 4),
                _hand(0, 4, "full"), _hand(1, 8, "full"), _hand(2, 8, "full"), _hand(3, 8, "full"),
                _hand(1, 4, tp=2),
            ),
        ),
        {2: (24, 48), 8: (16, 40)},
    ),
    (
        Comparison(
            name="8b-lora",
            model="llama-3.1-8b",
            options={"method": "lora", "lora-rank": 16},
            by_hand=(
                _hand(0, 1), _hand(1, 2), _hand(2, 2), _hand(3, 2, "full"), _hand(0, 4, "full"),
                _hand(1, 8, "full"), _hand(2, 4, "full"), _hand(3, 4, "full"), _hand(3, 8, "full"),
            ),
        ),
        {2: (24, 48), 8: (24, 48)},
    ),
    (
        Comparison(
            name="8b-full",
            model="llama-3.1-8b",
            by_hand=(
                _hand(1, 1), _hand(2, 1), _hand(3, 1), _hand(3, 2), _hand(1, 4, "full"), _hand(2, 2, "full"),
                _hand(3, 2, "full"), _hand(3, 4, "full"), _hand(3, 8, "full"), _hand(1, 2, "full", tp=2),
            ),
        ),
        {2: (80, 141), 8: (48, 80)},
    ),
    (
        Comparison(
            name="13b-full",
            model="llama-2-13b",
            by_hand=(
                _hand(2, 1), _hand(2, 1, "full"), _hand(3, 1), _hand(3, 1, "full"), _hand(3, 2, "full"),
                _hand(3, 4, "full"), _hand(3, 8, "full"), _hand(3, 2), _hand(1, 1, "full", tp=2),
                _hand(1, 2, "full", tp=2), _hand(1, 4, "full", tp=2), _hand(1, 8, "full", tp=2),
                _hand(2, 4, "full", **_ON_HOST), _hand(3, 8, "full", **_ON_HOST),
            ),
        ),
        {2: (120, 141), 8: (48, 80)},
    ),
    # Other models and lengths, planned and run once the time model had been corrected after those above.
    (
        Comparison(
            name="1.5b-full",
            model="qwen2.5-1.5b",
            seq_len=4096,
            by_hand=(
                _hand(0, 1), _hand(1, 1), _hand(1, 2), _hand(2, 1), _hand(3, 1), _hand(3, 2, "full"),
                _hand(0, 2, "full"), _hand(1, 1, "full"), _hand(1, 4, "full"), _hand(2, 2, "full"),
                _hand(1, 2, "full", tp=2), _hand(2, 2, "full", **_ON_HOST),
            ),
        ),
        {2: (24, 40)},
    ),
    (
        Comparison(
            name="8b-lora-1k",
            model="qwen3-8b",
            seq_len=1024,
            batch_per_gpu=16,
            options={"method": "lora", "lora-rank": 16},
            by_hand=(
                _hand(0, 1), _hand(0, 2), _hand(1, 1), _hand(2, 2), _hand(0, 2, "full"), _hand(0, 4, "full"),
                _hand(1, 4, "full"), _hand(2, 4, "full"), _hand(3, 4, "full"), _hand(3, 8, "full"),
                _hand(3, 2),
            ),
        ),
        {2: (24, 40)},
    ),
    (
        Comparison(
            name="14b-lora",
            model="qwen2.5-14b",
            options={"method": "lora", "lora-rank": 16},
            by_hand=(
                _hand(0, 1), _hand(1, 1), _hand(0, 2), _hand(2, 1), _hand(0, 1, "full"), _hand(0, 2, "full"),
                _hand(1, 2, "full"), _hand(0, 4, "full"), _hand(1, 8, "full"), _hand(2, 4, "full"),
                _hand(3, 4, "full"), _hand(3, 8, "full"), _hand(3, 2),
            ),
        ),
        {2: (40, 80)},
    ),
    (
        Comparison(
            name="7b-full",
            model="mistral-7b-v0.3",
            seq_len=4096,
            by_hand=(
                _hand(1, 1), _hand(1, 2), _hand(2, 1), _hand(2, 2), _hand(3, 1), _hand(3, 2),
                _hand(1, 2, "full"), _hand(2, 4, "full"), _hand(3, 2, "full"), _hand(3, 4, "full"),
                _hand(1, 4, "full", tp=2), _hand(2, 2, "full", **_ON_HOST),
            ),
        ),
        {2: (80, 141)},
    ),
)  # fmt: skip
"""Jobs, and for hosts of so many GPUs the cards that make them interesting there. GB."""


COMPARISONS = tuple(
    replace(job, name=f"{job.name}.w{gpus}", gpus=gpus, cards=cards)
    for job, hosts in JOBS
    for gpus, cards in hosts.items()
)
