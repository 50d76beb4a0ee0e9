"""The files that start a plan's script elsewhere: a job of Slurm or Kubernetes, and single configurations."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from zerokit.domain.job import Job
from zerokit.emit import jobs
from zerokit.emit.accelerate import accelerate_yaml
from zerokit.emit.deepspeed import VARIANTS, deepspeed_config
from zerokit.emit.files import DEEPSPEED_NAMES
from zerokit.emit.plan_file import PlanFile
from zerokit.errors import InputError
from zerokit.launcher import plan_agreement
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
class ConfiguredScript:
    """The script of a job: its path and arguments, those that name the configuration included; ``style``: how
    it is told of its configuration beyond that (``none``: the command says all); and the DeepSpeed file that
    it is given."""

    style: str
    command: Sequence[str]
    config: Path


def deepspeed_json(folder: str, variant: str) -> str:
    """The DeepSpeed JSON of a plan, as its consumer takes it.

    Raises:
        InputError: there is no such plan, or no such variant.
    """
    plan = read_plan_file(folder)
    return json.dumps(deepspeed_config(plan.strategy(), _job(plan), variant=variant), indent=2)


def _job(plan: PlanFile) -> Job:
    """What the file's starting points depend on."""
    return Job(method=str(plan.request.get("method") or "full"))


def accelerate_config(folder: str, form: str, config: str | None) -> str:
    """The YAML for ``accelerate launch --config_file``: ``file`` names a DeepSpeed JSON (``config``, or the
    plan's for Accelerate), ``plugin`` has the plugin's own keys.

    Raises:
        InputError: there is no such plan, or it cannot be said in this form.
    """
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
    """DeepSpeed's hostfile for the nodes of a plan.

    Raises:
        InputError: there is no such plan, or it is for another number of nodes.
    """
    plan = read_plan_file(folder)
    return jobs.hostfile(hosts, plan.strategy(), plan.nodes)


def sbatch_script(job: JobScript, *, job_name: str, time_limit: str | None, say: Say) -> str:
    """An sbatch script: one torchrun on each node of the plan, through srun. ``say`` hears how the script is
    taken.

    Raises:
        InputError: the plan is not for GPUs, or the script cannot be given its configuration.
    """
    jobs.check_sbatch(job_name, time_limit)
    minutes = None if time_limit is None else jobs.read_time_limit(time_limit)
    plan, launched, environment = _launched(job, say, said_first=minutes)
    return jobs.sbatch_script(
        plan.strategy(),
        plan.nodes,
        launched.command,
        ds_config_path=str(launched.config),
        style=launched.style,
        environment=environment,
        job_name=job_name,
        time_limit=time_limit,
    )


def kubernetes_manifest(job: JobScript, *, image: str, name: str, gpu_resource: str, say: Say) -> str:
    """A manifest: the DeepSpeed JSON as a ConfigMap, and an Indexed Job of one pod per node of the plan.
    Arguments as of :func:`sbatch_script`; the script is a path in the image.

    Raises:
        InputError: the plan is not for GPUs, or the script cannot be given its configuration.
    """
    jobs.check_kubernetes(name, image, gpu_resource)
    plan, launched, environment = _launched(job, say, config=Path(jobs.CONFIG_IN_POD))
    variant = launched.style if launched.style in VARIANTS else "raw"
    return jobs.kubernetes_manifest(
        plan.strategy(),
        plan.nodes,
        launched.command,
        image=image,
        ds_config=deepspeed_config(plan.strategy(), _job(plan), variant=variant),
        style=launched.style,
        environment=environment,
        name=name,
        gpu_resource=gpu_resource,
    )


def _launched(
    job: JobScript, say: Say, *, config: Path | None = None, said_first: str | None = None
) -> tuple[PlanFile, ConfiguredScript, dict[str, str]]:
    """The plan, its script as it will be started, and the job's variables. The script is read before any plan
    is named: one of its arguments may say which.

    Raises:
        InputError: as of :func:`sbatch_script`, or an option of the command stands among its arguments.
    """
    variables = jobs.read_variables(job.variables)
    facts = _facts(Path(job.script[0]), job.style)
    target = Target(script=job.script[0], module=None, arguments=tuple(job.script[1:]))
    notes = plan_agreement.read_of_source(facts, target, job.command)[1]
    plan = read_plan_file(job.folder)
    if plan.cluster.get("gpu") == "cpu":
        raise InputError(
            f"⟨plan⟩ {job.folder}: it is for CPU ranks of one machine; plan for GPUs, with --gpu"
        )
    environment = {**plan.environment, **variables}
    for note in (f"{job.folder}: {plan.title}", *filter(None, [said_first]), *notes):
        say(note)
    return plan, _configure(plan, job, facts, target, say=say, config=config), environment


def _configure(
    plan: PlanFile, job: JobScript, facts: ScriptFacts, target: Target, *, say: Say, config: Path | None
) -> ConfiguredScript:
    """How a script takes its configuration (None: the plan's), and its whole command: what ``launch`` would
    add is added.

    Raises:
        InputError: the script takes none, contradicts the plan, or cannot run it.
    """
    script, style, path = job.script, job.style, Path(job.script[0])
    resolved_style = facts.style if style == "auto" else style
    if style == "auto" and resolved_style != "none":
        say(f"{path} is taken as {STYLE_WORDS[resolved_style]}: {facts.why}")
    if resolved_style == "none" and style == "auto":
        raise InputError(f"{path}: {facts.why}; say how it takes its configuration with ⟨style⟩")
    file = config or _config(plan, resolved_style)
    added: list[str] = []
    if resolved_style != "none":
        options = ScriptOptions.read(facts, resolved_style, target.arguments)
        planned = PlannedCommand(plan, target)
        agreed = plan_agreement.agree(
            planned, options, read_plan(str(plan.folder))[1], on_cpu=False, no_arguments=job.no_arguments,
            accept_mismatch=job.accept_mismatch, writes_here=config is None,
        )  # fmt: skip
        added = [*agreed.added, *script_options(options, file)]
        not_rehearsed = None
        if not facts.unreadable:
            not_rehearsed = planned.note(resolved_style, None, agreed)
        for note in (*agreed.notes, *filter(None, [not_rehearsed])):
            say(note)
    if resolved_style == "trainer" and not facts.parses_training_arguments:
        say(
            "nothing is added to the script's arguments, as it is not seen to parse TrainingArguments; the "
            f"plan assumes: {shlex.join(plan.trainer_arguments)}"
        )
    # a raw script has its options now; the others get theirs by the environment
    return ConfiguredScript(
        style="none" if resolved_style == "raw" else resolved_style,
        command=[*script, *added],
        config=file,
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
    """The plan's DeepSpeed file for a consumer; where there is none, the raw one.

    Raises:
        InputError: it cannot be read, or names what only a user may name.
    """
    paths = [plan.folder / DEEPSPEED_NAMES[name] for name in (variant, "raw") if name in DEEPSPEED_NAMES]
    path = next((path for path in paths if path.is_file()), paths[-1])
    if path.is_file():
        read_plan_config(path)
    return path
