"""The gradient accumulation that a script's own code asks Accelerate for."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.script.arguments import ScriptOptions
from zerokit.script.code_settings import OF_ACCUMULATION, made_once
from zerokit.script.option_values import number


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeAccumulation:
    """Micro-batches per optimizer step, and where that stands."""

    steps: int
    location: str


def code_accumulation(options: ScriptOptions) -> CodeAccumulation | None:
    """The literal that its code passes; None: there is none, or an option has it, which a plan fills in."""
    if options.style != "accelerate":
        return None
    passed = [
        one for one in made_once(options.facts.code_settings) if (one.call, one.name) in OF_ACCUMULATION
    ]
    values = {None if one.option else number(one.value) for one in passed}
    steps = next(iter(values)) if len(values) == 1 else None
    return None if steps is None else CodeAccumulation(steps=steps, location=passed[0].text)
