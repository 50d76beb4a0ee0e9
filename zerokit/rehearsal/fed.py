"""What the script's training forwards were given: a rehearsal holds for that, and says it first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zerokit.units import counted

_FAR_BELOW = 0.5
"""Of the length at which a script cuts its sequences, below which the longest row is worth a warning."""
_NO_TRAINING_DATA = 1 / 32
"""Below which the rows are hardly those of the run: what made them (a tokenizer, a template) is another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """The largest batch of a forward that trains.

    Attributes:
        rows: None: not known.
        tokens: of its rows; None: it holds no tokens. ``shortest``: of the shortest batch's rows.
        padding: share of all tokens that the attention masks leave out; None: there were no masks.
        precision: of most products of the forwards; None: there were none.
        attention: as Transformers names the implementation; None: the model is not theirs.
        batches: backward passes in an optimizer step.
        limit: tokens at which the script cuts a sequence, and what says so; None: not known.
    """

    rows: int | None
    tokens: int | None
    shortest: int | None
    padding: float | None
    precision: str | None
    attention: str | None
    batches: int
    limit: tuple[int, str] | None

    @classmethod
    def read(cls, value: dict[str, Any] | None, limit: tuple[int, str] | None) -> Fed | None:
        """Of a rehearsed process's report; ``limit``: as the script's arguments say, before its own."""
        if value is None:
            return None
        own = value.pop("limit", None)
        return cls(**value, limit=limit or (tuple(own) if own else None))

    @property
    def text(self) -> str:
        """``4 rows × 2,048 tokens a batch, 12 % padding; bf16, sdpa; 2 batches an optimizer step``."""
        shape = counted(self.rows, "row") if self.rows is not None else "a batch of unknown size"
        if self.tokens is not None:
            shape += f" × {counted(self.tokens, 'token')}"
        if self.shortest != self.tokens:
            shape += f" (the shortest: {self.shortest:,})"
        padding = (
            ""
            if self.padding is None
            else f", {self.padding:.0%} padding"
            if self.padding
            else ", no padding"
        )
        how = ", ".join(filter(None, (self.precision, self.attention)))
        step = f"{counted(self.batches, 'batch', 'batches')} an optimizer step" if self.batches else ""
        return "; ".join(filter(None, (f"{shape} a batch{padding}", how, step)))

    @property
    def is_unlikely(self) -> bool:
        """Whether the rows are so short that the run's are hardly these."""
        return self.tokens == 1 or self._share < _NO_TRAINING_DATA

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to say of rows far below the length at which the script cuts them."""
        if self._share >= _FAR_BELOW and not self.is_unlikely:
            return ()
        rows = f"the longest row that was fed has {counted(self.tokens or 0, 'token')}"
        if self.limit is not None:
            rows += f", and the script cuts rows at {self.limit[0]:,} ({self.limit[1]})"
        if self.is_unlikely:
            ends = "these are not the figures of its training: look at its tokenizer, chat template and data"
        else:
            ends = "a run with longer rows takes more memory and time"
        return (f"{rows}: {ends}",)

    @property
    def _share(self) -> float:
        """Of the longest row in the limit; 1 where one of them is not known."""
        return self.tokens / self.limit[0] if self.tokens and self.limit and self.limit[0] else 1.0
