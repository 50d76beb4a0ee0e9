"""A request with what a script decides, which is no longer to be chosen: its batch, checkpointing, precision,
and the ZeRO stage and offload that its code asks Accelerate for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zerokit.errors import InputError
from zerokit.script.arguments import ScriptOptions
from zerokit.script.code_values import OFFLOAD, OPTIONS, CodeValue, code_values
from zerokit.search.plan import Plan, data_ranks
from zerokit.search.space import Pins, Request
from zerokit.units import counted

_BATCH = {"micro_batch": "micro-batch", "gradient_accumulation": "accumulation"}
_WORDS = _BATCH | {
    "zero_stage": "ZeRO stage",
    "offload_optimizer": "optimizer offload",
    "offload_param": "weight offload",
    "precision": "precision",
}
_OF_TRAINER = {
    "micro_batch": "per_device_train_batch_size",
    "gradient_accumulation": "gradient_accumulation_steps",
}


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
        request = replace(
            requested, pins=pins, precision=precision, assumptions=(*requested.assumptions, *notes, *more)
        )
        written = code_values(script, on_cpu=requested.on_cpu)
        for name, fixed in written.items():
            asked = precision if name == "precision" else getattr(pins, name)
            if asked in (None, "auto"):
                request = _with(request, name, fixed)
            elif asked != fixed.value and name not in rehearsed:
                option = OPTIONS.get(name, name)
                raise InputError(
                    f"⟨{option}⟩ {asked}: the script has {fixed.value} ({fixed.location}); leave ⟨{option}⟩ "
                    f"out, or change the script to {asked}"
                )
        _check_nvme(request, written)
        decided = {name for name in _BATCH if getattr(requested.pins, name) != getattr(request.pins, name)}
        decided |= _BATCH.keys() & set(rehearsed)
        _check_global_batch(
            requested, request.pins, {name: _where(script, name, written) for name in decided}
        )
        return cls(request=request, decided=_decided(requested, request))

    def with_own_reasons(self, plan: Plan) -> Plan:
        """A plan of the request without the note that the user gave what the script decides."""
        if "precision" not in self.decided:
            return plan
        reason = f"precision {self.request.precision}: given"
        return replace(plan, assumptions=tuple(note for note in plan.assumptions if note != reason))


def _check_nvme(request: Request, written: Mapping[str, CodeValue]) -> None:
    for name in OFFLOAD:
        if getattr(request.pins, name) == "nvme" and name in written and request.cluster.nvme_path is None:
            raise InputError(
                f"{written[name].location}: name a folder on a local NVMe disk with ⟨nvme⟩ DIR to plan for it"
            )


def _with(request: Request, name: str, fixed: CodeValue) -> Request:
    changed: dict[str, Any] = {name: fixed.value}
    if name != "precision":
        changed = {"pins": replace(request.pins, **changed)}
    note = f"{_WORDS[name]} {fixed.value}: {fixed.location}"
    return replace(request, assumptions=(*request.assumptions, note), **changed)


def _where(script: ScriptOptions, name: str, written: Mapping[str, CodeValue]) -> str:
    """The line or the argument by which a script decides its batch; empty: only its rehearsal tells."""
    if name in written:
        return written[name].location
    decided = script.decided(_OF_TRAINER[name])
    return "" if decided is None else decided[1]


def _check_global_batch(requested: Request, pins: Pins, decided: Mapping[str, str]) -> None:
    """Refuse a global batch that the data-parallel ranks do not meet with what the script decides. Ranks that
    share a batch would meet a smaller one: slower, and not asked for unless the user has them searched.

    Args:
        decided: what the script decides, and where.

    Raises:
        InputError: names what can be met.
    """
    batch = requested.job.global_batch
    if batch is None or not decided:
        return
    asked = requested.pins
    searched = asked.search_tensor or asked.search_sequence or asked.pipeline_module
    ranks = data_ranks(requested.cluster, pins)
    sequences = (pins.micro_batch or 1) * (pins.gradient_accumulation or 1)
    is_whole = pins.micro_batch is not None and pins.gradient_accumulation is not None
    for divided in (count for count in range(1, ranks + 1) if ranks % count == 0):
        is_met = batch == divided * sequences or (not is_whole and batch % (divided * sequences) == 0)
        if is_met and (divided == ranks or searched):
            return
    step = ranks * sequences
    lower = batch // step * step
    possible = str(step) if is_whole or not lower else f"{lower} or {lower + step}"
    words = [
        f"the script's {_BATCH[name]} {value}{f' ({decided[name]})' if decided[name] else ''}"
        if name in decided
        else f"⟨{name}⟩ {value}"
        for name in _BATCH
        if (value := getattr(pins, name)) is not None
    ]
    raise InputError(
        f"⟨global_batch⟩ {batch} cannot be met with {' and '.join(words)} on "
        f"{counted(ranks, 'data-parallel rank')}: leave ⟨global_batch⟩ out, use {possible}, or change the "
        "script"
    )


def _decided(requested: Request, decided: Request) -> dict[str, str]:
    pairs: list[tuple[str, object, object]] = [
        ("precision", requested.precision, decided.precision),
        ("zero", requested.pins.zero_stage, decided.pins.zero_stage),
        ("offload-optimizer", requested.pins.offload_optimizer, decided.pins.offload_optimizer),
        ("offload-param", requested.pins.offload_param, decided.pins.offload_param),
        ("micro-batch", requested.pins.micro_batch, decided.pins.micro_batch),
        ("gradient-accumulation", requested.pins.gradient_accumulation, decided.pins.gradient_accumulation),
        ("checkpointing", requested.pins.checkpointing, decided.pins.checkpointing),
    ]
    return {option: str(value) for option, before, value in pairs if value != before}
