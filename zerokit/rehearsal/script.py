"""The script as a launch would start it: its arguments, configuration and environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit import suggest
from zerokit.emit.plan_file import PlanFile
from zerokit.errors import InputError
from zerokit.fields import as_options
from zerokit.launcher import adapt_config, fsdp2_plan, plan_agreement
from zerokit.launcher import command as commands
from zerokit.launcher.backends import BACKENDS
from zerokit.launcher.given_plan import read_config, read_plan
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Devices, Placement
from zerokit.launcher.rehearsed_plan import NOT_ASKED, PlannedCommand
from zerokit.notes import warning, with_level
from zerokit.rehearsal.accelerate_file import read_accelerate
from zerokit.script import arguments as script_arguments
from zerokit.script import reader as script_reader
from zerokit.script.argument_warnings import misplaced, why_no_training
from zerokit.script.entry_points import Target
from zerokit.script.unlike_job import longest_sequence

SWITCH = "ACCELERATE_USE_DEEPSPEED"
FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
_PREFIX = "ACCELERATE_DEEPSPEED_"
_STAGE = f"{_PREFIX}ZERO_STAGE"
_KNOWN = frozenset((SWITCH, FILE, _STAGE, *(
    f"{_PREFIX}{name}"
    for name in (
        "OFFLOAD_OPTIMIZER_DEVICE", "OFFLOAD_PARAM_DEVICE", "OFFLOAD_OPTIMIZER_NVME_PATH",
        "OFFLOAD_PARAM_NVME_PATH", "ZERO3_SAVE_16BIT_MODEL", "ZERO3_INIT", "MOE_LAYER_CLS_NAMES",
    )
)))  # fmt: skip
"""accelerate/utils/dataclasses.py, DeepSpeedPlugin; accelerate/state.py (Accelerate 1.15.0)."""


def warnings(environment: Mapping[str, str]) -> list[str]:
    """What to say of variables that do less than was meant: misspelt, or one without the other."""
    result = []
    for name in sorted(name for name in environment if name.startswith("ACCELERATE_") and name not in _KNOWN):
        near = suggest.nearest(name, _KNOWN)
        if near is not None or "DEEPSPEED" in name:
            meant = f"; did you mean {near}?" if near is not None else ""
            result.append(f"Accelerate does not read {name}{meant}")
    switch = environment.get(SWITCH)
    others = sorted((_KNOWN - {SWITCH}) & environment.keys())
    if switch is None and others:
        result.append(f"{others[0]} is set, but Accelerate uses DeepSpeed only with {SWITCH}=true")
    elif switch is not None and switch.lower() not in ("true", "false"):
        result.append(f"{SWITCH}={switch} does not turn DeepSpeed on: Accelerate takes only true")
    elif switch is not None and switch.lower() == "true" and not {FILE, _STAGE} & environment.keys():
        result.append(
            f"{SWITCH}=true without {FILE}: unless the script gives a plugin, Accelerate makes its "
            "own DeepSpeed configuration (ZeRO-2)"
        )
    elif switch is not None and switch.lower() == "false" and others:
        result.append(f"{others[0]} is set, but {SWITCH}=false leaves DeepSpeed off")
    return result


LAUNCHERS = ("auto", "none", *BACKENDS)
_PORT = 29500
_RANKS_PER_NODE = 8
OF_A_LAUNCHER = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|LOCAL_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|NODE_RANK|ROLE_.*|"
    r"CROSS_RANK|CROSS_SIZE|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*|ZEROKIT_.*|CUDA_VISIBLE_DEVICES"
)


@dataclass(slots=True, kw_only=True)
class PreparedScript:
    """What the rehearsed process runs.

    Attributes:
        notes: one line each: what was taken, added or changed, and why.
        ranks: the plan's, where there is a plan.
        folder: where a plan's configuration was written.
        untrained: why the script will not train, as far as its source tells; None: it may.
        length_limit: at how many tokens the script cuts a sequence, and where that stands; None: not known.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    environment: dict[str, str]
    launcher: str
    ranks: int
    folder: Path
    untrained: str | None
    length_limit: tuple[int, str] | None = None
    notes: list[str] = field(default_factory=list)

    def config_title(self, path: str) -> str:
        """What the user calls a DeepSpeed configuration that was read."""
        if Path(path).is_relative_to(self.folder.absolute()):
            return f"the plan's {Path(path).name}"
        working = Path.cwd()
        return str(Path(path).relative_to(working)) if Path(path).is_relative_to(working) else path


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanUse:
    """Which plan or DeepSpeed file reaches the script, and how strictly, as for ``zerokit launch``.

    Attributes:
        folder: of the plan, or its plan.yaml; None: there is none.
        deepspeed: a file of the user's own in place of a plan; without any the script runs as it is.
        accelerate: the YAML that ``accelerate launch`` would be given, likewise.
        style: how the script takes its configuration; ``auto``: as its source tells.
    """

    folder: str | None = None
    deepspeed: str | None = None
    accelerate: str | None = None
    style: str = "auto"
    no_arguments: bool = False
    accept_mismatch: bool = False


def ranks_of(plan: PlanUse, gpus: int | None) -> int:
    """The ranks of a run: those asked for, the plan's or the file's, or one. Raises InputError: no such
    plan."""
    if gpus:
        return gpus
    if plan.accelerate is not None:
        return read_accelerate(plan.accelerate)[1] or 1
    return read_plan(plan.folder)[0].world_size if plan.folder is not None else 1


def without_launcher(base: Mapping[str, str]) -> dict[str, str]:
    """The variables without those by which a launcher tells a rank who it is."""
    return {name: value for name, value in base.items() if not OF_A_LAUNCHER.fullmatch(name)}


def prepare(
    target: Target, *, plan: PlanUse, ranks: int | None, rank: int, launcher: str, folder: Path,
    base: Mapping[str, str] = os.environ,
) -> PreparedScript:  # fmt: skip
    """Decide arguments, configuration and environment. Writes the configuration into ``folder``. Raises
    InputError: no such script, plan or launcher; or a script that contradicts its plan."""
    if launcher not in LAUNCHERS:
        raise InputError(f"--launcher {launcher}: use one of {', '.join(LAUNCHERS)}")
    facts = script_reader.read_target(target)
    style = facts.style if plan.style == "auto" else plan.style
    read: tuple[PlanFile | None, dict[str, Any] | None] | None = None
    if plan.folder is not None:
        read = read_plan(plan.folder)
    elif plan.deepspeed is not None:
        read = None, read_config(Path(plan.deepspeed))
    ranks = ranks_of(plan, ranks)
    if not 0 <= rank < ranks:
        raise InputError(f"--rank {rank}: there are ranks 0 to {ranks - 1}")
    chosen = _launcher(launcher, facts, target.arguments, ranks, has_plan=read is not None)
    if read is not None and read[1] is None:
        chosen = "accelerate"  # which alone tells ranks of FSDP2
    elif plan.accelerate is not None and launcher == "auto":
        chosen = "accelerate"
    notes = [f"started as by {chosen}" if chosen != "none" else "started without a launcher"]
    notes += misplaced(facts, target, "rehearse")
    script_options = script_arguments.ScriptOptions.read(facts, style, target.arguments)
    untrained = why_no_training(script_options)
    notes += [warning("untrained", f"no training step will be seen: {untrained}")] if untrained else []
    arguments = target.arguments
    environment = without_launcher(base)
    limit = longest_sequence(script_options)
    if read is None:
        plan_agreement.refuse_missing(script_options)
        notes += plan_agreement.of_arguments(script_options, ranks)
        if plan.accelerate is not None:
            environment |= read_accelerate(plan.accelerate)[0]
            if style not in ("accelerate", "trainer"):
                notes.append(
                    warning("unreached", f"{plan.accelerate} does not reach this script: {facts.why}")
                )
        notes += [warning("accelerate-variables", text) for text in warnings(environment)]
    else:
        arguments, planned = _planned(target, script_options, read, plan, ranks, chosen, folder, notes, base)
        environment |= planned
    if chosen != "none":
        environment |= _rank_variables(rank, ranks)
    if chosen == "deepspeed" and {"--local_rank", "--local-rank"} & facts.options:
        arguments = (f"--local_rank={rank % _RANKS_PER_NODE}", *arguments)
    return PreparedScript(
        target=target.name, is_module=target.script is None, arguments=arguments, environment=environment,
        launcher=chosen, ranks=ranks, folder=folder, untrained=untrained,
        notes=[as_options(with_level(note)) for note in notes],
        length_limit=(limit.value, limit.where) if limit is not None else None,
    )  # fmt: skip


def _launcher(
    launcher: str, facts: script_reader.ScriptFacts, arguments: tuple[str, ...], ranks: int, *, has_plan: bool
) -> str:
    if launcher != "auto":
        return launcher
    option_names = {argument.partition("=")[0] for argument in arguments}
    if has_plan or facts.style == "raw" or facts.calls_initialize or "--deepspeed" in option_names:
        return "deepspeed"
    return "torchrun" if ranks > 1 else "none"


def _planned(
    target: Target, script: script_arguments.ScriptOptions,
    read: tuple[PlanFile | None, dict[str, Any] | None],
    use: PlanUse, ranks: int, launcher: str, folder: Path, notes: list[str], base: Mapping[str, str],
) -> tuple[tuple[str, ...], dict[str, str]]:  # fmt: skip
    """Arguments and variables that ``zerokit launch --plan`` would give the script; adds to ``notes``."""
    plan, config = read
    style, facts = script.style, script.facts

    def adapt(script_style: str) -> adapt_config.Adapted:
        planned_ranks = plan.world_size if plan is not None else ranks
        return adapt_config.adapt(
            config or {}, style=script_style, device="cuda", ranks=ranks, planned_ranks=planned_ranks,
            facts=facts,
        )  # fmt: skip

    notes.append(f"{target.name} is taken as {script_reader.STYLE_WORDS[style]}: {facts.why}")
    agreed, path, told = NOT_ASKED, None, dict[str, str]()
    if plan is not None and config is None:
        file, changes = fsdp2_plan.accelerate_file(plan, ranks)
        notes += [*fsdp2_plan.check_reaches(plan, script), *changes]
        told = fsdp2_plan.variables(file)
    if plan is not None:
        agreed = plan_agreement.agree(
            PlannedCommand(plan, target), script, adapt("none").config if config is not None else {},
            on_cpu=False, no_arguments=use.no_arguments, accept_mismatch=use.accept_mismatch,
        )  # fmt: skip
    notes += agreed.notes
    if config is not None:
        adapted, path = adapt("none" if plan is None else style), folder / "ds_config.json"
        notes += [f"ds_config.json: {change}" for change in adapted.changes]
        notes += [warning("adapted", text) for text in adapted.warnings]
        path.write_text(json.dumps(adapted.config, indent=1))
    own = target.arguments
    extra = [*agreed.added, *commands.script_options(script, path)]
    cut = own.index("--") if "--" in own else len(own)
    plan_environment = (plan.chosen.get("environment") or {}) if plan is not None else {}
    devices = Devices(kind="cuda", ranks=ranks, gpu_indexes=tuple(range(ranks)), why="")
    command = commands.build(
        LaunchOptions(target=target, launcher="deepspeed" if launcher in ("auto", "none") else launcher),
        Placement(devices=devices, port=_PORT),
        commands.ScriptSetup(script=script, arguments=extra, config=path, plan_environment=plan_environment),
        run_dir=folder,
        base=base,
    )
    variables = {**without_launcher(command.set_variables), **told}
    return (*own[:cut], *extra, *own[cut:]), variables


def _rank_variables(rank: int, ranks: int) -> dict[str, str]:
    local = rank % _RANKS_PER_NODE
    return {
        "RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(min(ranks, _RANKS_PER_NODE)), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_PORT),
    }  # fmt: skip
