"""A request with what a script decides: its batch, checkpointing and precision are no longer to be chosen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from zerokit.errors import InputError
from zerokit.script.arguments import ScriptOptions
from zerokit.script.code_accumulation import code_accumulation
from zerokit.script.loader_batch import loader_batch
from zerokit.search.plan import Plan, data_ranks
from zerokit.search.request import Request
from zerokit.search.space import Pins
from zerokit.units import counted

_WORDS = {"micro_batch": "micro-batch", "gradient_accumulation": "accumulation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFor:
    """What is to be planned for one script.

    Attributes:
        request: with what the script decides, and a note for each.
        decided: the same as options of ``plan``.
    """

    request: Request
    decided: dict[str, str]

    @classmethod
    def of(cls, requested: Request, script: ScriptOptions, rehearsed: Collection[str] = ()) -> PlannedFor:
        """Of what the user asks for and what the script leaves open.

        Args:
            rehearsed: fields of the request's pins that the script's own rehearsal decided.

        Raises:
            InputError: the user asks for something else than the script does.
        """
        pins, notes = script.pins(requested.pins)
        precision, more = script.precision(requested.precision)
        written = _written(script)
        for name, (value, location) in written.items():
            asked = getattr(pins, name)
            if asked is None:
                of_script: dict[str, Any] = {name: value}
                pins = replace(pins, **of_script)
                more = (*more, f"{_WORDS[name]} {value}: {location}")
            elif asked != value and name not in rehearsed:
                raise InputError(
                    f"⟨{name}⟩ {asked}: the script has {value} ({location}); leave ⟨{name}⟩ out, or change "
                    f"the script to {asked}"
                )
        decided = {name for name in _WORDS if getattr(requested.pins, name) != getattr(pins, name)}
        _check_global_batch(requested, pins, decided | (_WORDS.keys() & set(rehearsed)))
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


def _written(script: ScriptOptions) -> dict[str, tuple[int, str]]:
    """What stands in the script's source alone, by the field of the pins: the number, and where."""
    loaded, accumulated = loader_batch(script), code_accumulation(script)
    return {
        **({} if loaded is None else {"micro_batch": (loaded.sequences, loaded.location)}),
        **(
            {}
            if accumulated is None
            else {"gradient_accumulation": (accumulated.steps, accumulated.location)}
        ),
    }


def _check_global_batch(requested: Request, pins: Pins, decided: Collection[str]) -> None:
    """Refuse a global batch that no division of the GPUs meets with what the script decides.

    Raises:
        InputError: names the nearest that can be met.
    """
    batch = requested.job.global_batch
    if batch is None or not decided:
        return
    ranks = data_ranks(requested.cluster, pins)
    sequences = (pins.micro_batch or 1) * (pins.gradient_accumulation or 1)
    is_whole = pins.micro_batch is not None and pins.gradient_accumulation is not None
    for divided in (count for count in range(1, ranks + 1) if ranks % count == 0):
        if batch == divided * sequences or (not is_whole and batch % (divided * sequences) == 0):
            return
    step = ranks * sequences
    lower = batch // step * step
    possible = str(step) if is_whole or not lower else f"{lower} or {lower + step}"
    words = [
        f"the script's {_WORDS[name]} {value}" if name in decided else f"⟨{name}⟩ {value}"
        for name in _WORDS
        if (value := getattr(pins, name)) is not None
    ]
    raise InputError(
        f"⟨global_batch⟩ {batch} cannot be met with {' and '.join(words)} on "
        f"{counted(ranks, 'data-parallel rank')}: leave ⟨global_batch⟩ out, or use {possible}"
    )


def _decided(requested: Request, decided: Request) -> dict[str, str]:
    pairs: list[tuple[str, object, object]] = [
        ("precision", requested.precision, decided.precision),
        ("micro-batch", requested.pins.micro_batch, decided.pins.micro_batch),
        ("gradient-accumulation", requested.pins.gradient_accumulation, decided.pins.gradient_accumulation),
        ("checkpointing", requested.pins.checkpointing, decided.pins.checkpointing),
    ]
    return {option: str(value) for option, before, value in pairs if value != before}
