"""What a plan would choose, and a script's own code fixes for Accelerate."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.domain.job import OFFLOAD_DEVICES
from zerokit.script.arguments import ScriptOptions
from zerokit.script.code_settings import PLANNED, CodeSetting, made_once
from zerokit.script.option_values import number

_PRECISIONS = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeValue:
    """A value of the plan's, and where it stands."""

    value: int | str
    location: str


def code_values(options: ScriptOptions) -> dict[str, CodeValue]:
    """The literals that its code passes, by the plan's name for them; not what an option has, which a plan
    fills in, nor what two calls say differently."""
    if options.style != "accelerate":
        return {}
    result = {}
    settings = made_once(options.facts.code_settings)
    for name in dict.fromkeys(PLANNED.values()):
        passed = [one for one in settings if PLANNED.get((one.call, one.name)) == name]
        values = {_value(name, one) for one in passed}
        value = next(iter(values)) if len(values) == 1 else None
        if value is not None:
            result[name] = CodeValue(value=value, location=passed[0].text)
    return result


def _value(name: str, setting: CodeSetting) -> int | str | None:
    """As the plan writes it; None: it is not fixed, or nothing that a plan has."""
    value = setting.value
    if setting.option or isinstance(value, bool):
        return None
    if name == "zero_stage":
        return value if isinstance(value, int) and value in range(4) else None
    if name == "gradient_accumulation":
        return number(value)
    if name == "precision":
        return _PRECISIONS.get(str(value))
    return value if isinstance(value, str) and value in OFFLOAD_DEVICES else None
