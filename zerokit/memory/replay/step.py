"""One rank's peaks over init, forward, backward and step: DeepSpeed's bytes laid over activations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from zerokit.domain.activations import Pass
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.memory.components import Component, Ledger
from zerokit.memory.rank_model import Overlay, RankModel
from zerokit.memory.replay.model_states import (
    ALL_REDUCE_ELEMENTS,
    Bf16OptimizerGradients,
    GradientReduction,
    Partition,
    Persistent,
    client,
    flattening_bytes,
    init_peak,
    partition,
    persistent,
    reference_bytes,
    runs_bf16_optimizer,
    step_temporary_bytes,
)
from zerokit.memory.replay.zero_3_parameters import Gradients, Parameters, gathers, settings_of_gathers
from zerokit.values import frozen_dataclass


class WholeGradients(GradientReduction):
    """ZeRO stage 0: every rank keeps the gradient of every parameter, and all are all-reduced at the end
    (``runtime/fp16/fused_optimizer.py``, 0.19.8)."""

    def end_of_backward(self, boundary: bool, first: bool) -> None:
        """``buffered_allreduce_fallback``: zeros for parameters without a gradient
        (``_get_gradients_for_reduction``), then flat copies; the last gradient overshoots the limit."""
        if not boundary:
            return
        unused = sum(self.sizes[index] for index in self.model.unused)
        self.ledger.add(Component.GRADIENTS, unused * self.element_bytes.gradient)
        elements = min(sum(self.sizes), ALL_REDUCE_ELEMENTS + max(self.sizes, default=0))
        gradient, communication = self.element_bytes.gradient, self.element_bytes.communication
        converted = communication if communication != gradient else 0  # engine.py:3801
        self.ledger.burst(Component.REDUCE_COPY, elements * (gradient + converted))

    def step(self) -> None:
        """``FP16_Optimizer.step``: every gradient in fp32, then one flat copy of them. With fp32 weights
        DeepSpeed hands the step to the optimizer itself: nothing is copied."""
        ledger, total = self.ledger, self.model.trainable_numel
        temporaries = step_temporary_bytes(self.settings, self.model.trainable_sizes, 4 * total)
        if client(self.settings) is not None:  # FP16_UnfusedOptimizer keeps both gradients for the step
            wide = 4 * total if self.element_bytes.parameter == 2 else 0
            ledger.burst(Component.OPTIMIZER_TEMPORARIES, wide + temporaries)
        elif self.element_bytes.parameter == 2:
            ledger.add(Component.FP32_GRADIENT, 4 * total)
            ledger.add(Component.FLAT_GRADIENT, 4 * total)
            ledger.set(Component.FP32_GRADIENT, 0)
            ledger.set(Component.GRADIENTS, 0)
            ledger.set(Component.FLAT_GRADIENT, 0)
        else:
            ledger.burst(Component.OPTIMIZER_TEMPORARIES, temporaries)
        ledger.set(Component.GRADIENTS, 0)


@frozen_dataclass
class MicroStep:
    """DeepSpeed's bytes over one forward and backward, and after it."""

    forward: Overlay | None  # None: nothing changes during the forward pass
    base: Overlay | None = None  # of the pass without adapters, where it gathers otherwise
    backward: Overlay  # below stage 3 one entry a gradient (``Timeline.gradients``)
    start: int
    end: int  # the most at the end of backward
    after: int  # what stays

    def at_end(self, activations: Pass) -> float:
        """Bytes with what the graph still holds when gradients are reduced for the last time: beside inputs
        of checkpointing masks and angles, and under adapters the embeddings, a leaf, with their gradient."""
        return self.end + activations.peaks[-1] - activations.in_flight


@frozen_dataclass
class RankBytes:
    """All that DeepSpeed allocates on one rank, apart from activations."""

    init_peak: int  # but for ``flattening``
    flattening: int  # see ``flattening_bytes``
    micro_steps: tuple[MicroStep, ...]  # the kinds that differ: first, middle, last
    step_peak: int
    persistent: Persistent


def gradient_reduction(
    model: RankModel, settings: DeepSpeedSettings, part: Partition, ledger: Ledger
) -> GradientReduction:
    """How gradients are reduced under these settings, below stage 3."""
    from zerokit.memory.replay.zero_1_2 import Stage1Gradients, Stage2Gradients

    if runs_bf16_optimizer(settings):
        return Bf16OptimizerGradients(model, settings, part, ledger)
    if settings.zero.stage == 0:
        return WholeGradients(model, settings, part, ledger)
    if settings.zero.stage == 1:
        return Stage1Gradients(model, settings, part, ledger)
    return Stage2Gradients(model, settings, part, ledger)


class _Replay:
    """Run one rank's micro-steps through a stage's bookkeeping and note every total.

    Under stage 3 the ledger holds all but gathered parameters, which come from :func:`gathers`: they are the
    same for every bucket size and optimizer.
    """

    def __init__(self, model: RankModel, settings: DeepSpeedSettings, ranks: int, rank: int) -> None:
        self.model = model
        self.settings = settings
        self.ledger = Ledger()
        self.part: Partition = partition(model, rank, ranks, round_robin=settings.zero.round_robin_gradients)
        self.state = persistent(model, settings, self.part, ranks)
        self.stage3: Gradients | None = None
        self.reduction: GradientReduction | None = None
        if settings.zero.stage == 3:
            self.stage3 = Gradients(model, settings, ranks, self.ledger)
            wanted = settings_of_gathers(settings)
            self.gathers = {
                first: gathers(model, wanted, ranks, recorded=first)
                for _, first in micro_step_kinds(model, settings)
            }
        else:
            self.reduction = gradient_reduction(model, settings, self.part, self.ledger)
        for name, size in self.state.components.items():
            self.ledger.set(name, size)

    def _hold_states(self, first: bool) -> None:
        """Under stage 3 optimizers make their states in the first step (``initialize_optimizer_states``,
        stage3.py:1301)."""
        if self.stage3 is not None:
            states = self.state.components.get(Component.OPTIMIZER_STATES, 0)
            self.ledger.set(Component.OPTIMIZER_STATES, 0 if first else states)

    def micro_step(self, boundary: bool, first: bool) -> MicroStep:
        """One forward and backward."""
        self._hold_states(first)
        if self.reduction is None:
            return self._micro_step_of_stage3(boundary, first)
        ledger, start = self.ledger, self.ledger.total
        backward = self.reduction.backward(boundary, first)
        ledger.mark()
        self.reduction.end_of_backward(boundary, first)
        return MicroStep(forward=None, backward=backward, start=start, end=ledger.peak, after=ledger.total)

    def _micro_step_of_stage3(self, boundary: bool, first: bool) -> MicroStep:
        stage, ledger, gathered = self.stage3, self.ledger, self.gathers[first]
        assert stage is not None
        forward = gathered.forward.raised(ledger.total)
        backward = self._backward_of_stage3(stage, gathered.backward, boundary)
        ledger.mark()
        stage.flush(boundary)
        return MicroStep(
            forward=forward,
            base=None
            if gathered.base is None
            else gathered.base.raised(forward.start - gathered.forward.start),
            backward=backward,
            start=forward.start,
            end=ledger.peak + gathered.backward.after[-1],
            after=ledger.total + gathered.after,
        )

    def _backward_of_stage3(self, stage: Gradients, gathered: Overlay, boundary: bool) -> Overlay:
        ledger = self.ledger
        start = ledger.total + gathered.start
        during: list[int] = []
        after: list[int] = []
        position = 0
        for mark, index in stage.modules.gradients:
            during += [ledger.total + size for size in gathered.during[position:mark]]
            after += [ledger.total + size for size in gathered.after[position:mark]]
            ledger.mark()
            stage.gradient_ready(index, boundary)
            during.append(ledger.peak + gathered.after[mark])
            after.append(ledger.total + gathered.after[mark])
            position = mark + 1
        during += [ledger.total + size for size in gathered.during[position:]]
        after += [ledger.total + size for size in gathered.after[position:]]
        return Overlay(start=start, during=tuple(during), after=tuple(after))

    def step(self) -> int:
        """The optimizer step; returns its peak."""
        ledger = self.ledger
        ledger.mark()
        if self.stage3 is not None:
            gathered = self.gathers[False]
            before = ledger.total + gathered.peak_of_releasing
            self.stage3.step()
            return max(before, ledger.peak, ledger.total + gathered.peak_of_regathering)
        self._step_below_stage3()
        return ledger.peak

    def _step_below_stage3(self) -> None:
        if self.reduction is not None:
            self.reduction.step()


def micro_step_kinds(model: RankModel, settings: DeepSpeedSettings) -> list[tuple[bool, bool]]:
    """(boundary, first) of the micro-steps that differ. What lies between the first and the last
    holds no more than the last; under stage 3 all are alike but for what the last may offload, and for the
    very first, which fetches nothing ahead: all of a leaf module comes in one gather then, with its copy."""
    if settings.zero.stage == 3:
        return [(True, True), (True, False)] if model.profile.leaves else [(True, False)]
    return [(True, True)] if settings.gradient_accumulation == 1 else [(False, True), (True, False)]


@lru_cache(maxsize=4096)
def rank_bytes(model: RankModel, settings: DeepSpeedSettings, ranks: int, rank: int) -> RankBytes:
    """Replay one optimizer step of one rank, in the steady state (third step on), and of leaf modules under
    stage 3 the very first."""
    replay = _Replay(model, settings, ranks, rank)
    kinds = micro_step_kinds(model, settings)
    micro_steps = tuple(replay.micro_step(boundary, first) for boundary, first in kinds)
    step_peak = replay.step()
    reference = reference_bytes(model, settings, ranks)
    return RankBytes(
        init_peak=init_peak(model, settings, replay.part, ranks) + model.profile.buffer_bytes + reference,
        flattening=flattening_bytes(model, settings),
        micro_steps=micro_steps,
        step_peak=step_peak,
        persistent=replay.state,
    )


Instant = tuple[int, int, bool]
"""Which micro-step kind, which mark of a phase, whether between it and the mark before."""


def compose(
    model: RankModel,
    settings: DeepSpeedSettings,
    ranks: int,
    rank: int,
    instants: Mapping[str, Instant | None],
) -> dict[str, dict[Component, int]]:
    """The components at one instant of each phase, by replaying up to the last of them. ``instants``:
    forward's and backward's instants; the step's is its highest, and needs none."""
    return _ReplayUntil(model, settings, ranks, rank).compositions(instants)


class _ReplayUntil(_Replay):
    """A replay that stops at one instant and reads the ledger there, gathered parameters included."""

    def __init__(self, model: RankModel, settings: DeepSpeedSettings, ranks: int, rank: int) -> None:
        super().__init__(model, settings, ranks, rank)
        self.parameters: Parameters | None = None
        if self.stage3 is not None:
            self.parameters = Parameters(model, settings, ranks, self.ledger)
            self.parameters.recording = True

    def compositions(self, instants: Mapping[str, Instant | None]) -> dict[str, dict[Component, int]]:
        """The components at the instants given, and at the highest of the step."""
        result: dict[str, dict[Component, int]] = {}
        for number, (boundary, first) in enumerate(micro_step_kinds(self.model, self.settings)):
            self._hold_states(first)
            if self.parameters is not None and not first:
                # the order of modules is known
                assert self.parameters is not None
                self.parameters.release_all()
                self.parameters = Parameters(self.model, self.settings, self.parameters.ranks, self.ledger)
                self.parameters.reach_steady_state(self.model, self.settings.gradient_accumulation > 1)
                self.parameters.gather_persistent()
            of_this_step = {phase: at for phase, at in instants.items() if at is not None and at[0] == number}
            if not of_this_step:
                self._whole(boundary, first)
                continue
            self._inside(of_this_step, result, boundary, first)
            if result.keys() == instants.keys():
                return result
        self.ledger.watching = True
        self.ledger.mark()
        if self.parameters is None or self.stage3 is None:
            self._step_below_stage3()
        else:
            self.parameters.release_all()
            self.stage3.step()
            self.parameters.gather_persistent()
        return {**result, "step": self.ledger.composition()}

    def _whole(self, boundary: bool, first: bool) -> None:
        """A micro-step without looking."""
        if self.parameters is None:
            self.micro_step(boundary, first)
            return
        self.parameters.start_of_forward()
        for phase in ("forward", "backward"):
            for kind, name in self._marks(phase):
                self._event(phase, kind, name, boundary, first)
        self._end_of_backward(boundary, first)

    def _marks(self, phase: str) -> tuple[tuple[str, str], ...]:
        trace = self.model.trace
        if phase == "forward":
            return trace.marks_forward
        return trace.marks_backward if self.parameters is not None else trace.marks_gradients

    def _inside(
        self,
        instants: Mapping[str, Instant],
        result: dict[str, dict[Component, int]],
        boundary: bool,
        first: bool,
    ) -> None:
        """A micro-step in which instants are looked at: puts what was live then into ``result``."""
        ledger = self.ledger
        if self.parameters is not None:
            self.parameters.start_of_forward()
        for phase in ("forward", "backward"):
            _, position, between = instants.get(phase, (0, -1, False))
            for index, (kind, name) in enumerate(self._marks(phase)):
                if index == position and between:
                    result[phase] = {k: v for k, v in ledger.amounts.items() if v}
                ledger.watching = index == position and not between
                if ledger.watching:
                    ledger.mark()
                self._event(phase, kind, name, boundary, first)
                if ledger.watching:
                    result[phase] = ledger.composition()
        ledger.watching = "backward" in instants and "backward" not in result
        ledger.mark()
        self._end_of_backward(boundary, first)
        if ledger.watching:
            result["backward"] = ledger.composition()
        ledger.watching = False

    def _event(self, phase: str, kind: str, name: str, boundary: bool, first: bool) -> None:
        if self.parameters is not None and phase == "forward":
            self.parameters.in_forward(kind, name)
        elif self.parameters is not None and self.stage3 is not None:
            self.parameters.in_backward(kind, name)
            if kind == "grad":
                self.stage3.gradient_ready(self.stage3.modules.by_name[name], boundary)
        elif kind == "grad" and self.reduction is not None and name in self.model.trainable_index:
            self.reduction.gradient_ready(self.model.trainable_index[name], boundary, first)

    def _end_of_backward(self, boundary: bool, first: bool) -> None:
        if self.reduction is not None:
            self.reduction.end_of_backward(boundary, first)
        if self.stage3 is not None and self.parameters is not None:
            self.stage3.flush(boundary)
            self.parameters.end_of_backward()
