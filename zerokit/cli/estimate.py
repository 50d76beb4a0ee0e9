"""``zerokit estimate``: predict memory and step time of one configuration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli.base import WORDS, Command
from zerokit.cli.say import say, write, write_json
from zerokit.commands import command_text
from zerokit.errors import InputError, NothingFits
from zerokit.units import GIB

if TYPE_CHECKING:
    from zerokit.cli.plan_text import NextCommand
    from zerokit.domain.strategy import Strategy
    from zerokit.planner.documents import Estimate

_BATCH_PER_GPU = ("micro_batch", "gradient_accumulation")


@click.command(
    "estimate",
    cls=Command,
    examples=(
        (
            "An existing DeepSpeed file",
            "zerokit estimate --model llama-3.1-8b --gpus 8 --gpu h200 --deepspeed d.json",
        ),
        (
            "An accelerate YAML with FSDP2",
            "zerokit estimate --model llama-3.1-8b --gpu h200 --accelerate fsdp2.yaml",
        ),
        ("LoRA on one card", "zerokit estimate --model llama-3.1-8b --method lora --gpus 1 --gpu rtx-4090"),
        ("Serving", "zerokit estimate --model llama-3.1-8b --inference --gpus 1 --gpu l40s"),
    ),
)
@shared_options.shared("estimate")
@click.option(
    "--deepspeed", "deepspeed", metavar="FILE", help="A ds_config.json, which then decides the strategy."
)
@click.option(
    "--accelerate",
    "accelerate",
    metavar="FILE",
    help="An accelerate YAML with FSDP2 or DeepSpeed, or a Trainer's arguments with FSDP, likewise.",
)
@shared_options.trainer_file
@shared_options.explain
@click.option("--json", "as_json", is_flag=True, help="Print the estimate as JSON on standard output.")
def command(
    deepspeed: str | None,
    accelerate: str | None,
    file: str | None,
    kind: str | None,
    explain: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Predict memory and step time of ONE configuration.

    What is not given takes its plain value: ZeRO-0 (or the file's stage), micro-batch 1, no
    accumulation, no parallelism but data, no checkpointing. Ends with exit code 3 where it does not fit.
    """
    from zerokit import planner
    from zerokit.cli import plan_text

    for name in shared_options.SEARCHED:
        if options[name] == "auto":
            raise InputError(f"⟨{name}⟩ auto: an estimate is of one strategy; name its value, or use `plan`")
    read = shared_options.read_file(file, kind, click.get_current_context().meta[WORDS])
    result = planner.estimate(options, deepspeed=deepspeed, accelerate=accelerate, file=read, say=say)
    # 3 as `plan` ends where nothing fits; the answer itself stands on standard output all the same
    code = NothingFits.exit_code if result.fits is False else 0
    strategy, job = result.planned.strategy, result.planned.job
    has_batch = deepspeed or accelerate or any(options.get(name) for name in _BATCH_PER_GPU)
    batch = strategy.global_batch if has_batch and not job.inference else None
    if as_json:
        write_json(result.to_dict())
    else:
        if accelerate:
            nodes = result.planned.cluster.nodes
            of_file: dict[str, object] = {"gpus": strategy.world_size}
            of_file |= {"nodes": nodes} if nodes > 1 else {}
            of_file |= {"engine": strategy.engine} if strategy.engine != "deepspeed" else {}
            options |= {name: options.get(name) or number for name, number in of_file.items()}
        searched = _plan_command(options, batch, file=file)
        following = None
        in_file = strategy.sequence_parallel == strategy.pipeline_parallel == 1
        if accelerate:
            following = _accelerate_with(accelerate)
        elif deepspeed and in_file:
            following = _launch_with(deepspeed, result)
        elif file is None and not job.inference:
            host = _host_ram(result)
            same = _plan_command(
                {**options, **_pinned(strategy), **host}, batch, same_strategy=True, file=file
            )
            does = "plans this strategy and writes its files"
            if strategy.engine == "fsdp2":  # no option fixes it
                does = "plans it, with gathered weights kept where that is faster, and writes its files"
            if host:
                does += f", for nodes with {host['host_ram']} of host memory"
            following = plan_text.NextCommand(command=same, does=does)
        write(plan_text.estimate(result, explain=explain, plan_command=searched, next_command=following))
    return code


def _accelerate_with(file: str) -> NextCommand | None:
    """A run with the accelerate YAML that was estimated; None: a Trainer's arguments."""
    from zerokit.cli.plan_text import NextCommand

    if file.endswith(".json"):
        return None
    command = f"accelerate launch --config_file {shlex.quote(file)} train.py"
    return NextCommand(
        command=command, does="runs the script with this file", comment="train.py: your script",
        without_plan=True,
    )  # fmt: skip


def _launch_with(file: str, result: Estimate) -> NextCommand:
    """A launch with the file that was estimated, and what it leaves to the script."""
    from zerokit.cli.plan_text import NextCommand
    from zerokit.emit.deepspeed import trainer_arguments
    from zerokit.script.file_mismatches import added_arguments, decided_by, of_trainer

    strategy, cluster = result.planned.strategy, result.planned.cluster
    arguments = trainer_arguments(strategy, result.planned.job)
    words = (*arguments, *added_arguments(of_trainer(None, result.file_config or {})))  # name, value, …
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    decided = decided_by(result.file_config or {})
    left = {name: value for name, value in pairs.items() if name.removeprefix("--") not in decided}
    in_file = {name: value for name, value in pairs.items() if name not in left}
    of_left, of_file = (shlex.join(word for pair in one.items() for word in pair) for one in (left, in_file))
    if not left:
        decides = (
            f"the file decides every setting of this estimate; a Trainer must be given the same: {of_file}"
        )
    else:
        decides = (
            f"this estimate is of a script that does what the file leaves to it, a Trainer with {of_left}"
        )
        decides += f", and with the values that the file has: {of_file}" if in_file else ""
    ranks = ["--gpus", str(cluster.gpus)] if cluster.nodes == 1 else []
    device = ["--device", "cpu"] if result.planned.cluster.on_cpu else []
    return NextCommand(
        command=command_text("launch", "--deepspeed", file, *device, *ranks, "train.py"),
        does=f"runs the script with this file and adds nothing to its arguments; {decides}",
        comment="train.py: your script",
        without_plan=True,
    )


def _host_ram(result: Estimate) -> dict[str, str]:
    """``--host-ram`` for a plan of this strategy, where it needs more than is assumed of such nodes."""
    from zerokit.search.explain import host_lack_words

    planned, cluster = result.planned, result.planned.cluster
    if cluster.host_ram_bytes is not None or not host_lack_words(planned.candidate.memory, cluster):
        return {}
    return {"host_ram": f"{-(-planned.estimate.host_bytes_per_node // GIB)}GiB"}


def _pinned(strategy: Strategy) -> dict[str, object]:
    """The strategy in options of ``plan``, but for its degrees, which stay as given, and bucket sizes."""
    settings = strategy.settings
    offload = {"offload_optimizer": settings.optimizer_device} if settings.divides_states else {}
    offload |= {"offload_param": settings.weights_device} if settings.divides_weights else {}
    return {
        "zero": settings.zero_stage,
        **offload,
        "micro_batch": settings.micro_batch,
        "gradient_accumulation": settings.gradient_accumulation,
        "checkpointing": strategy.checkpointing,
    }


def _plan_command(
    options: Mapping[str, Any],
    global_batch: int | None,
    *,
    same_strategy: bool = False,
    file: str | None = None,
) -> str:
    """``zerokit plan`` with the model, the hardware and the job that were given, the ``global_batch`` of the
    batch per GPU that was, so that the steps compare, and of the strategy its engine; for the
    ``same_strategy`` all that was given of it."""
    from zerokit.planner.options import OPTIONS

    given = {
        option.name: options.get(option.name)
        for option in OPTIONS
        if same_strategy
        or option.name == "engine"
        or (option.group != "Strategy" and option.name not in _BATCH_PER_GPU)
    }
    given["global_batch"] = given["global_batch"] or global_batch
    if given["device"] == "auto":
        del given["device"]
    return command_text("plan", *([file] if file else []), options=given)
