"""The files that start a plan's script elsewhere: a job of Slurm or Kubernetes, and single configurations."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from zerokit.catalog import gpus
from zerokit.domain.job import Job
from zerokit.emit import jobs
from zerokit.emit.accelerate import accelerate_yaml
from zerokit.emit.deepspeed import VARIANTS, deepspeed_config
from zerokit.emit.files import ACCELERATE_NAME, DEEPSPEED_NAMES
from zerokit.emit.plan_file import PlanFile
from zerokit.errors import InputError
from zerokit.launcher import fsdp2_plan, plan_agreement
from zerokit.launcher.command import script_options
from zerokit.launcher.given_plan import read_plan, read_plan_config, read_plan_file
from zerokit.launcher.rehearsed_plan import PlannedCommand
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.script.reader import STYLE_WORDS, STYLES, ScriptFacts, read_script
from zerokit.values import frozen_dataclass

Say = Callable[[str], None]


@frozen_dataclass
class JobScript:
    """The script that a job runs, as the user names it: its path and arguments, in which the options of the
    ``command`` that writes the job end (``emit sbatch``); the ``folder`` of its plan; how it takes its
    configuration (``auto`` reads its source); and ``NAME=VALUE`` for the job, beside the plan's."""

    command: str
    folder: str
    script: Sequence[str]
    style: str = "auto"
    variables: Sequence[str] = ()
    no_arguments: bool = False
    accept_mismatch: bool = False


@frozen_dataclass
class LaunchedScript:
    """The script of a job: its plan, its path and arguments, those that name the configuration included;
    ``style``: how it is told of its configuration beyond that (``none``: the command says all); the DeepSpeed
    file that it is given, under FSDP2 what Accelerate starts it with; and the job's variables."""

    plan: PlanFile
    style: str
    command: Sequence[str]
    config: Path
    environment: dict[str, str]


def deepspeed_json(folder: str, variant: str) -> str:
    """The DeepSpeed JSON of a plan, as its consumer takes it. Raises InputError: there is no such plan, or no
    such variant."""
    plan = read_plan_file(folder)
    return json.dumps(deepspeed_config(plan.strategy(), _job(plan), variant=variant), indent=2)


def _job(plan: PlanFile) -> Job:
    """What the file's starting points depend on."""
    return Job(method=str(plan.request.get("method") or "full"))


def accelerate_config(folder: str, form: str, config: str | None) -> str:
    """The YAML for ``accelerate launch --config_file``: ``file`` names a DeepSpeed JSON (``config``, or the
    plan's for Accelerate), ``plugin`` has the plugin's own keys. Raises InputError: there is no such plan, or
    it cannot be said in this form."""
    if form == "plugin" and config is not None:
        raise InputError("⟨deepspeed⟩: only with ⟨form⟩ file")
    plan = read_plan_file(folder)
    named = config or str(_config(plan, "accelerate").absolute())
    return accelerate_yaml(
        plan.strategy(),
        plan.nodes,
        ds_config_path=named if form == "file" else None,
        attention=str(plan.request.get("attention") or "sdpa"),
    )


def hostfile(folder: str, hosts: Sequence[str]) -> str:
    """DeepSpeed's hostfile for the nodes of a plan. Raises InputError: there is no such plan, or it is for
    another number of nodes."""
    plan = read_plan_file(folder)
    return jobs.hostfile(hosts, plan.strategy(), plan.nodes)


def sbatch_script(job: JobScript, *, job_name: str, time_limit: str | None, say: Say) -> str:
    """An sbatch script: one torchrun on each node of the plan, through srun. ``say`` hears how the script is
    taken. Raises InputError: the plan is not for GPUs, or the script cannot be given its configuration."""
    jobs.check_sbatch(job_name, time_limit)
    minutes = None if time_limit is None else jobs.read_time_limit(time_limit)
    launched = _launched(job, say, said_first=minutes)
    return jobs.sbatch_script(
        launched.plan.strategy(),
        launched.plan.nodes,
        launched.command,
        ds_config_path=str(launched.config),
        accelerate_file=str(launched.config) if launched.plan.engine == "fsdp2" else None,
        style=launched.style,
        environment=launched.environment,
        job_name=job_name,
        time_limit=time_limit,
    )


def kubernetes_manifest(job: JobScript, *, image: str, name: str, gpu_resource: str, say: Say) -> str:
    """A manifest: the DeepSpeed JSON as a ConfigMap, and an Indexed Job of one pod per node of the plan.
    Arguments as of :func:`sbatch_script`; the script is a path in the image. Raises InputError: the plan is
    not for GPUs, or the script cannot be given its configuration."""
    jobs.check_kubernetes(name, image, gpu_resource)
    launched = _launched(job, say, in_pod=True)
    plan, is_fsdp2 = launched.plan, launched.plan.engine == "fsdp2"
    variant = launched.style if launched.style in VARIANTS else "raw"
    return jobs.kubernetes_manifest(
        plan.strategy(),
        plan.nodes,
        launched.command,
        image=image,
        ds_config={} if is_fsdp2 else deepspeed_config(plan.strategy(), _job(plan), variant=variant),
        accelerate=fsdp2_plan.accelerate_file(plan, plan.world_size, plan.nodes)[0] if is_fsdp2 else None,
        style=launched.style,
        environment=launched.environment,
        name=name,
        gpu_resource=gpu_resource,
    )


def service_file(
    job: JobScript,
    service: str,
    *,
    name: str = "zerokit",
    image: str = "",
    gpu_name: str | None = None,
    say: Say,
) -> str:
    """What a service that finds its nodes itself starts a job with, of :data:`zerokit.emit.jobs.SERVICES`.
    The script and the plan's folder are sent there with the folder where the command is called.

    Args:
        gpu_name: what the service calls the GPU; None: as the catalogue says.

    Raises:
        InputError: as of :func:`sbatch_script`; the plan is elsewhere, or nobody says what the GPU is called.
    """
    jobs.check_service(name, image)
    launched = _launched(job, say)
    plan = launched.plan
    for path in (Path(job.script[0]), launched.config):
        if path.is_absolute() or ".." in path.parts:
            raise InputError(
                f"{path}: it is not in this folder, which {service} sends to the nodes; put it here, and "
                "name it by its path from here"
            )
    row = jobs.SERVICES[service]
    named = gpu_name or gpus.sold_as(plan.gpu, service)
    if named is None and row.finds_nodes:
        raise InputError(f"{plan.gpu}: what {service} calls it is not known; say it with ⟨gpu_name⟩")
    requirements = "requirements.txt" if row.finds_nodes and Path("requirements.txt").is_file() else ""
    if not (requirements or image):
        missing = ["⟨image⟩"] * ("image" in row.takes) + ["requirements.txt here"] * row.finds_nodes
        without = f"no {' and no '.join(missing)}: " if missing else ""
        say(f"{without}the nodes must have what the script imports")
    return jobs.service_file(
        service,
        plan.strategy(),
        plan.nodes,
        launched.command,
        gpu=named or "",
        ds_config_path=str(launched.config),
        accelerate_file=str(launched.config) if plan.engine == "fsdp2" else None,
        style=launched.style,
        environment=launched.environment,
        name=name,
        image=image,
        requirements=requirements,
    )


def _launched(
    job: JobScript, say: Say, *, in_pod: bool = False, said_first: str | None = None
) -> LaunchedScript:
    """The script as it will be started, with what ``launch`` would add. It is read before any plan is named:
    one of its arguments may say which. ``in_pod``: its files are those of a manifest, not the plan's.

    Raises:
        InputError: as of :func:`sbatch_script`; the script contradicts the plan, or cannot run it, or an
            option of the command stands among its arguments.
    """
    variables, path = jobs.read_variables(job.variables), Path(job.script[0])
    facts = _facts(path, job.style)
    target = Target(script=job.script[0], module=None, arguments=tuple(job.script[1:]))
    notes = plan_agreement.read_of_source(facts, target, job.command)[1]
    plan = read_plan_file(job.folder, engines=("deepspeed", "fsdp2"))
    if plan.cluster.get("gpu") == "cpu":
        raise InputError(
            f"⟨plan⟩ {job.folder}: it is for CPU ranks of one machine; plan for GPUs, with --gpu"
        )
    for note in (f"{job.folder}: {plan.title}", *filter(None, [said_first]), *notes):
        say(note)
    style = facts.style if job.style == "auto" else job.style
    if job.style == "auto" and style == "none":
        raise InputError(f"{path}: {facts.why}; say how it takes its configuration with ⟨style⟩")
    if job.style == "auto":
        say(f"{path} is taken as {STYLE_WORDS[style]}: {facts.why}")
    is_fsdp2, added = plan.engine == "fsdp2", list[str]()
    if in_pod:
        file = Path(jobs.ACCELERATE_IN_POD if is_fsdp2 else jobs.CONFIG_IN_POD)
    else:
        file = plan.folder / ACCELERATE_NAME if is_fsdp2 else _config(plan, style)
    for note in fsdp2_plan.accelerate_file(plan, plan.world_size, plan.nodes)[1] if is_fsdp2 else ():
        say(note)
    if style != "none":
        options, planned = ScriptOptions.read(facts, style, target.arguments), PlannedCommand(plan, target)
        for note in fsdp2_plan.check_reaches(plan, options) if is_fsdp2 else ():
            say(note)
        agreed = plan_agreement.agree(
            planned, options, read_plan(str(plan.folder))[1] or {}, on_cpu=False,
            no_arguments=job.no_arguments, accept_mismatch=job.accept_mismatch, writes_here=not in_pod,
        )  # fmt: skip
        added = [*agreed.added, *([] if is_fsdp2 else script_options(options, file))]
        not_rehearsed = None if facts.unreadable else planned.note(style, None, agreed)
        for note in (*agreed.notes, *filter(None, [not_rehearsed])):
            say(note)
    if style == "trainer" and not facts.parses_training_arguments:
        say(
            "nothing is added to the script's arguments, as it is not seen to parse TrainingArguments; the "
            f"plan assumes: {shlex.join(plan.trainer_arguments)}"
        )
    # a raw script has its options now; the others get theirs by the environment, or Accelerate's launcher
    style = "none" if style == "raw" or is_fsdp2 else style
    environment = {**plan.environment, **variables}
    return LaunchedScript(
        plan=plan, style=style, command=[*job.script, *added], config=file, environment=environment
    )


def _facts(path: Path, style: str) -> ScriptFacts:
    if style not in ("auto", *STYLES):
        raise InputError(f"⟨style⟩ {style}: use auto, {', '.join(STYLES)}")
    if style != "auto" and not path.exists():
        return ScriptFacts(path=path, unreadable="it is not here")
    try:
        return read_script(path, None)
    except InputError as error:
        joint = " With" if error.marked.endswith("?") else "; with"
        raise InputError(
            f"{error.marked}{joint} ⟨style⟩ raw, accelerate or trainer it need not be here"
        ) from None


def _config(plan: PlanFile, variant: str) -> Path:
    """The plan's DeepSpeed file for a consumer; where there is none, the raw one. Raises InputError: it
    cannot be read, or names what only a user may name."""
    paths = [plan.folder / DEEPSPEED_NAMES[name] for name in (variant, "raw") if name in DEEPSPEED_NAMES]
    path = next((path for path in paths if path.is_file()), paths[-1])
    if path.is_file():
        read_plan_config(path)
    return path
