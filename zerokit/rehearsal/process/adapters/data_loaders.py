"""Data loaders end when enough was seen, so that what stands behind their loops is reached.

An evaluation sees its first batches. One that keeps outputs on the GPU until its end (the Trainer gathers
logits so, unless told to move them) grows with each: what the other batches would add is added at its end.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from typing import Any

from torch.utils.data import dataloader

from zerokit.rehearsal.process.adapters.datasets import rows_for_each
from zerokit.rehearsal.process.context import Context
from zerokit.rehearsal.process.machine import Machine

EVALUATION_BATCHES = 8
"""An evaluation loop sees so many batches."""
_GROWING_BATCHES = 4
"""Of these, the last ones must each add to what is kept."""
_LEAST_GROWTH_BYTES = 1 << 14


class _Evaluation:
    """One iterator's batches in an evaluation.

    Attributes:
        given: batches so far.
    """

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

    @functools.wraps(original)
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

    cls.__next__ = following
    reset = cls._reset

    @functools.wraps(reset)
    def again(self: Any, *args: Any, **kwargs: Any) -> Any:
        """With persistent workers one iterator serves every evaluation."""
        self.__dict__.pop("_zerokit_evaluation", None)
        self.__dict__.pop("_zerokit_late", None)
        self.__dict__.pop("_zerokit_steps_then", None)
        return reset(self, *args, **kwargs)

    cls._reset = again


def _batches(iterator: Any) -> int:
    """Of the whole data set, where a sample stands for it; 0 where nobody knows."""
    try:
        batches = len(iterator._index_sampler)
    except (TypeError, AttributeError):
        return 0
    return math.ceil(batches * rows_for_each(iterator._dataset))
