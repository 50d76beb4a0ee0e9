"""``zerokit rehearse``: run a training script on a GPU that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zerokit.cli.script_command import ScriptCommand
from zerokit.errors import InputError
from zerokit.fields import as_options

if TYPE_CHECKING:
    from zerokit.timing.host_speed import HostSpeed

INCOMPLETE_EXIT_CODE = 14


@click.command(
    cls=ScriptCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="Example: zerokit rehearse --gpus 8 --gpu h100-sxm-80gb train.py --deepspeed ds_config.json",
)
@click.option("--plan", metavar="DIR", help="A folder (or plan.yaml) that `zerokit plan` wrote.")
@click.option("--gpus", type=click.IntRange(1, 65536), help="Ranks in all. Default: the plan's, or 1.")
@click.option("--gpu", metavar="NAME", help="A GPU of `zerokit gpus`.")
@click.option("--vram", metavar="SIZE", help="Memory per GPU, such as 24GiB.")
@click.option("--rank", default=0, show_default=True, type=click.IntRange(0), help="Which rank to run.")
@click.option(
    "--steps",
    default=5,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Optimizer steps at most; fewer where the peaks of all phases repeat.",
)
@click.option(
    "--launcher",
    default="auto",
    show_default=True,
    metavar="auto|none|deepspeed|torchrun|accelerate",
    help="Whose environment the script gets.",
)
@click.option(
    "--host-speed",
    type=click.FloatRange(0.05, 20),
    metavar="FACTOR",
    help="The run's host over the reference host, as `zerokit doctor --measure` prints it on that machine.",
)
@click.option("--no-arguments", is_flag=True, help="Add no option from the plan to the script's own.")
@click.option("--accept-mismatch", is_flag=True, help="Run a script that contradicts the plan all the same.")
@click.option("--out", metavar="DIR", help="Write rehearsal.json and the script's output there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option(
    "-m", "--module", metavar="PKG.MOD", help="Run a module, as python -m does, instead of a script."
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(arguments: tuple[str, ...], **options: Any) -> int:
    """Run SCRIPT, unmodified, as one rank of N on a GPU that is not there.

    No GPU, no weights and no arithmetic: every allocation goes through a model of PyTorch's caching
    allocator. Nothing is written, downloaded or pushed.
    """
    from zerokit.launcher import consoles
    from zerokit.rehearsal.conduct import RehearsalRequest, rehearse
    from zerokit.rehearsal.script import PlanUse

    module = options["module"]
    if module is None and not arguments:
        raise InputError("rehearse: name a script, for example: zerokit rehearse --gpu h200 train.py")
    resolved = consoles.target_of(module, arguments)
    if resolved.note is not None:
        _say(resolved.note)
    gpu, named, notes = _gpu(options)
    out = Path(options["out"]) if options["out"] else None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    request = RehearsalRequest(
        target=resolved.target,
        gpu=gpu,
        gpus=options["gpus"],
        plan=PlanUse(
            folder=options["plan"],
            no_arguments=options["no_arguments"],
            accept_mismatch=options["accept_mismatch"],
        ),
        rank=options["rank"],
        steps=options["steps"],
        launcher=options["launcher"],
        memory_named=named,
        host=_host(options["host_speed"]),
        output=out / "output.txt" if out is not None else None,
    )
    for note in notes:
        _say(note)
    done = rehearse(request, _say)
    if out is not None:
        (out / "rehearsal.json").write_text(json.dumps(done.to_dict(), indent=1))
    if options["as_json"]:
        click.echo(json.dumps(done.to_dict(), indent=1))
    else:
        from zerokit.cli.rehearsal_show import show

        show(done)
    if not done.complete:
        return 3 if done.fits is False else INCOMPLETE_EXIT_CODE
    return 3 if done.fits is False else 0


def _host(factor: float | None) -> HostSpeed | None:
    from zerokit.timing.host_speed import HostSpeed

    return HostSpeed(factor=factor, source="--host-speed") if factor is not None else None


def _say(text: str) -> None:
    click.echo(f"zerokit: {text}", err=True)


def _gpu(options: dict[str, Any]) -> tuple[Any, bool, tuple[str, ...]]:
    """The GPU, whether its memory was named, and what was assumed."""
    from zerokit.catalog import gpus
    from zerokit.planner.hardware import DEFAULT_GPU
    from zerokit.units import parse_bytes

    size = parse_bytes(options["vram"], "--vram") if options["vram"] else None
    if options["gpu"]:
        gpu = gpus.lookup(options["gpu"])
        return (gpu.with_total_memory(size) if size else gpu), True, ()
    if size:
        gpu, reason = gpus.for_vram(size)
        return gpu.with_total_memory(size), True, (as_options(reason),)
    if options["plan"]:
        planned = _gpu_of_plan(options["plan"])
        if planned is not None:
            return planned, True, ()
    gpu = gpus.load(DEFAULT_GPU)
    return gpu, False, (f"assumed {gpu.title}: neither --gpu nor --vram was given",)


def _gpu_of_plan(path: str) -> Any:
    from zerokit.catalog import gpus
    from zerokit.launcher.prepare import read_plan

    plan, _ = read_plan(path)
    name = plan.cluster.get("gpu") if isinstance(plan.cluster, dict) else None
    return gpus.lookup(name) if isinstance(name, str) else None
