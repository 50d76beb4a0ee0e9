"""What in a script keeps every plan, and every other DeepSpeed file, from what it trains with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerokit.script.arguments import ScriptOptions
from zerokit.script.code_settings import made_once
from zerokit.script.option_values import truth
from zerokit.script.reader import ScriptFacts

_FSDP = "FSDP and DeepSpeed exclude each other"
_CPU = "Accelerate then takes neither a GPU nor DeepSpeed"
"""accelerate 1.15.0, state.py:204 and 974: DeepSpeed only without ``cpu``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Something that a plan cannot get past.

    Attributes:
        location: the line or the argument, as it stands there. why: it excludes a plan.
        fix: what to change for the plan.
    """

    location: str
    why: str
    fix: str

    @property
    def text(self) -> str:
        """One sentence: what it is and how to train with a plan."""
        return f"{self.location}: {self.why}; {self.fix}"


def obstacles(options: ScriptOptions) -> list[Obstacle]:
    """Those of a script and its arguments, as far as they tell."""
    return [*_of_code(options), *_of_arguments(options), *own_configuration(options.facts, options.style)]


def own_configuration(facts: ScriptFacts, style: str) -> list[Obstacle]:
    """A configuration that the script gives DeepSpeed itself, which then refuses any other
    (deepspeed/__init__.py, ``initialize``)."""
    location = facts.own_configuration
    if location is None or style not in ("raw", "none"):
        return []
    return [
        Obstacle(
            location=location,
            why="it gives deepspeed.initialize a configuration of its own, so another cannot reach it "
            "(DeepSpeed refuses both)",
            fix="remove that argument and let the script take --deepspeed_config "
            "(deepspeed.add_config_arguments)",
        )
    ]


def _of_code(options: ScriptOptions) -> Iterator[Obstacle]:
    for one in made_once(options.facts.code_settings):
        if one.name == "fsdp" and options.style == "trainer" and one.value:
            yield Obstacle(location=one.text, why=_FSDP, fix="remove it")
        if options.style != "accelerate":
            continue
        if one.call == "Accelerator" and one.name == "fsdp_plugin" and one.makes:
            yield Obstacle(location=one.text, why=_FSDP, fix="remove it")
        if one.call == "Accelerator" and one.name == "cpu" and one.value is True and one.option is None:
            yield Obstacle(location=one.text, why=_CPU, fix="remove cpu=True")
        if one.call == "DeepSpeedPlugin" and one.name == "hf_ds_config" and (one.value or one.makes):
            why = "a DeepSpeed configuration of its own, so another cannot reach it"
            yield Obstacle(location=one.text, why=why, fix="remove hf_ds_config")


def _of_arguments(options: ScriptOptions) -> Iterator[Obstacle]:
    sharding = options.given("fsdp")
    if options.style == "trainer" and sharding is not None and truth(sharding[0]) is not False:
        yield Obstacle(location=sharding[1], why=_FSDP, fix="leave it out")
