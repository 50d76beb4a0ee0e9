"""``zerokit emit``: write another file from a plan: a variant, a hostfile, a job script."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zerokit.cli.base import Group, ScriptCommand, no_script
from zerokit.cli.say import say
from zerokit.commands import DEFAULT_FOLDER
from zerokit.emit.jobs import SERVICES
from zerokit.errors import InputError

if TYPE_CHECKING:
    from zerokit.launcher.job_files import JobScript

_SCRIPT = {"ignore_unknown_options": False, "allow_interspersed_args": False}


_plan = click.option(
    "--plan", "folder", metavar="DIR", default=DEFAULT_FOLDER, show_default=True, help="What `plan` wrote."
)
_out = click.option("--out", metavar="FILE", help="File to write. [default: standard output]")
_OF_JOB = (
    click.option("--style", default="auto", metavar="auto|raw|accelerate|trainer|none",
                 help="How the script takes its DeepSpeed configuration; auto reads its source, none gives "
                 "it none."),
    click.option("--env", "variables", metavar="NAME=VALUE", multiple=True,
                 help="Also set in the job; may be repeated."),
    click.option("--no-arguments", is_flag=True,
                 help="Add nothing from the plan to the script's own arguments."),
    click.option("--accept-mismatch", is_flag=True,
                 help="Write the job of a script that contradicts the plan all the same."),
    _plan,
    click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]…"),
)  # fmt: skip


def _for_job(function: Callable[..., None]) -> Callable[..., None]:
    """A command for the script of a job: its options, gathered in the argument ``job``."""

    @functools.wraps(function)
    def wrapper(script: tuple[str, ...], out: str | None, **options: Any) -> None:
        from zerokit.launcher.job_files import JobScript

        if not script:
            raise no_script()
        if out is not None and Path(out).resolve() == Path(script[0]).resolve():
            raise InputError(
                f"--out {out}: the job would replace the script that it starts; name another file"
            )
        command = f"emit {click.get_current_context().info_name}"
        names = ("folder", "style", "variables", "no_arguments", "accept_mismatch")
        job = JobScript(command=command, script=script, **{name: options.pop(name) for name in names})
        function(job, out=out, **options)

    command: Callable[..., None] = wrapper
    for decorate in reversed(_OF_JOB):
        command = decorate(command)
    return command


@click.group("emit", cls=Group)
def command() -> None:
    """Write another file from a plan.

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
    """The DeepSpeed JSON for one kind of script."""
    from zerokit.launcher import job_files

    _write(job_files.deepspeed_json(folder, variant) + "\n", out)


@command.command("accelerate")
@click.option(
    "--form",
    type=click.Choice(["file", "plugin"]),
    metavar="file|plugin",
    default="file",
    show_default=True,
    help="file: names a DeepSpeed JSON. plugin: the plugin's own keys, which can say less.",
)
@click.option(
    "--deepspeed", "config", metavar="FILE", help="The JSON to name. [default: the plan's for Accelerate]"
)
@_plan
@_out
def accelerate_command(form: str, config: str | None, folder: str, out: str | None) -> None:
    """The YAML for `accelerate launch`.

    With sequence parallelism it has a parallelism_config too.
    """
    from zerokit.launcher import job_files

    _write(job_files.accelerate_config(folder, form, config), out)


@command.command("hostfile")
@click.argument("hosts", nargs=-1, required=True, metavar="HOST…")
@_plan
@_out
def hostfile_command(hosts: tuple[str, ...], folder: str, out: str | None) -> None:
    """A hostfile: HOST slots=N for each of the plan's nodes."""
    from zerokit.launcher import job_files

    _write(job_files.hostfile(folder, hosts), out)


@command.command("sbatch", cls=ScriptCommand, context_settings=_SCRIPT)
@click.option("--job-name", default="zerokit", show_default=True, metavar="NAME")
@click.option(
    "--time", "time_limit", metavar="LIMIT", help="As Slurm takes it: 12:00:00 or 2-00:00:00; 12 is minutes."
)
@_for_job
@_out
def sbatch_command(job: JobScript, job_name: str, time_limit: str | None, out: str | None) -> None:
    """An sbatch script: one torchrun (under FSDP2 one accelerate launch) on each node, through srun.

    SCRIPT gets the arguments of the plan that you did not give, as under `zerokit launch`. Submit it
    from the folder where SCRIPT and the plan's folder are.
    """
    from zerokit.launcher import job_files

    _write(job_files.sbatch_script(job, job_name=job_name, time_limit=time_limit, say=say), out)


@command.command("kubernetes", cls=ScriptCommand, context_settings=_SCRIPT)
@click.option("--image", required=True, metavar="IMAGE", help="The container image that holds SCRIPT.")
@click.option("--name", default="zerokit", show_default=True, metavar="NAME", help="Of the Job.")
@click.option("--gpu-resource", default="nvidia.com/gpu", show_default=True, metavar="RESOURCE")
@_for_job
@_out
def kubernetes_command(job: JobScript, image: str, name: str, gpu_resource: str, out: str | None) -> None:
    """A Kubernetes manifest.

    It holds the DeepSpeed JSON as a ConfigMap, and an Indexed Job of one pod per node.
    SCRIPT is a path in the image; with --style auto it must lie here under the same path.
    """
    from zerokit.launcher import job_files

    text = job_files.kubernetes_manifest(job, image=image, name=name, gpu_resource=gpu_resource, say=say)
    _write(text, out)


_OF_SERVICES = {
    "name": click.option("--name", default="zerokit", show_default=True, metavar="NAME", help="Of the job."),
    "image": click.option(
        "--image", default="", metavar="IMAGE", help="The container image with what SCRIPT imports."
    ),
    "gpu_name": click.option(
        "--gpu-name", metavar="NAME", help="What the service calls the GPU. [default: as known]"
    ),
}
_SENT = (
    "One torchrun (under FSDP2 one accelerate launch) on each node. SCRIPT and the plan's folder are sent "
    "with the folder where the job is started, in which SCRIPT is a relative path."
)


def _add_service(service: str) -> None:
    def service_command(job: JobScript, out: str | None, **options: Any) -> None:
        from zerokit.launcher import job_files

        _write(job_files.service_file(job, service, say=say, **options), out)

    row = SERVICES[service]
    taking: Callable[..., None] = _for_job(_out(service_command))
    for name in reversed(row.takes):
        taking = _OF_SERVICES[name](taking)
    help = f"{row.title}.\n\n{_SENT} Start it with: {row.start}"
    command.command(service, cls=ScriptCommand, context_settings=_SCRIPT, help=help)(taking)


for _service in SERVICES:
    _add_service(_service)


def _write(text: str, out: str | None) -> None:
    from zerokit.files import keep_former, write_whole

    if out is None:
        click.echo(text.encode("utf-8", "surrogateescape"), nl=False)
        return
    path = Path(out)
    replaced = path.is_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = keep_former(path, text)
        write_whole(path, text, through_links=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    former = "" if kept is None else f"; what it held is now in {kept}"
    say(f"{out}: {'replaced' if replaced else 'written'}{former}")
