"""The command that traces a model for the job that was asked for, in the notes that name it."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.commands import command_text
from zerokit.domain.strategy import Strategy
from zerokit.notes import Note, Topic

_WITH_THESE_OPTIONS = "`zerokit estimate` with these options"
ITS_BUCKETS = "with DeepSpeed's default buckets"
"""What its figures may differ by from those of a plan, which chooses its buckets."""


def note_on_trace(id: str, template: str, topic: Topic = "assumed") -> Note:
    """A note that names the command that traces a model, ``{command}``, before its strategy is chosen."""
    return Note(id, template.format(command=_WITH_THESE_OPTIONS), topic, template=template)


TO_TRACE = note_on_trace("trace-model", f"to trace the model: {{command}} ({ITS_BUCKETS}); then plan again")
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
