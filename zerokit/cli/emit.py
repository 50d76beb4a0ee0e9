"""``zerokit emit``: one file out of a plan: another variant, a hostfile, a job script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zerokit.cli.say import say
from zerokit.errors import InputError
from zerokit.planner.plan_folder import DEFAULT_FOLDER

if TYPE_CHECKING:
    from zerokit.emit.plan_file import PlanFile

_SCRIPT = {"ignore_unknown_options": False, "allow_interspersed_args": False}
_plan = click.option(
    "--plan", "folder", metavar="DIR", default=DEFAULT_FOLDER, show_default=True, help="What `plan` wrote."
)
_out = click.option("--out", metavar="FILE", help="Default: standard output.")
_environment = click.option(
    "--env", "variables", metavar="NAME=VALUE", multiple=True, help="Also set in the job; may be repeated."
)
_style = click.option(
    "--style",
    default="auto",
    metavar="auto|raw|accelerate|trainer|none",
    help="How the script takes its DeepSpeed configuration; auto reads its source.",
)


@click.group("emit")
def command() -> None:
    """Write one more file out of a plan.

    `zerokit plan` itself writes the DeepSpeed files and an accelerate YAML that names one of them.
    """


@command.command("deepspeed")
@click.option(
    "--variant",
    default="raw",
    show_default=True,
    metavar="raw|trainer|accelerate",
    help="raw: deepspeed.initialize. trainer: a Hugging Face Trainer. accelerate: an Accelerator().",
)
@_plan
@_out
def deepspeed_command(variant: str, folder: str, out: str | None) -> None:
    """The DeepSpeed JSON, as its consumer takes it."""
    from zerokit.domain.job import Job
    from zerokit.emit.deepspeed import deepspeed_config

    strategy = _read(folder).strategy()
    _write(json.dumps(deepspeed_config(strategy, Job(), variant=variant), indent=2) + "\n", out)


@command.command("accelerate")
@click.option(
    "--form",
    type=click.Choice(["file", "plugin"]),
    default="file",
    show_default=True,
    help="file: names a DeepSpeed JSON. plugin: the plugin's own keys, which can say less.",
)
@click.option(
    "--deepspeed", "config", metavar="FILE", help="The JSON to name. Default: the plan's for Accelerate."
)
@_plan
@_out
def accelerate_command(form: str, config: str | None, folder: str, out: str | None) -> None:
    """The YAML for `accelerate launch --config_file`; with sequence parallel, its parallelism_config too."""
    from zerokit.emit.accelerate import accelerate_yaml

    plan = _read(folder)
    if form == "plugin" and config is not None:
        raise InputError("--deepspeed: only with --form file")
    named = config or str(_config(plan, "accelerate").absolute())
    attention = str(plan.request.get("attention") or "sdpa")
    _write(
        accelerate_yaml(
            plan.strategy(),
            plan.nodes,
            ds_config_path=named if form == "file" else None,
            attention=attention,
        ),
        out,
    )


@command.command("hostfile")
@click.argument("hosts", nargs=-1, required=True, metavar="HOST…")
@_plan
@_out
def hostfile_command(hosts: tuple[str, ...], folder: str, out: str | None) -> None:
    """DeepSpeed's hostfile: HOST slots=N for each of the plan's nodes."""
    from zerokit.emit.jobs import hostfile

    plan = _read(folder)
    _write(hostfile(hosts, plan.strategy(), plan.nodes), out)


@command.command("sbatch", context_settings=_SCRIPT)
@_style
@click.option("--job-name", default="zerokit", show_default=True, metavar="NAME")
@click.option("--time", "time_limit", metavar="LIMIT", help="As Slurm takes it: 12:00:00 or 2-00:00:00.")
@_environment
@_plan
@_out
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]…")
def sbatch_command(
    script: tuple[str, ...],
    style: str,
    job_name: str,
    time_limit: str | None,
    variables: tuple[str, ...],
    folder: str,
    out: str | None,
) -> None:
    """An sbatch script: one torchrun on each node, through srun.

    Submit it from the folder where SCRIPT and the plan's folder are.
    """
    from zerokit.emit.jobs import sbatch_script

    plan = _read(folder, for_gpus=True)
    taken, argv, config = _script(plan, style, script)
    _write(
        sbatch_script(
            plan.strategy(),
            plan.nodes,
            argv,
            ds_config_path=str(config),
            style=taken,
            environment=_variables(plan, variables),
            job_name=job_name,
            time_limit=time_limit,
        ),
        out,
    )


@command.command("kubernetes", context_settings=_SCRIPT)
@click.option("--image", required=True, metavar="IMAGE", help="The container image that holds SCRIPT.")
@_style
@click.option("--name", default="zerokit", show_default=True, metavar="NAME", help="Of the Job.")
@click.option("--gpu-resource", default="nvidia.com/gpu", show_default=True, metavar="RESOURCE")
@_environment
@_plan
@_out
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]…")
def kubernetes_command(
    script: tuple[str, ...],
    image: str,
    style: str,
    name: str,
    gpu_resource: str,
    variables: tuple[str, ...],
    folder: str,
    out: str | None,
) -> None:
    """A manifest: the DeepSpeed JSON as a ConfigMap, and an Indexed Job of one pod per node.

    SCRIPT is a path in the image; with --style auto it must lie here under the same path.
    """
    from zerokit.domain.job import Job
    from zerokit.emit.deepspeed import VARIANTS, deepspeed_config
    from zerokit.emit.jobs import CONFIG_IN_POD, kubernetes_manifest

    plan = _read(folder, for_gpus=True)
    taken, argv, _ = _script(plan, style, script, config=Path(CONFIG_IN_POD))
    variant = taken if taken in VARIANTS else "raw"
    _write(
        kubernetes_manifest(
            plan.strategy(),
            plan.nodes,
            argv,
            image=image,
            ds_config=deepspeed_config(plan.strategy(), Job(), variant=variant),
            style=taken,
            environment=_variables(plan, variables),
            name=name,
            gpu_resource=gpu_resource,
        ),
        out,
    )


def _read(folder: str, *, for_gpus: bool = False) -> PlanFile:
    from zerokit.emit import plan_file

    plan = plan_file.read(folder)
    if for_gpus and plan.cluster.get("gpu") == "cpu":
        raise InputError(f"--plan {folder}: it is for CPU ranks of one machine; plan for GPUs, with --gpu")
    return plan


def _config(plan: PlanFile, variant: str) -> Path:
    """The plan's DeepSpeed file for a consumer; where there is none, the raw one."""
    from zerokit.emit.files import DEEPSPEED_NAMES

    paths = [plan.folder / DEEPSPEED_NAMES[name] for name in (variant, "raw") if name in DEEPSPEED_NAMES]
    return next((path for path in paths if path.is_file()), paths[-1])


def _script(
    plan: PlanFile, style: str, script: tuple[str, ...], config: Path | None = None
) -> tuple[str, list[str], Path]:
    """How the script takes its configuration, its whole command, and the file that it is given."""
    from zerokit.launcher.command import script_options
    from zerokit.script.reader import STYLE_WORDS, STYLES, ScriptFacts, read_script

    if style not in ("auto", *STYLES):
        raise InputError(f"--style {style}: use auto, {', '.join(STYLES)}")
    path = Path(script[0])
    if style != "auto" and not path.exists():
        facts = ScriptFacts(path=path)
    else:
        try:
            facts = read_script(path, None)
        except InputError as error:
            raise InputError(
                f"{error}; with --style raw, accelerate or trainer it need not be here"
            ) from None
    taken = facts.style if style == "auto" else style
    if style == "auto":
        say(f"{path} is taken as {STYLE_WORDS[taken]}: {facts.why}")
    if taken == "none" and style == "auto":
        raise InputError(f"{path}: {facts.why}; say how it takes its configuration with --style")
    if taken in ("trainer", "accelerate") and plan.strategy().pipeline_parallel > 1:
        raise InputError(
            f"{path} is taken as {STYLE_WORDS[taken]}, which cannot run a pipeline: the plan is for a "
            "script that builds a PipelineModule (--style raw)"
        )
    if taken == "trainer":
        text = " ".join(plan.trainer_arguments)
        click.echo(f"zerokit: the plan holds with these TrainingArguments: {text}", err=True)
    file = config or _config(plan, taken)
    extra = script_options(taken, facts, script[1:], file)
    # a raw script has its options now; the others get theirs by the environment
    return ("none" if taken == "raw" else taken), [*script, *extra], file


def _variables(plan: PlanFile, given: tuple[str, ...]) -> dict[str, str]:
    found = dict(plan.environment)
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise InputError(f"--env {text}: write NAME=VALUE")
        found[name] = value
    return found


def _write(text: str, out: str | None) -> None:
    from zerokit.files import write_whole

    if out is None:
        click.echo(text.encode("utf-8", "surrogateescape"), nl=False)
        return
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text, through_links=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error.strerror or error}") from None
