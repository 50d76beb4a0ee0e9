"""A request with what a script decides: its batch, checkpointing and precision are no longer to be chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from zerokit.script.arguments import ScriptOptions
from zerokit.script.loader_batch import loader_batch
from zerokit.search.plan import Plan
from zerokit.search.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFor:
    """What is to be planned for one script.

    Attributes:
        request: with what the script decides, and a note for each.
        decided: the same as options of ``plan``: planning again from plan.yaml keeps it.
    """

    request: Request
    decided: dict[str, str]

    @classmethod
    def of(cls, requested: Request, script: ScriptOptions) -> PlannedFor:
        """Of what the user asks for and what the script leaves open."""
        pins, notes = script.pins(requested.pins)
        precision, more = script.precision(requested.precision)
        loaded = loader_batch(script)
        if loaded is not None and pins.micro_batch is None:
            pins = replace(pins, micro_batch=loaded.sequences)
            more = (*more, f"micro-batch {loaded.sequences}: {loaded.location}")
        elif loaded is not None and (unlike := loaded.unlike(pins.micro_batch or 0)) is not None:
            more = (*more, unlike)
        request = replace(
            requested, pins=pins, precision=precision, assumptions=(*requested.assumptions, *notes, *more)
        )
        return cls(request=request, decided=_decided(requested, request))

    def with_own_reasons(self, plan: Plan) -> Plan:
        """A plan of the request without the note that the user gave what the script decides."""
        if "precision" not in self.decided:
            return plan
        reason = f"precision {self.request.precision}: given"
        return replace(plan, assumptions=tuple(note for note in plan.assumptions if note != reason))


def _decided(requested: Request, decided: Request) -> dict[str, str]:
    pairs: list[tuple[str, object, object]] = [
        ("precision", requested.precision, decided.precision),
        ("micro-batch", requested.pins.micro_batch, decided.pins.micro_batch),
        ("gradient-accumulation", requested.pins.gradient_accumulation, decided.pins.gradient_accumulation),
        ("checkpointing", requested.pins.checkpointing, decided.pins.checkpointing),
    ]
    return {option: str(value) for option, before, value in pairs if value != before}
