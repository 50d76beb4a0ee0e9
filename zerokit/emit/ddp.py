"""Training without an engine → Accelerate's YAML of one GPU, or of several that each hold the whole model
(accelerate 1.15, commands/config/config_args.py)."""

from __future__ import annotations

from typing import Any

from zerokit.domain.ddp_settings import ddp
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TORCH_NAMES
from zerokit.emit.fsdp2 import plain_config
from zerokit.strictload.yamldump import dump_yaml

REASONS = {
    "distributed_type": "MULTI_GPU: every GPU has the whole model, gradients are all-reduced; NO: one GPU",
    "mixed_precision": "forward runs under autocast in it, on the weights as the script loads them",
}
"""Key of Accelerate's YAML -> why it has its value."""


def accelerate_config(strategy: Strategy, nodes: int) -> dict[str, Any]:
    """The configuration as a dictionary."""
    settings = ddp(strategy.settings)
    kind = "MULTI_GPU" if strategy.world_size > 1 else "NO"
    return plain_config(strategy, nodes, kind, settings.precision if settings.autocast else "no")


def accelerate_yaml(strategy: Strategy, nodes: int) -> str:
    """The configuration as YAML text, with what to change by hand as comments."""
    settings = strategy.settings
    lines = [
        "For: accelerate launch --config_file THIS train.py",
        "The script sets the batch: "
        f"{settings.micro_batch} per GPU, {settings.gradient_accumulation} accumulation.",
    ]
    if nodes > 1:
        lines.append("On node k add: --machine_rank k --main_process_ip HOST --main_process_port PORT")
    return dump_yaml(accelerate_config(strategy, nodes), header="\n".join(lines))


def script_must(strategy: Strategy, job: Job) -> list[str]:
    """What only the script can do: load the weights in their dtype, and checkpoint."""
    settings = ddp(strategy.settings)
    dtype = TORCH_NAMES["fp32" if settings.weight_bytes == 4 else settings.precision]
    todo = [f"load the weights with from_pretrained(…, dtype=torch.{dtype})"]
    if settings.autocast:
        where = f"a Trainer: --{settings.precision} True" if settings.by_trainer else "torch.autocast"
        todo.append(f"run forward under autocast ({where})")
    if strategy.checkpointing == "full":
        reentrant = job.is_reentrant(settings)
        todo.append(
            "checkpoint: model.gradient_checkpointing_enable("
            f'gradient_checkpointing_kwargs={{"use_reentrant": {reentrant}}})'
        )
    return todo
