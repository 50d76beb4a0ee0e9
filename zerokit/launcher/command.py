"""The launcher's command line and environment, exactly as they will be run.

Argument lists only; the environment that is set is kept apart from the one that is passed on, because
only the former may be shown or written down.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zerokit.domain import environment as variables
from zerokit.errors import InputError
from zerokit.launcher import rank_start
from zerokit.launcher.backends import BOOTSTRAP, LaunchCommand, Start, backend_of
from zerokit.launcher.nodes.cluster import run_id
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Devices, Placement
from zerokit.launcher.rank import deadman
from zerokit.launcher.rank.checkpoints import RESUME_VARIABLE
from zerokit.launcher.rank.memory_snapshots import SNAPSHOT_VARIABLE
from zerokit.launcher.rank.resumed import RANKS_VARIABLE, RESUMED_VARIABLE, UNIVERSAL_VARIABLE
from zerokit.launcher.rank.step_limit import STOP_VARIABLE
from zerokit.launcher.rank.trackers import OFF_VARIABLE
from zerokit.launcher.rank_start import THREADS_VARIABLE, cores_per_rank
from zerokit.machine import architectures
from zerokit.script.arguments import ScriptOptions, tool_of
from zerokit.script.entry_points import Target

# Left by an outer launcher (a notebook, a pod's torchrun): would make our ranks believe they are others.
_SCRUBBED = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|LOCAL_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|NODE_RANK|ROLE_RANK|"
    r"ROLE_WORLD_SIZE|ROLE_NAME|CROSS_RANK|CROSS_SIZE|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*|"
    r"ACCELERATE_(USE_.*|DEEPSPEED_.*|MIXED_PRECISION|CONFIG_DS_FIELDS|GRADIENT_.*|TORCH_DEVICE)|ZEROKIT_.*|"
    r"PARALLELISM_CONFIG_.*"
)
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSetup:
    """What the script is given: options beside the user's own, the DeepSpeed JSON, the run folder's copy of
    the plan, variables that the plan sets where the user has not, and those for the threads of OpenMP in each
    rank on GPUs (without them the launcher decides)."""

    script: ScriptOptions
    arguments: list[str] = field(default_factory=list)
    config: Path | None = None
    plan: Path | None = None
    plan_environment: Mapping[str, object] = field(default_factory=dict)
    thread_variables: Mapping[str, str] = field(default_factory=dict)


def script_options(script: ScriptOptions, config: Path | None) -> list[str]:
    """The options that give a raw script, or a tool that asks for one, its configuration, unless the user
    gave them.

    ``deepspeed.add_config_arguments`` knows ``--deepspeed`` (a flag) and ``--deepspeed_config FILE``.
    """
    style, facts, file = script.style, script.facts, script.file
    option_names = {argument.partition("=")[0] for argument in script.user_arguments}
    if style == "trainer" and config is not None:
        option = tool_of(facts.package).deepspeed_option
        is_given = option in option_names or (file is not None and file.values.get("deepspeed"))
        return [] if option is None or is_given else [f"{option}={config}"]
    if style != "raw" or config is None or facts.own_configuration is not None:
        return []
    options = []
    takes_flag = facts.adds_deepspeed_arguments or "--deepspeed" in facts.flags
    if (takes_flag or not facts.options) and "--deepspeed" not in option_names:
        options.append("--deepspeed")
    if "--deepspeed_config" not in option_names:
        options += ["--deepspeed_config", str(config)]
    return options


def build(
    options: LaunchOptions,
    placement: Placement,
    setup: ScriptSetup,
    *,
    run_dir: Path,
    base: Mapping[str, str],
) -> LaunchCommand:
    """Put the command together. ``base``: the environment to start from. Raises InputError: an unknown
    launcher, a combination that cannot work, or a plan that sets what it may not."""
    command = LaunchCommand(argv=[])
    _environment(command, placement.devices, setup, run_dir, base)
    if placement.devices.kind == "cpu" and _accelerate_joins_ranks(setup):
        command.set_variables["ACCELERATE_USE_CPU"] = "true"
    if placement.remote:
        command.set_variables[deadman.VARIABLE] = f"{placement.alive_seconds:g}"
    if options.stop_after_steps is not None:
        command.set_variables[STOP_VARIABLE] = str(options.stop_after_steps)
    if options.resume_from is not None:
        command.set_variables[RESUME_VARIABLE] = options.resume_from
    if options.point is not None:
        command.set_variables[RESUMED_VARIABLE] = str(options.point.checkpoint.path)
        command.set_variables[RANKS_VARIABLE] = str(options.point.ranks)
        if (files := options.point.to_convert(placement.ranks)) is not None:
            command.set_variables[UNIVERSAL_VARIABLE] = str(files.folder)
    if options.snapshot is not None:
        if placement.devices.kind == "cpu":
            raise InputError("⟨snapshot⟩ is of GPU memory, and these ranks run on CPUs")
        command.set_variables[SNAPSHOT_VARIABLE] = options.snapshot
    if options.no_trackers:
        command.set_variables[OFF_VARIABLE] = "1"
    script = bootstrap_argv(options.target, setup.arguments)
    backend = backend_of(options.launcher, placement.slurm)
    if backend.expands_arguments and any("$" in word for word in script):
        script = [script[0], rank_start.pack(script[1:], {})]
    start = Start(
        port=placement.port, ranks=placement.devices.ranks,
        hosts=None if placement.hosts is None else len(placement.hosts),
        gpu_indexes=placement.devices.gpu_indexes if placement.devices.kind == "cuda" else None,
        script=script, run_dir=run_dir, base=base, hostfile=options.hostfile,
        takes_local_rank=setup.script.facts.takes_local_rank(options.target.arguments),
    )  # fmt: skip
    backend.complete(command, start)
    return command


def _environment(
    command: LaunchCommand, devices: Devices, setup: ScriptSetup, run_dir: Path, base: Mapping[str, str]
) -> None:
    setting = command.set_variables
    command.unset_variables = sorted(name for name in base if _SCRUBBED.fullmatch(name))
    setting["ZEROKIT_RUN_DIR"] = str(run_dir)
    setting["ZEROKIT_RUN_ID"] = run_id(str(run_dir))
    folder = os.getcwd()  # noqa: PTH109
    setting[rank_start.WORKING_FOLDER] = folder
    python_path = base.get("PYTHONPATH", "")
    if python_path:
        entries = python_path.split(os.pathsep)  # an empty one is the folder
        python_path = os.pathsep.join(os.path.join(folder, one) if one else folder for one in entries)  # noqa: PTH118
        setting["PYTHONPATH"] = python_path
    setting[rank_start.PYTHON_PATH] = python_path
    setting["ZEROKIT_DEVICE"] = devices.kind
    if setup.plan is not None:
        setting["ZEROKIT_PLAN"] = str(setup.plan)
    if setup.script.style in ("accelerate", "trainer") and setup.config is not None:
        setting["ACCELERATE_USE_DEEPSPEED"] = "true"
        setting["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = str(setup.config)
    if devices.kind == "cpu":
        setting["DS_ACCELERATOR"] = "cpu"
        setting["CUDA_VISIBLE_DEVICES"] = ""
        if THREADS_VARIABLE not in base:
            setting[THREADS_VARIABLE] = str(cores_per_rank(devices.ranks))
    else:
        # nvidia-smi counts in this order; CUDA's own default is fastest first.
        setting["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        setting.update(setup.thread_variables)
        command.unset_variables += [
            name for name in ("CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR") if name in base
        ]
        if setup.script.style != "none" and architectures.unreadable(base.get(architectures.VARIABLE, "")):
            setting[architectures.VARIABLE] = architectures.readable(base[architectures.VARIABLE])
    _plan_environment(setting, devices, setup.plan_environment, base)


def _accelerate_joins_ranks(setup: ScriptSetup) -> bool:
    """Whether it is Accelerate itself, without DeepSpeed, that makes one run of the ranks.

    Without a GPU, and without being told of the CPU, it takes each rank for a run of its own (accelerate
    1.15, ``state.py:769``); told of the CPU it leaves a script's own DeepSpeed out (``state.py:974``).
    """
    script, facts = setup.script, setup.script.facts
    if setup.config is not None or script.style not in ("accelerate", "trainer") or facts.calls_initialize:
        return False
    deepspeed_names = {"deepspeed", "DeepSpeedPlugin"} & (facts.mentions | facts.keywords)
    named = any("deepspeed" in argument for argument in script.user_arguments)
    in_file = script.file is not None and script.file.values.get("deepspeed")
    return not (deepspeed_names or named or in_file)


def _plan_environment(
    setting: dict[str, str], devices: Devices, plan_environment: Mapping[str, object], base: Mapping[str, str]
) -> None:
    for name, value in plan_environment.items():
        if (problem := variables.problem_of(name, value)) is not None:
            raise InputError(f"plan.yaml: chosen.environment.{problem}")
        if name not in (*_ALLOCATOR, *setting) and (name not in base or _SCRUBBED.fullmatch(name)):
            setting[name] = str(value)
    if devices.kind != "cuda" or any(name in base for name in _ALLOCATOR):
        return
    allocator = next((str(plan_environment[n]) for n in _ALLOCATOR if n in plan_environment), None)
    # Both names: torch before 2.9 knows only the first, later ones prefer the second.
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        setting[name] = allocator or "expandable_segments:True"


def bootstrap_argv(target: Target, extra: list[str]) -> list[str]:
    """The bootstrap with the target; ``extra`` goes after the user's own arguments, but before a ``--`` among
    them, after which a parser sees no options."""
    cut = target.arguments.index("--") if "--" in target.arguments else len(target.arguments)
    arguments = [*target.arguments[:cut], *extra, *target.arguments[cut:]]
    # Twice: DeepSpeed parses the command line twice, and each time argparse drops a ``--``; what comes
    # after it is never taken for an abbreviated option of the launcher's.
    if target.script is None:
        return [str(BOOTSTRAP), "--", "--", "-m", str(target.module), *arguments]
    return [str(BOOTSTRAP), "--", "--", target.script, *arguments]
