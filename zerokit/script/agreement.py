"""What keeps every plan from a script."""

from __future__ import annotations

from zerokit.errors import InputError
from zerokit.script.arguments import ScriptOptions, truth
from zerokit.script.reader import ScriptFacts

_FSDP = "FSDP and DeepSpeed exclude each other"


_OWN_FSDP = "the Trainer's own FSDP goes before the plan's accelerate.yaml"


def obstacles(options: ScriptOptions, engine: str = "deepspeed") -> list[str]:
    """What a script and its arguments have that a plan for this engine cannot get past, as far as they tell,
    and how to train with one."""
    why = _OWN_FSDP if engine == "fsdp2" else _FSDP
    sharding = options.decided("fsdp") if options.style == "trainer" else None
    has_fsdp = sharding is not None and truth(sharding[0]) is not False
    found = [f"{sharding[1]}: {why}; leave it out"] if sharding is not None and has_fsdp else []
    return [*found, *_own_configuration(options.facts, options.style)]


def _own_configuration(facts: ScriptFacts, style: str) -> list[str]:
    """A configuration that the script gives DeepSpeed itself, which then refuses any other
    (deepspeed/__init__.py, ``initialize``)."""
    location = facts.own_configuration
    if location is None or style not in ("raw", "none"):
        return []
    return [
        f"{location}: it gives deepspeed.initialize a configuration of its own, so another cannot reach it "
        "(DeepSpeed refuses both); remove that argument and let the script take --deepspeed_config "
        "(deepspeed.add_config_arguments)"
    ]


def check_reaches(facts: ScriptFacts, style: str) -> None:
    """Refuse a DeepSpeed file for a script that makes its own. Raises InputError: names the call."""
    for obstacle in _own_configuration(facts, style):
        raise InputError(f"the DeepSpeed file does not reach the script: {obstacle}")


def refuse_unplannable(options: ScriptOptions, engine: str) -> None:
    """Refuse a script that would train with a configuration of its own under each plan, where plans are to be
    compared. Raises InputError: names the file, or the line."""
    if options.own_deepspeed_file is not None:
        _, where = options.own_deepspeed_file
        raise InputError(
            f"{where}: the script would train with this file, whatever the plan; leave it out to plan "
            "(`zerokit rehearse` with the same script and arguments says what the file takes)"
        )
    if found := "; ".join(obstacles(options, engine)) if options.style != "none" else "":
        raise InputError(
            f"no plan reaches the script: {found} to plan, or go on without a plan: `zerokit rehearse` "
            "says what the script takes, `zerokit launch --no-plan` runs it"
        )
