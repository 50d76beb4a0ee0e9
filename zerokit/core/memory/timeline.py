"""One rank's peaks over init, forward, backward and step: DeepSpeed's bytes laid over activations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from zerokit.core.memory.ledger import Ledger
from zerokit.core.memory.plan import Layout, Overlay
from zerokit.core.memory.stage3 import Stage3
from zerokit.core.memory.stage12 import Partition, Stage12, partition, stage0_step
from zerokit.core.memory.states import Persistent, init_peak, persistent
from zerokit.core.settings import DeepSpeedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep:
    """DeepSpeed's bytes over one forward and backward, and after it."""

    forward: Overlay | None  # None: nothing changes during the forward pass
    backward: Overlay  # below stage 3 one entry a gradient (``Timeline.gradients``)
    start: int
    end: int  # the most at the end of backward, activations gone
    after: int  # what stays


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBytes:
    """All that DeepSpeed allocates on one rank, apart from activations."""

    init_peak: int
    micro_steps: tuple[MicroStep, ...]  # the kinds that differ: first, middle, last
    step_peak: int
    persistent: Persistent


class _Replay:
    """Run one rank's micro-steps through a stage's bookkeeping and note every total."""

    def __init__(self, layout: Layout, settings: DeepSpeedSettings, ranks: int, rank: int) -> None:
        self.layout = layout
        self.settings = settings
        self.ledger = Ledger()
        self.part: Partition = partition(layout, rank, ranks, round_robin=settings.zero.round_robin_gradients)
        self.state = persistent(layout, settings, self.part, ranks)
        self.stage3: Stage3 | None = None
        self.stage12: Stage12 | None = None
        if settings.zero.stage == 3:
            self.stage3 = Stage3(layout, settings, ranks, self.ledger)
        else:
            self.stage12 = Stage12(layout, settings, self.part, self.ledger)
        for name, size in self.state.components.items():
            self.ledger.set(name, size)
        if self.stage3 is not None:
            self.stage3.gather_persistent()
        trace = layout.trace
        self.backward_marks = trace.marks_backward if self.stage3 is not None else trace.marks_gradients

    def micro_step(self, boundary: bool, first: bool) -> MicroStep:
        """One forward and backward."""
        start = self.ledger.total
        forward = self._forward() if self.stage3 is not None else None
        backward = self._backward(boundary, first)
        self.ledger.mark()
        stage = self.stage3 or self.stage12
        assert stage is not None
        stage.end_of_backward(boundary, first)
        return MicroStep(
            forward=forward, backward=backward, start=start, end=self.ledger.peak, after=self.ledger.total
        )

    def _forward(self) -> Overlay:
        ledger, stage = self.ledger, self.stage3
        marks = self.layout.trace.marks_forward
        assert stage is not None
        stage.start_of_forward()
        start = ledger.total
        during, after = [], []
        for kind, name in marks:
            ledger.mark()
            if kind == "fwd_pre":
                stage.fetch(name, recomputing=False)
            elif kind == "fwd_post":
                stage.release(name, backward=False)
            during.append(ledger.peak)
            after.append(ledger.total)
        return Overlay(start=start, during=tuple(during), after=tuple(after))

    def _backward(self, boundary: bool, first: bool) -> Overlay:
        ledger = self.ledger
        start = ledger.total
        during, after = [], []
        for kind, name in self.backward_marks:
            ledger.mark()
            if kind == "grad":
                self._gradient(name, boundary, first)
            elif self.stage3 is not None:
                self._module(kind, name)
            during.append(ledger.peak)
            after.append(ledger.total)
        return Overlay(start=start, during=tuple(during), after=tuple(after))

    def _gradient(self, name: str, boundary: bool, first: bool) -> None:
        if self.stage3 is not None:
            self.stage3.gradient_ready(self.stage3.modules.by_name[name], boundary, first)
        elif self.stage12 is not None and name in self.layout.trainable_index:
            self.stage12.gradient_ready(self.layout.trainable_index[name], boundary, first)

    def _module(self, kind: str, name: str) -> None:
        stage = self.stage3
        assert stage is not None
        if kind == "bwd_pre":
            stage.before_backward(name)
        elif kind == "bwd_post":
            stage.release(name, backward=True)
        elif kind == "fwd_pre":
            stage.fetch(name, recomputing=True)
        elif kind == "fwd_post":
            stage.release(name, backward=False)

    def step(self) -> int:
        """The optimizer step; returns its peak."""
        self.ledger.mark()
        if self.stage3 is not None:
            self.stage3.step()
        elif self.settings.zero.stage == 0:
            stage0_step(self.layout, self.settings, self.ledger)
        elif self.stage12 is not None:
            self.stage12.step()
        return self.ledger.peak


def micro_step_kinds(settings: DeepSpeedSettings) -> list[tuple[bool, bool]]:
    """(boundary, first) of the micro-steps that differ. What lies between the first and the last
    holds no more than the last; under stage 3 all are alike but for what the last may offload."""
    if settings.gradient_accumulation == 1 or settings.zero.stage == 3:
        return [(True, True)]
    return [(False, True), (True, False)]


@lru_cache(maxsize=4096)
def rank_bytes(layout: Layout, settings: DeepSpeedSettings, ranks: int, rank: int) -> RankBytes:
    """Replay one optimizer step of one rank, in the steady state (third step on)."""
    replay = _Replay(layout, settings, ranks, rank)
    kinds = micro_step_kinds(settings)
    micro_steps = tuple(replay.micro_step(boundary, first) for boundary, first in kinds)
    step_peak = replay.step()
    return RankBytes(
        init_peak=init_peak(layout, settings, replay.part, ranks) + layout.profile.buffer_bytes,
        micro_steps=micro_steps,
        step_peak=step_peak,
        persistent=replay.state,
    )


def compose(
    layout: Layout,
    settings: DeepSpeedSettings,
    ranks: int,
    rank: int,
    phase: str,
    activation_at: tuple[int, int, bool] | None,
) -> dict[str, int]:
    """The components at the instant of a peak, by replaying up to it.

    ``activation_at`` is (which micro-step kind, which mark, whether between the marks).
    """
    replay = _Replay(layout, settings, ranks, rank)
    kinds = micro_step_kinds(settings)
    watcher = _Watch(replay, phase, activation_at)
    return watcher.run(kinds)


class _Watch:
    """Stops a replay at one instant and reads the ledger there."""

    def __init__(self, replay: _Replay, phase: str, at: tuple[int, int, bool] | None) -> None:
        self.replay = replay
        self.phase = phase
        self.at = at

    def run(self, kinds: list[tuple[bool, bool]]) -> dict[str, int]:
        ledger = self.replay.ledger
        for number, (boundary, first) in enumerate(kinds):
            if self.at is not None and self.at[0] == number:
                found = self._inside(boundary, first)
                if found is not None:
                    return found
            self.replay.micro_step(boundary, first)
        ledger.watching = True
        self.replay.step()
        return ledger.composition()

    def _inside(self, boundary: bool, first: bool) -> dict[str, int] | None:
        assert self.at is not None
        replay, ledger = self.replay, self.replay.ledger
        _, position, between = self.at
        if self.phase == "forward":
            marks = replay.layout.trace.marks_forward
            if replay.stage3 is not None:
                replay.stage3.start_of_forward()
        else:
            if replay.stage3 is not None:
                replay._forward()
            marks = replay.backward_marks
        for index, (kind, name) in enumerate(marks):
            if index == position and between:
                return {k: v for k, v in ledger.amounts.items() if v}
            ledger.watching = index == position
            ledger.mark()
            self._event(kind, name, boundary, first)
            if index == position:
                return ledger.composition()
        ledger.watching = True
        ledger.mark()
        stage = replay.stage3 or replay.stage12
        assert stage is not None
        stage.end_of_backward(boundary, first)
        return ledger.composition()

    def _event(self, kind: str, name: str, boundary: bool, first: bool) -> None:
        replay = self.replay
        if self.phase == "forward":
            if replay.stage3 is not None and kind == "fwd_pre":
                replay.stage3.fetch(name, recomputing=False)
            elif replay.stage3 is not None and kind == "fwd_post":
                replay.stage3.release(name, backward=False)
        elif kind == "grad":
            replay._gradient(name, boundary, first)
        elif replay.stage3 is not None:
            replay._module(kind, name)
