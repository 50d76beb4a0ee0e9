"""The parts of a run, by which memory is predicted, measured and reported: one row each.

How a run comes into a phase: :mod:`zerokit.instrument.phases`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Phase(NamedTuple):
    """One part of a run, and what the rooms say of it.

    Attributes:
        holds: what memory is, in a rehearsal's words, that was allocated in it.
        replay: the phase of a strategy's replay that holds the same states.
        older: where a report of the first schema has it.
        is_training: whether a training step consists of it: what happens in it happens in a step.
        is_estimated: whether an estimate of one given strategy, without a script, has it.
        is_before_training: whether no step is under way yet.
        does: what a rank does in it that meets the others in collectives, with its past (``evaluates``,
            ``evaluated``); empty: training, or nothing that others wait for.
        event: what a call of it is named among a rank's events; empty: its calls are no events.
        colours: of its stretches in charts (CSS, in light and in dark), its events' after them.
        lowers: what lowers a peak in it.
    """

    name: str
    holds: str
    replay: str
    older: str = ""
    is_training: bool = False
    is_estimated: bool = False
    is_before_training: bool = False
    does: tuple[str, str] | tuple[()] = ()
    event: str = ""
    colours: tuple[str, ...] = ()
    lowers: str = ""


ALL = (
    Phase(
        "load", holds="model", replay="init", older="init", is_before_training=True,
        colours=("#8c959f33", "#8c959f4d"),
        lowers="loading the weights in 16 bits, or straight to where they stay",
    ),
    Phase(
        "init", holds="engine and its buffers", replay="init", is_estimated=True, is_before_training=True,
        colours=("#bf870033", "#bf870059"),
        lowers="loading the model in the precision that it trains in, of which the engine makes no second "
        "copy",
    ),
    Phase("forward", holds="activations", replay="forward", is_training=True, is_estimated=True),
    Phase("backward", holds="gradients", replay="backward", is_training=True, is_estimated=True),
    Phase("step", holds="optimizer states", replay="step", is_training=True, is_estimated=True),
    Phase(
        "eval", holds="no-gradient forward", replay="forward", older="other", does=("evaluates", "evaluated"),
        event="evaluation", colours=("#1a7f3733", "#1a7f3780", "#1a7f37", "#3fb950"),
        lowers="a smaller batch in forwards without gradients (evaluation, or a reference model), or outputs "
        "of an evaluation moved to the host (`eval_accumulation_steps`)",
    ),
    Phase(
        "generate", holds="generation", replay="forward", older="other", does=("generates", "generated"),
        event="generation", colours=("#1b7c8333", "#1b7c8380", "#1b7c83", "#39c5cf"),
        lowers="fewer or shorter sequences generated at a time",
    ),
    Phase(
        "save", holds="saving", replay="step", older="other",
        event="save", colours=("#8250df33", "#8250df66", "#8250df", "#ab7df8"),
        lowers="saving without gathering the weights on the GPU",
    ),
    Phase(
        "other", holds="other", replay="step",
        lowers="what the script holds outside of training and evaluation",
    ),
)  # fmt: skip
"""Of a whole run, in their order: ``load`` until an engine begins, ``init`` inside it, the three of a
training step, ``eval`` without gradients, ``generate``, ``save``, and ``other``: what none of these is."""

BY_NAME: Mapping[str, Phase] = MappingProxyType({phase.name: phase for phase in ALL})
PHASES = tuple(BY_NAME)
ESTIMATED_PHASES = tuple(phase.name for phase in ALL if phase.is_estimated)
TRAINING_PHASES = tuple(phase.name for phase in ALL if phase.is_training)
BEFORE_TRAINING = tuple(phase.name for phase in ALL if phase.is_before_training)
WITHOUT_TRAINING: Mapping[str, tuple[str, str]] = MappingProxyType({
    phase.name: phase.does for phase in ALL if phase.does
})  # fmt: skip
"""What ranks do in them beside training, as ``evaluates`` and ``evaluated``."""
