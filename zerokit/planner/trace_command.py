"""The command that traces a model for the job that was asked for, in the notes that name it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zerokit.commands import command_text
from zerokit.domain.strategy import Strategy

WITH_THESE_OPTIONS = "`zerokit estimate` with these options"
"""In a note that is written before the strategy is chosen."""
_TO_TRACE = "to trace the model: "
ITS_BUCKETS = "with DeepSpeed's default buckets"
"""What its figures may differ by from those of a plan, which chooses its buckets."""
TO_TRACE = f"{_TO_TRACE}{WITH_THESE_OPTIONS} ({ITS_BUCKETS}); then plan again"
TRACES_ARE_OF = "the catalogue's traces are of"
"""In a note on another Transformers than the installed one."""
_OF_THE_SEARCH = ("top", "recipe", "out")


def trace_command(request: Mapping[str, object], strategy: Strategy) -> str:
    """``zerokit estimate`` for the chosen strategy: what was given, its batch and what decides its trace.

    Args:
        request: the arguments that were given, by option without dashes in front.
    """
    zero = strategy.settings.zero
    chosen = {
        "tp": strategy.tensor_parallel,
        "pp": strategy.pipeline_parallel,
        "sp": strategy.sequence_parallel,
    }
    options = {**request, **{name: str(degree) for name, degree in chosen.items() if degree > 1}}
    if zero.stage:
        options["zero"] = str(zero.stage)
    if strategy.checkpointing != "none":
        options["checkpointing"] = strategy.checkpointing
    micro, steps = strategy.settings.micro_batch, strategy.settings.gradient_accumulation
    if micro > 1:
        options.setdefault("micro-batch", str(micro))
    if steps > 1 and "global-batch" not in options:
        options.setdefault("gradient-accumulation", str(steps))
    return command_text("estimate", options={k: v for k, v in options.items() if k not in _OF_THE_SEARCH})


def with_command(notes: Iterable[str], request: Mapping[str, object], strategy: Strategy) -> tuple[str, ...]:
    """The notes, with the command itself where they name it by its options."""
    command = f"`{trace_command(request, strategy)}`"
    return tuple(note.replace(WITH_THESE_OPTIONS, command) for note in notes)


def command_in(notes: Iterable[str]) -> tuple[str, str] | None:
    """The note that says how to trace a model in closed form, and the command in it; None: there is none."""
    for note in notes:
        if note.startswith(f"{_TO_TRACE}`"):
            return note, note.split("`")[1]
    return None
