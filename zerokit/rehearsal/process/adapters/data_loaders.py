"""Data loaders end when enough was seen, so that what stands behind their loops is reached; long preparations
of data are cut to a sample with the longest rows.

An evaluation sees its first batches. One that keeps outputs on the GPU until its end (the Trainer gathers
logits so, unless told to move them) grows with each: what the other batches would add is added at its end.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch.utils.data import dataloader

from zerokit.instrument.phases import in_place_of
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.phases import Context

MOST_ROWS = 4096
MOST_BYTES = 32 << 20
"""Rows, and bytes of their text and numbers, beyond either of which a data set is cut."""
SAMPLE_ROWS, SAMPLE_BYTES = 2048, 16 << 20
_SPREAD = 4
"""One row of so many in the sample is taken evenly from all lengths; the others are the longest."""


def chosen_rows(dataset: Any, fewest: int) -> list[int] | None:
    """The rows of a sample, in their order; None where the data set is small. ``fewest``: rows, however long
    they are."""
    count = len(dataset)
    if count <= fewest or count <= SAMPLE_ROWS // _SPREAD:
        return None
    sizes = row_bytes(dataset)
    if count <= MOST_ROWS and int(sizes.sum()) <= MOST_BYTES:
        return None
    order = np.argsort(-sizes, kind="stable")
    sample_size = min(count, max(SAMPLE_ROWS, fewest))
    chosen = _sample(order, sample_size)
    while int(sizes[chosen].sum()) > SAMPLE_BYTES and sample_size > fewest:
        sample_size = max(fewest, sample_size // 2)
        chosen = _sample(order, sample_size)
    return sorted(int(row) for row in chosen) if sample_size < count else None


def _sample(order: Any, sample_size: int) -> Any:
    longest = sample_size - sample_size // _SPREAD
    rest = order[longest:]
    spread = np.linspace(0, len(rest) - 1, sample_size - longest, dtype=np.int64)
    return np.concatenate([order[:longest], rest[np.unique(spread)]])


def row_bytes(dataset: Any) -> Any:
    """Bytes of each row's text, read from its offsets alone; a number counts as one, so that tokens are as
    much as their text."""
    table = dataset.data.table
    parts = [
        sum((element_bytes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))
        for batch in table.to_batches()
    ]
    sizes = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if dataset._indices is not None:
        sizes = sizes[np.asarray(dataset._indices.column(0))]
    return sizes


def element_bytes(values: Any) -> Any:
    """Bytes of each element, whatever is nested in it; of a kind that is not known one."""
    kind, types = values.type, pa.types
    if isinstance(values, pa.ExtensionArray):
        return element_bytes(values.storage)
    if types.is_run_end_encoded(kind):
        return element_bytes(pc.run_end_decode(values))
    if types.is_dictionary(kind):
        of_entry = np.append(element_bytes(values.dictionary), 0)  # the last: of a null
        return of_entry[np.asarray(pc.fill_null(values.indices, len(of_entry) - 1)).astype(np.int64)]
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return element_bytes(
            values.cast(pa.large_string() if types.is_string_view(kind) else pa.large_binary())
        )
    if _is_text(kind):
        return np.asarray(pc.fill_null(pc.binary_length(values), 0)).astype(np.int64)
    if types.is_fixed_size_list(kind):
        first = values.offset * kind.list_size  # .values is that of the whole array
        inside = element_bytes(values.values[first : first + len(values) * kind.list_size])
        return inside.reshape(len(values), kind.list_size).sum(axis=1) * np.asarray(values.is_valid())
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        until = _bytes_until(values.values)
        starts = np.asarray(values.offsets)
        return until[starts + np.asarray(values.sizes)] - until[starts]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        until, offsets = _bytes_until(values.values), np.asarray(values.offsets)
        return until[offsets[1:]] - until[offsets[:-1]]
    if types.is_struct(kind):
        return sum((element_bytes(part) for part in values.flatten()), np.zeros(len(values), np.int64))
    return np.ones(len(values), np.int64)


def _bytes_until(values: Any) -> Any:
    """Bytes of the elements before each; one more than there are elements."""
    return np.concatenate([[0], np.cumsum(element_bytes(values))])


def _is_text(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)
        or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )  # fmt: skip


ROWS_PER_RANK = 64
"""A sample has so many rows at least, so that there is data for some steps of every rank."""
_FOR_EACH = "_zerokit_rows_for_each"


def rows_for_each(dataset: Any) -> float:
    """How many rows of the run's data one row stands for: 1, but for a sample and what is made of one."""
    rows: float = getattr(dataset, "__dict__", {}).get(_FOR_EACH, 1.0)
    return rows


def preparation(context: Context, module: ModuleType) -> None:
    """Wrap what prepares, and ``select``, which may ask for rows that a sample lacks.

    Long preparations of data are cut to a sample: the longest rows decide what a step takes.

    ``Dataset.map`` and ``Dataset.filter`` get the longest rows of a large data set, and some of every length
    beside them: a script that filters the longest out has data all the same. Data that is not prepared (a
    collator tokenizes it) stays whole.
    """
    cls = module.Dataset
    select = cls.select

    @in_place_of(cls, "select")
    def selected(self: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        if rows_for_each(self) != 1:
            indices = _inside(indices, len(self))
        return select(self, indices, *args, **kwargs)

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


def prepared_data(context: Context, module: ModuleType) -> None:
    """Note where the GPU took part in data that is written: another rehearsal that finds it would not see
    what that took."""
    cls, machine = module.ArrowWriter, context.machine
    begin, end = cls.__init__, cls.finalize

    @in_place_of(cls, "__init__")
    def begins(self: Any, *args: Any, **kwargs: Any) -> None:
        self._zerokit_began = machine.ledger.clock
        begin(self, *args, **kwargs)

    @in_place_of(cls, "finalize")
    def ends(self: Any, *args: Any, **kwargs: Any) -> Any:
        # a product before: what is written may be made of it (DPO's reference, precomputed)
        is_used = self._zerokit_began != machine.ledger.clock or machine.workspaces.in_use
        machine.data_of_gpu = machine.data_of_gpu or is_used
        return end(self, *args, **kwargs)


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


EVALUATION_BATCHES = 8
"""An evaluation loop sees so many batches."""
_GROWING_BATCHES = 4
"""Of these, the last ones must each add to what is kept."""
_LEAST_GROWTH_BYTES = 1 << 14


class _Evaluation:
    """One iterator's batches in an evaluation."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._levels: list[int] = []
        self._peaks: list[int] = []
        self._held: Any = None
        self.given = 0

    def next_batch(self, batches: int) -> None:
        """Another one is asked for, of so many in the whole evaluation."""
        ledger = self._machine.ledger
        self.given += 1
        self._levels.append(ledger.allocated_bytes)
        peak = ledger.peaks.get("eval")
        self._peaks.append(peak.allocated_bytes if peak is not None else 0)
        if self._held is not None:
            self.release()
        elif self.given == EVALUATION_BATCHES:
            self._hold_rest(batches)

    def release(self) -> None:
        """The other batches' outputs are gone with those that were seen."""
        if self._held is not None:
            self._machine.ledger.release(self._held)
            self._held = None

    def _hold_rest(self, batches: int) -> None:
        """During the last batch: what the others would add, where each of the last ones seen added some."""
        kept_batches = self._machine.kept_evaluation_batches
        by_batch = _growth(self._levels)
        if by_batch is None:
            return
        # Accelerate asks for the next batch before the loop has seen the last one
        is_ahead = self._levels[1] - self._levels[0] < by_batch // 2
        batches_seen = EVALUATION_BATCHES - is_ahead
        rest = (batches if kept_batches is None else min(batches, kept_batches)) - batches_seen
        if rest <= 0:
            return
        to_peak = max(by_batch, _growth(self._peaks) or 0)
        self._held = self._machine.ledger.hold(rest * to_peak, "outputs of an evaluation")
        self._machine.warn(
            f"the evaluation keeps {by_batch / 2**20:.1f} MiB of each batch on the GPU: its peak is reckoned "
            f"for all {rest + batches_seen} batches from the first {batches_seen}"
        )


def _growth(sizes: list[int]) -> int | None:
    """The mean of the last steps; None where one of them adds nothing."""
    last = sizes[-_GROWING_BATCHES - 1 :]
    steps = [later - before for before, later in itertools.pairwise(last)]
    if len(steps) < _GROWING_BATCHES or min(steps) < _LEAST_GROWTH_BYTES:
        return None
    return sum(steps) // len(steps)


def ending(context: Context, *, whole_evaluations: bool = False) -> None:
    """An iterator gives one batch more at most when enough was seen, and in an evaluation
    :data:`EVALUATION_BATCHES`, unless evaluations are to be whole."""
    cls = dataloader._BaseDataLoaderIter
    original = cls.__next__
    machine, phases = context.machine, context.phases

    def in_evaluation(iterator: Any) -> None:
        evaluation = iterator.__dict__.get("_zerokit_evaluation")
        if evaluation is None:
            evaluation = iterator.__dict__["_zerokit_evaluation"] = _Evaluation(machine)
            # a loop may break off before it asks for another batch
            weakref.finalize(iterator, evaluation.release).atexit = False
        evaluation.next_batch(_batches(iterator))
        if evaluation.given > EVALUATION_BATCHES:
            machine.stub(f"evaluation batches after the first {EVALUATION_BATCHES}")
            raise StopIteration

    @in_place_of(cls, "__next__")
    def following(self: Any) -> Any:
        if phases.phase == "eval":
            if not whole_evaluations:
                in_evaluation(self)
        elif phases.enough:
            # a script's own evaluation: its model is called after the batch came, and no step is taken
            steps = self.__dict__.setdefault("_zerokit_steps_then", phases.steps)
            late = self.__dict__["_zerokit_late"] = self.__dict__.get("_zerokit_late", 0) + 1
            if phases.evaluates and phases.steps == steps:
                in_evaluation(self)
            elif late > 1:
                raise StopIteration
        return original(self)

    reset = cls._reset

    @in_place_of(cls, "_reset")
    def again(self: Any, *args: Any, **kwargs: Any) -> Any:
        """With persistent workers one iterator serves every evaluation."""
        for name in ("_zerokit_evaluation", "_zerokit_late", "_zerokit_steps_then"):
            self.__dict__.pop(name, None)
        return reset(self, *args, **kwargs)


def _batches(iterator: Any) -> int:
    """Batches of the whole data set, where a sample stands for it; 0 where nobody knows."""
    try:
        batches = len(iterator._index_sampler)
    except (TypeError, AttributeError):
        return 0
    return math.ceil(batches * rows_for_each(iterator._dataset))
