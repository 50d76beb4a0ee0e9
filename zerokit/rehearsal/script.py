"""The script as a launch would start it: its arguments, configuration and environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit.errors import InputError
from zerokit.launcher import command as commands
from zerokit.launcher.devices import Devices
from zerokit.launcher.prepare import read_plan
from zerokit.script import adapt_config
from zerokit.script import reader as script_reader

LAUNCHERS = ("auto", "none", *commands.LAUNCHERS)
_PORT = 29500
_RANKS_PER_NODE = 8
_OF_A_LAUNCHER = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|LOCAL_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|NODE_RANK|ROLE_.*|"
    r"CROSS_RANK|CROSS_SIZE|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*|ZEROKIT_.*|CUDA_VISIBLE_DEVICES"
)


@dataclass(slots=True, kw_only=True)
class PreparedScript:
    """What the rehearsed process runs.

    Attributes:
        notes: one line each: what was taken, added or changed, and why.
        ranks: the plan's, where there is a plan.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    environment: dict[str, str]
    launcher: str
    ranks: int
    notes: list[str] = field(default_factory=list)


def prepare(
    target: commands.Target,
    *,
    plan: str | None,
    ranks: int | None,
    rank: int,
    launcher: str,
    folder: Path,
    base: Mapping[str, str] = os.environ,
) -> PreparedScript:
    """Decide arguments, configuration and environment. Writes the configuration into ``folder``.

    Raises:
        InputError: no such script, plan or launcher.
    """
    if launcher not in LAUNCHERS:
        raise InputError(f"--launcher {launcher}: use one of {', '.join(LAUNCHERS)}")
    target = _resolved(target)
    facts = script_reader.read_script(
        Path(target.script) if target.script is not None else None, target.module
    )
    read = read_plan(plan) if plan is not None else None
    ranks = ranks or (read[0].world_size if read is not None else 1)
    if not 0 <= rank < ranks:
        raise InputError(f"--rank {rank}: there are ranks 0 to {ranks - 1}")
    chosen = _launcher(launcher, facts, target.arguments, ranks, has_plan=read is not None)
    notes = [f"started as by {chosen}" if chosen != "none" else "started without a launcher"]
    arguments = target.arguments
    environment = {name: value for name, value in base.items() if not _OF_A_LAUNCHER.fullmatch(name)}
    if read is not None:
        arguments, planned = _with_plan(target, facts, read, ranks, chosen, folder, base, notes)
        environment |= planned
    if chosen != "none":
        environment |= _rank_variables(rank, ranks)
    if chosen == "deepspeed" and {"--local_rank", "--local-rank"} & facts.options:
        arguments = (f"--local_rank={rank % _RANKS_PER_NODE}", *arguments)
    return PreparedScript(
        target=target.name,
        is_module=target.script is None,
        arguments=arguments,
        environment=environment,
        launcher=chosen,
        ranks=ranks,
        notes=notes,
    )


def _resolved(target: commands.Target) -> commands.Target:
    """A console command (``trl``) is a Python file on the path."""
    if target.script is None or Path(target.script).exists() or os.sep in target.script:
        return target
    beside = Path(sys.executable).with_name(target.script)
    found = str(beside) if beside.is_file() else shutil.which(target.script)
    if found is None:
        return target  # the reader of the script says that there is no such file
    if b"python" not in Path(found).read_bytes()[:200].partition(b"\n")[0]:
        raise InputError(f"{target.script}: {found} is not a Python program; name the script that it runs")
    return commands.Target(script=found, module=None, arguments=target.arguments)


def _launcher(
    launcher: str, facts: script_reader.ScriptFacts, arguments: tuple[str, ...], ranks: int, *, has_plan: bool
) -> str:
    if launcher != "auto":
        return launcher
    given = {argument.partition("=")[0] for argument in arguments}
    if has_plan or facts.style == "raw" or facts.calls_initialize or "--deepspeed" in given:
        return "deepspeed"
    return "torchrun" if ranks > 1 else "none"


def _with_plan(
    target: commands.Target,
    facts: script_reader.ScriptFacts,
    read: tuple[Any, dict[str, Any]],
    ranks: int,
    launcher: str,
    folder: Path,
    base: Mapping[str, str],
    notes: list[str],
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments and variables that ``zerokit launch --plan`` would give."""
    plan, config = read
    adapted = adapt_config.adapt(
        config,
        style=facts.style,
        device="cuda",
        ranks=ranks,
        planned_ranks=plan.world_size,
        facts=facts,
        script_args=list(target.arguments),
    )
    notes.append(f"{target.name} is taken as {facts.style}: {facts.why}")
    notes += [f"ds_config.json: {change}" for change in adapted.changes]
    notes += [f"warning: {warning}" for warning in adapted.warnings]
    path = folder / "ds_config.json"
    path.write_text(json.dumps(adapted.config, indent=1))
    extra = commands.script_options(facts.style, facts, target.arguments, path)
    command = commands.build(
        launcher="deepspeed" if launcher in ("auto", "none") else launcher,
        target=target,
        extra=extra,
        style=facts.style,
        facts=facts,
        devices=Devices(kind="cuda", ranks=ranks, gpu_indexes=tuple(range(ranks)), why=""),
        port=_PORT,
        run_dir=folder,
        config=path,
        plan=None,
        plan_environment=plan.chosen.get("environment") or {},
        base=base,
    )
    cut = target.arguments.index("--") if "--" in target.arguments else len(target.arguments)
    arguments = (*target.arguments[:cut], *extra, *target.arguments[cut:])
    wanted = {n: v for n, v in command.set_variables.items() if not _OF_A_LAUNCHER.fullmatch(n)}
    return arguments, wanted


def _rank_variables(rank: int, ranks: int) -> dict[str, str]:
    local = rank % _RANKS_PER_NODE
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(min(ranks, _RANKS_PER_NODE)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_PORT),
    }
