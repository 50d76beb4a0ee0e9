"""What a run was, out of the other files of its folder: the plan, and the command that was run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit.errors import ZerokitError
from zerokit.report.schema import RunReport, plain
from zerokit.units import counted

_MOST_BYTES = 8 << 20
_PLAN_FILE, _COMMAND_FILE = "plan.yaml", "command.json"


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run's plan and command, as far as its folder has them.

    Attributes:
        plan: the parsed ``plan.yaml``; empty where there is none.
        command: the script's arguments, secrets masked: those typed, then those added from the plan.
    """

    plan: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    def part(self, name: str) -> Mapping[str, Any]:
        """A mapping of the plan; empty where it has none."""
        value = self.plan.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def settings(self) -> list[tuple[str, str, str]]:
        """Key path, value and reason of each setting of the DeepSpeed configuration."""
        reasons = self.part("reasons")
        config = self.part("chosen").get("deepspeed_config")
        return [(key, value, str(reasons.get(key, ""))) for key, value in _flat(config, "")]

    @property
    def time_parts(self) -> Mapping[str, object]:
        """Seconds of a predicted step by what they are spent on; empty where none are predicted."""
        estimate = self.part("chosen").get("estimate")
        parts = estimate.get("time_parts") if isinstance(estimate, Mapping) else None
        return parts if isinstance(parts, Mapping) else {}


def read_context(folder: Path) -> RunContext:
    """The context of a run folder. What cannot be read is left out: the report stands without it."""
    return RunContext(plan=_plan(folder / _PLAN_FILE), command=_command(folder / _COMMAND_FILE))


def facts(run: RunReport, context: RunContext) -> list[tuple[str, str]]:
    """What was run, in rows: script, model, strategy, batch, date, versions."""
    request, chosen, cluster = context.part("request"), context.part("chosen"), context.part("cluster")
    engine = next((rank.engine for rank in run.ranks if rank.engine), None) or {}
    rows = [
        ("script", run.script or "unknown"),
        ("arguments", " ".join(context.command)),
        ("model", model_words(request, engine)),
        ("method", str(request.get("method", ""))),
        ("strategy", _strategy(chosen, engine)),
        ("batch", _batch(chosen, engine)),
        ("hardware", _hardware(run, cluster)),
        ("started", _date(run.started_at)),
        ("zerokit", run.zerokit or ""),
        ("DeepSpeed", str(context.plan.get("deepspeed", ""))),
    ]
    return [(name, str(plain(value))) for name, value in rows if value]


def subject(run: RunReport, context: RunContext) -> str:
    """``train.py, llama-3.1-8b``: what ran, as far as that is known."""
    engine = next((rank.engine for rank in run.ranks if rank.engine), None) or {}
    model = model_words(context.part("request"), engine)
    return str(plain(script_and_model(run.script or "unknown script", model)))


def script_and_model(script: str | None, model: str) -> str:
    """The script's own name, without its folder, and the model, where there are any."""
    name = (script or "").rstrip("/").rpartition("/")[2]
    return ", ".join(part for part in (name, model) if part)


def _plan(path: Path) -> Mapping[str, Any]:
    from zerokit.strictload import load_yaml

    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return {}
        value = load_yaml(path).value
    except (OSError, ZerokitError):
        return {}
    return value if isinstance(value, Mapping) else {}


def _command(path: Path) -> tuple[str, ...]:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return ()
        body = json.loads(path.read_text(encoding="utf-8"))
        parts = [*body["script_arguments"], *body["added_arguments"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ()
    return tuple(map(str, parts))


def _flat(value: object, path: str) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        items = []
        for key, item in value.items():
            items += _flat(item, f"{path}.{key}" if path else str(key))
        return items
    return [(path, json.dumps(value))] if path else []


def model_words(request: Mapping[str, Any], engine: Mapping[str, Any]) -> str:
    """``llama-3.1-8b, 8.03B parameters``: as a plan's request names it, and as an engine counted it."""
    from zerokit.units import format_count

    named = str(request.get("model") or request.get("params") or "")
    parameters = engine.get("parameters")
    size = f"{format_count(parameters)} parameters" if isinstance(parameters, int) and parameters > 0 else ""
    return ", ".join(part for part in (named, size) if part)


def _strategy(chosen: Mapping[str, Any], engine: Mapping[str, Any]) -> str:
    stage = engine.get("zero_stage", chosen.get("zero_stage"))
    words = [f"ZeRO-{stage}"] if stage is not None else []
    for key, text in (("offload_optimizer", "optimizer offload to"), ("offload_param", "weight offload to")):
        if chosen.get(key) not in (None, "none"):
            words.append(f"{text} {chosen[key]}")
    for name in ("data", "tensor", "pipeline", "sequence"):
        degree = chosen.get(f"{name}_parallel")
        if isinstance(degree, int) and degree > 1:
            words.append(f"{name} parallel {degree}")
    checkpointing = chosen.get("activation_checkpointing")
    if checkpointing:
        words.append("no checkpointing" if checkpointing == "none" else f"{checkpointing} checkpointing")
    precision = engine.get("dtype") or chosen.get("precision")
    return ", ".join([*words, *([str(precision)] if precision else [])])


def _batch(chosen: Mapping[str, Any], engine: Mapping[str, Any]) -> str:
    micro = engine.get("micro_batch", chosen.get("micro_batch"))
    steps = engine.get("gradient_accumulation", chosen.get("gradient_accumulation"))
    columns = engine.get("batch_columns")
    length = f", last batch {columns} tokens long" if isinstance(columns, int) else ""
    return f"{micro} per GPU × {steps} accumulation{length}" if micro and steps else ""


def _hardware(run: RunReport, cluster: Mapping[str, Any]) -> str:
    hosts = len({rank.host for rank in run.ranks})
    on = counted(len(run.ranks), "rank")
    hosts_text = f" on {hosts} hosts" if hosts > 1 else ""
    planned = cluster.get("gpu")
    return f"{on}{hosts_text}" + (
        f", planned for {planned}" if planned else f", {run.device}" if run.device else ""
    )


def made_at(seconds: float) -> str:
    """When a page was made, of Unix seconds: ``2026-01-31 12:00 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _date(started_at: float | None) -> str:
    if started_at is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(started_at))
    except (OverflowError, ValueError, OSError):
        return ""
