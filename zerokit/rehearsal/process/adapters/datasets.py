"""Long preparations of data are cut to a sample: the longest rows decide what a step takes.

``Dataset.map`` and ``Dataset.filter`` get the longest rows of a large data set, and some of every length
beside them: a script that filters the longest out has data all the same. Data that is not prepared (a
collator tokenizes it) stays whole.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

from zerokit.rehearsal.process.context import Context

ROWS_PER_RANK = 64
"""A sample has so many rows at least, so that there is data for some steps of every rank."""
_FOR_EACH = "_zerokit_rows_for_each"


def rows_for_each(dataset: Any) -> float:
    """How many rows of the run's data one row stands for: 1, but for a sample and what is made of one."""
    rows: float = getattr(dataset, "__dict__", {}).get(_FOR_EACH, 1.0)
    return rows


def preparation(context: Context, module: ModuleType) -> None:
    """Wrap what prepares, and ``select``, which may ask for rows that a sample lacks."""
    cls = module.Dataset
    select = cls.select

    @functools.wraps(select)
    def selected(self: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        if rows_for_each(self) != 1:
            indices = _inside(indices, len(self))
        return select(self, indices, *args, **kwargs)

    cls.select = selected
    for name in ("map", "filter"):
        setattr(cls, name, _of_sample(context, getattr(cls, name)))
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(cls, name, _passing_on(cls, method))


def _passing_on(cls: type, method: Any) -> Any:
    """A data set that is made of a sample stands for as many rows."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        ratio = rows_for_each(self)
        if ratio != 1:
            for dataset in result.values() if isinstance(result, dict) else (result,):
                if isinstance(dataset, cls):
                    dataset.__dict__.setdefault(_FOR_EACH, ratio)
        return result

    return wrapped


def _of_sample(context: Context, original: Any) -> Any:
    @functools.wraps(original)
    def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        from zerokit.rehearsal.process.data_sample import chosen_rows

        machine = context.machine
        is_sample = rows_for_each(self) != 1
        rows = None if is_sample else chosen_rows(self, ROWS_PER_RANK * machine.world_size)
        if rows is None:
            return original(self, *args, **kwargs)
        machine.guesses.of_shape(
            f"preparation of {len(self):,} rows of data: the longest of them and some of every length",
            len(rows),
        )
        sample = self.select(rows)
        sample.__dict__[_FOR_EACH] = len(self) / len(rows)
        if kwargs.get("num_proc"):
            kwargs["num_proc"] = None  # a sample is prepared sooner than processes start
        return getattr(sample, original.__name__)(*args, **kwargs)

    return prepared


def _inside(indices: Any, count: int) -> Any:
    """Without the indices of rows that are not in the sample; where none is in it, rows in their place."""
    if not isinstance(indices, Iterable):
        return indices
    if not isinstance(indices, range):
        indices = list(indices)
    if not indices or max(indices) < count:
        return indices
    inside = [index for index in indices if index < count]
    return inside or sorted({index % count for index in indices})
