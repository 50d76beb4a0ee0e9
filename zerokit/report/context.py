"""What a run was, out of its report and the other files of its folder: configuration, command and plan."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from zerokit.domain.planned import Chosen
from zerokit.domain.script_profile import by_option
from zerokit.errors import ZerokitError
from zerokit.files import read_regular
from zerokit.report.schema import RunReport, plain
from zerokit.units import counted

_AUTO = '"auto"'
UNKNOWN = "–"
_MOST_BYTES = 8 << 20
_PLAN_FILE, _COMMAND_FILE, _CONFIG_FILE = "plan.yaml", "command.json", "ds_config.json"


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run's plan, configuration and command, as far as its folder has them.

    Attributes:
        plan: the parsed ``plan.yaml``; empty where there is none.
        config: the DeepSpeed configuration that the run's script got; empty where it is not known.
        command: the script's arguments, secrets masked: those typed, then those added from the plan.
    """

    plan: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    def part(self, name: str) -> Mapping[str, Any]:
        """A mapping of the plan; empty where it has none."""
        value = self.plan.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def settings(self) -> list[tuple[str, str, str]]:
        """Key path, value and reason of each setting that the run had, and what the plan has otherwise."""
        reasons = self.part("reasons")
        planned = dict(_flat(self.part("chosen").get("deepspeed_config"), ""))
        ran = dict(_flat(self.config, "")) or planned
        rows = []
        for key, value in ran.items():
            reason = str(reasons.get(key, ""))
            if value != planned.get(key):
                beside = f"; the plan has {planned[key]}" if key in planned else ""
                reason = ("the script's arguments fill it" if value == _AUTO else "set for this run") + beside
            rows.append((key, value, reason))
        return rows

    @property
    def time_parts(self) -> Mapping[str, object]:
        """Seconds of a predicted step by what they are spent on; empty where none are predicted."""
        estimate = self.part("chosen").get("estimate")
        parts = estimate.get("time_parts") if isinstance(estimate, Mapping) else None
        return parts if isinstance(parts, Mapping) else {}


def read_context(folder: Path) -> RunContext:
    """The context of a run folder. What cannot be read is left out: the report stands without it."""
    command = _json(folder / _COMMAND_FILE)
    words: tuple[object, ...] = ()
    with suppress(TypeError, KeyError):
        words = (*command["script_arguments"], *command["added_arguments"])
    return RunContext(
        plan=_plan(folder / _PLAN_FILE),
        command=tuple(map(str, words)),
        config=_json(folder / _CONFIG_FILE),
    )


def facts(run: RunReport, context: RunContext) -> list[tuple[str, str]]:
    """What was run, in rows: script, model, strategy, batch, date, versions. What an engine said of itself
    goes before what its plan says."""
    request, cluster = context.part("request"), context.part("cluster")
    chosen = cast(Chosen, context.part("chosen"))
    engine = _engine(run)
    planned_model, ran_model = model_words(request, {}), _model(run, request)
    unlike = "" if ran_model.startswith(planned_model) else f"; the plan is for {planned_model}"
    micro = batch_size(run) or chosen.get("micro_batch")
    steps = engine.get("gradient_accumulation", chosen.get("gradient_accumulation"))
    columns = engine.get("batch_columns")
    length = f", last batch {columns} tokens long" if isinstance(columns, int) else ""
    hosts = len({rank.host for rank in run.ranks})
    on = counted(len(run.ranks), "rank")
    hosts_text = f" on {hosts} hosts" if hosts > 1 else ""
    planned = cluster.get("gpu")
    rows = [
        ("script", run.script or "unknown"),
        ("arguments", " ".join(context.command)),
        ("model", f"{ran_model}{unlike}"),
        ("method", str(request.get("method", ""))),
        ("strategy", _strategy(chosen, engine, max(len(run.ranks), run.expected_ranks or 0))),
        ("batch", (f"{micro} per GPU × {steps} accumulation{length}" if micro and steps else "")),
        (
            "hardware",
            (
                f"{on}{hosts_text}"
                + (f", planned for {planned}" if planned else f", {run.device}" if run.device else "")
            ),
        ),
        ("started", _date(run.started_at)),
        ("zerokit", run.zerokit or ""),
        ("DeepSpeed", str(context.plan.get("deepspeed", ""))),
    ]
    return [(name, str(plain(value))) for name, value in rows if value]


def side_by_side(first: Mapping[str, str], second: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Name, what it is in one, in the other; a dash where it is not known."""
    return [
        (name, first.get(name, UNKNOWN), second.get(name, UNKNOWN))
        for name in dict.fromkeys([*first, *second])
    ]


def unlike_arguments(first: RunContext, second: RunContext) -> list[tuple[str, str, str]]:
    """Option and both values, as they are typed, of each argument in which the scripts' commands differ."""
    values = (
        {option: shlex.join(words) for option, words in by_option(context.command)}
        for context in (first, second)
    )
    return [row for row in side_by_side(*values) if row[1] != row[2]]


def unlike_settings(first: RunContext, second: RunContext) -> list[tuple[str, str, str]]:
    """Key path and both values, as JSON, of each DeepSpeed setting in which two runs differ."""
    values = ({key: value for key, value, _ in context.settings} for context in (first, second))
    return [row for row in side_by_side(*values) if row[1] != row[2]]


def subject(run: RunReport, context: RunContext) -> str:
    """``train.py, llama-3.1-8b``: what ran, as far as that is known."""
    model = _model(run, context.part("request"))
    return str(plain(script_and_model(run.script or "unknown script", model)))


def _engine(run: RunReport) -> Mapping[str, Any]:
    """What the first engine that came up said of itself."""
    return next((rank.engine for rank in run.ranks if rank.engine), None) or {}


def _model(run: RunReport, request: Mapping[str, Any]) -> str:
    """The model that ran: by the plan's name for it, unless it was another."""
    differences = run.predicted_vs_measured.differences if run.predicted_vs_measured else []
    is_other = any(difference.what == "model" for difference in differences)
    return model_words({} if is_other else request, _engine(run))


def script_and_model(script: str | None, model: str) -> str:
    """The script's own name, without its folder, and the model, where there are any."""
    name = (script or "").rstrip("/").rpartition("/")[2]
    return ", ".join(part for part in (name, model) if part)


def _plan(path: Path) -> Mapping[str, Any]:
    from zerokit.strictload import load_yaml

    try:
        value = load_yaml(path).value if path.exists() else {}
    except (OSError, ZerokitError):
        return {}
    return value if isinstance(value, Mapping) else {}


def _json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(read_regular(path, _MOST_BYTES, path.parent))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, Mapping) else {}


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


def _strategy(chosen: Chosen, engine: Mapping[str, Any], ranks: int) -> str:
    stage = engine.get("zero_stage", chosen.get("zero_stage"))
    words = [f"ZeRO-{stage}"] if stage is not None else []
    words += ["FSDP2"] if "fsdp2" in (engine or chosen).get("engine", "") else []
    for key, text in (("offload_optimizer", "optimizer offload to"), ("offload_param", "weight offload to")):
        device = engine.get(key) or chosen.get(key)
        if device not in (None, "none"):
            words.append(f"{text} {device}")
    if not words and not chosen:
        return str(engine.get("dtype") or "")
    words += [f"{name} parallel {degree}" for name, degree in _degrees(chosen, engine, ranks) if degree > 1]
    checkpointing, enabled = chosen.get("activation_checkpointing"), engine.get("gradient_checkpointing")
    if (checkpointing, enabled) in (("full", False), ("none", True)):  # the script's own choice
        checkpointing = "full" if enabled else "none"
    if checkpointing:
        words.append("no checkpointing" if checkpointing == "none" else f"{checkpointing} checkpointing")
    precision = engine.get("dtype") or chosen.get("precision")
    return ", ".join([*words, *([str(precision)] if precision else [])])


def _degrees(chosen: Chosen, engine: Mapping[str, Any], ranks: int) -> list[tuple[str, int]]:
    """How the run's ranks were divided: data parallel are as many as the other degrees leave."""
    known = {**chosen, **{key: value for key, value in engine.items() if key.endswith("_parallel") and value}}
    others = [(name, known.get(f"{name}_parallel")) for name in ("tensor", "pipeline", "sequence", "context")]
    degrees = [(name, degree) for name, degree in others if isinstance(degree, int)]
    return [("data", ranks // math.prod(degree for _, degree in degrees if degree > 0)), *degrees]


def engine_fact(run: RunReport, name: str) -> int | None:
    """The largest that an engine of any rank said of itself; None: none did."""
    values = [rank.engine.get(name) for rank in run.ranks if rank.engine]
    return max((value for value in values if isinstance(value, int)), default=None)


def batch_size(run: RunReport) -> int | None:
    """Sequences of a rank's largest micro-batch: as loaded, as fed, or as the engine was told."""
    names = ("loader_rows", "batch_rows", "micro_batch")
    return next((value for name in names if (value := engine_fact(run, name))), None)


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
