"""What training forwards were given, as the rehearsed process sees it (:mod:`zerokit.rehearsal.result`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from zerokit.instrument import engine_facts
from zerokit.rehearsal.order import LENGTH_ARGUMENTS
from zerokit.rehearsal.process.twins import twin

_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


class Feed:
    """Of all batches so far: the largest.

    Attributes:
        products: elements that matrix products of training forwards wrote, by precision.
        lengths: tokens of a row in the shortest and the longest batch; None: no tokens were fed.
        limit: of a Trainer's arguments: at how many tokens it cuts a sequence, and the argument's name.
        batches: backward passes so far in this optimizer step.
    """

    def __init__(self) -> None:
        self.products: Counter[str] = Counter()
        self.lengths: tuple[int, int] | None = None
        self.limit: tuple[int, str] | None = None
        self.batches = 0
        self._most_batches = 0
        self._largest: tuple[int | None, int | None] = (None, None)
        self._seen = False
        self._masked = self._tokens = 0
        self._attention: str | None = None

    def batch(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward that trains."""
        if not self._seen:
            self._attention = _attention(module)
        self._seen = True
        rows, _ = engine_facts.batch(args, kwargs)
        named = dict(_named(args, kwargs))
        tokens = next((value for value in named.values() if _is_tokens(value)), None)
        columns = None if tokens is None else int(tokens.shape[1])
        if tokens is not None:
            rows = int(tokens.shape[0])
        before_rows, before = self._largest
        if (rows or 0) * (columns or 1) > (before_rows or 0) * (before or 1):
            self._largest = rows, columns
        if columns is not None:
            fewest, most = self.lengths or (columns, columns)
            self.lengths = min(fewest, columns), max(most, columns)
        mask = named.get("attention_mask")
        values = twin(mask) if isinstance(mask, torch.Tensor) and mask.dim() == 2 else None
        if values is not None:
            self._masked += int((values == 0).sum())
            self._tokens += values.numel()

    def product(self, output: torch.Tensor, *, is_fp8: bool) -> None:
        """A matrix product of a training forward."""
        name = "fp8" if is_fp8 else _NAMES.get(output.dtype, str(output.dtype).removeprefix("torch."))
        self.products[name] += output.numel()

    def trainer_began(self, arguments: Any) -> None:
        """A Trainer's arguments, which may say at how many tokens it cuts a sequence."""
        for name in LENGTH_ARGUMENTS:
            value = getattr(arguments, name, None)
            if isinstance(value, int) and value > 0:
                self.limit = value, f"{name} of {type(arguments).__name__}"
                return

    def step_done(self) -> None:
        """The optimizer's step ends what belongs to it."""
        self._most_batches = max(self._most_batches, self.batches)
        self.batches = 0

    def to_dict(self) -> dict[str, Any] | None:
        """Return it as a report has it; None: nothing was fed."""
        if not self._seen:
            return None
        rows, tokens = self._largest
        return {
            "rows": rows,
            "tokens": tokens,
            "shortest": self.lengths[0] if self.lengths is not None else tokens,
            "padding": round(self._masked / self._tokens, 4) if self._tokens else None,
            "precision": max(self.products, key=lambda name: self.products[name], default=None),
            "attention": self._attention,
            "batches": max(self._most_batches, self.batches),
            "limit": self.limit,
        }


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Tensors by their names, also those of a batch that is given whole; ``input_ids`` come first."""
    if "input_ids" in kwargs:
        yield "input_ids", kwargs["input_ids"]
    for number, value in enumerate(args):
        if isinstance(value, dict):
            yield from _named((), value)
        else:
            yield str(number), value
    yield from kwargs.items()


def _is_tokens(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 2 and value.dtype in (torch.int64, torch.int32)


def _attention(module: Any) -> str | None:
    for part in module.modules() if isinstance(module, torch.nn.Module) else ():
        name = getattr(getattr(part, "config", None), "_attn_implementation", None)
        if isinstance(name, str):
            return name
    return None
