"""The configuration files of one plan, by its engine: for DeepSpeed a JSON per consumer and the accelerate
YAML; for FSDP2 that YAML, a Trainer's JSON and the code of a plain loop; without an engine that YAML."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TORCH_NAMES
from zerokit.emit import fsdp2
from zerokit.emit.accelerate import accelerate_yaml
from zerokit.emit.deepspeed import emit_deepspeed, script_must
from zerokit.values import frozen_dataclass

DEEPSPEED_NAMES: Mapping[str, str] = {
    "raw": "ds_config.json",
    "trainer": "ds_config.trainer.json",
    "accelerate": "ds_config.accelerate.json",
}
"""Variant -> file name. Only what differs from the raw one is written."""
ACCELERATE_NAME = "accelerate.yaml"
TRAINER_NAME = "fsdp_config.json"
"""What a Trainer takes beside ``--fsdp`` as ``--fsdp_config``, where no accelerate YAML starts it."""
CODE_NAME = "fully_shard.py"
LOADING_NAME = "distributed_config.json"
"""What a script makes its ``DistributedConfig`` of, where Transformers divides the model as it loads it."""


@frozen_dataclass
class PlanFiles:
    """File name -> text; kind -> file name; and why each key of the first file has its value."""

    texts: Mapping[str, str]
    names: Mapping[str, str]
    reasons: Mapping[str, str]


def plan_files(strategy: Strategy, job: Job, *, nodes: int, folder: Path) -> PlanFiles:
    """The files of a plan in ``folder``, whose whole path is written into the accelerate YAML: accelerate
    looks a relative one up in the folder that it is started from."""
    return emitter_of(strategy).files(strategy, job, nodes, folder)


@frozen_dataclass
class Emitter:
    """How the strategies of one engine are written.

    Attributes:
        names: of all files that it may write.
        files: for so many nodes, into a folder.
        config: what a plan publishes of the strategy in place of files, by key.
        script_must: what only the script can do for them, each as a sentence with its Python; the last
            argument: it is launched with the plan, which adds to a Trainer's arguments.
        launched: whether ``zerokit launch`` takes them; else ``accelerate launch`` alone does.
    """

    names: tuple[str, ...]
    files: Callable[[Strategy, Job, int, Path], PlanFiles]
    config: Callable[[Strategy, Job, int], dict[str, Any]]
    script_must: Callable[[Strategy, Job, bool], list[str]]
    launched: bool = True


def emitter_of(strategy: Strategy) -> Emitter:
    """The one of its engine, or of what divides the model as it is loaded."""
    return _EMITTERS["parts" if strategy.is_loaded_in_parts else strategy.engine]


def _deepspeed_files(strategy: Strategy, job: Job, nodes: int, folder: Path) -> PlanFiles:
    # neither a Trainer nor Accelerate can run a pipeline
    variants = DEEPSPEED_NAMES if strategy.pipeline_parallel == 1 else ("raw",)
    emitted = {variant: emit_deepspeed(strategy, job, variant=variant) for variant in variants}
    texts, names = {}, {}
    for variant, emitted_file in emitted.items():
        if variant == "raw" or emitted_file.config != emitted["raw"].config:
            name = DEEPSPEED_NAMES[variant]
            texts[name] = json.dumps(emitted_file.config, indent=2) + "\n"
            names["deepspeed" if variant == "raw" else f"deepspeed_{variant}"] = name
    if "accelerate" in emitted:
        named = names.get("deepspeed_accelerate", names["deepspeed"])
        texts[ACCELERATE_NAME] = accelerate_yaml(
            strategy, nodes, ds_config_path=str((folder / named).absolute()), attention=job.attention
        )
        names["accelerate"] = ACCELERATE_NAME
    return PlanFiles(texts=texts, names=names, reasons=emitted["raw"].reasons)


def _fsdp2_files(strategy: Strategy, job: Job, nodes: int, folder: Path) -> PlanFiles:
    reasons: dict[str, str] = {}
    texts, names = dict[str, str](), dict[str, str]()
    if strategy.sequence_parallel == 1:  # a plain loop would have to share sequences itself
        texts, names = {CODE_NAME: fsdp2.fully_shard_code(strategy)}, {"code": CODE_NAME}
    if fsdp2.is_said_by_accelerate(strategy):
        texts[ACCELERATE_NAME] = fsdp2.accelerate_yaml(strategy, nodes)
        texts[TRAINER_NAME] = json.dumps(fsdp2.trainer_config(strategy), indent=2) + "\n"
        names |= {"accelerate": ACCELERATE_NAME, "trainer": TRAINER_NAME}
        reasons = fsdp2.reasons(fsdp2.accelerate_config(strategy, nodes))
    return PlanFiles(texts=texts, names=names, reasons=reasons)


def _fsdp2_config(strategy: Strategy, job: Job, nodes: int) -> dict[str, Any]:
    said = fsdp2.is_said_by_accelerate(strategy)
    return {
        "deepspeed_config": None,
        "accelerate_config": fsdp2.accelerate_config(strategy, nodes) if said else None,
    }


def _parts_files(strategy: Strategy, job: Job, nodes: int, folder: Path) -> PlanFiles:
    config = fsdp2.distributed_config(strategy)
    text = fsdp2.yaml_text(_parts_config(strategy, nodes), nodes, [fsdp2.batch_line(strategy)])
    return PlanFiles(
        texts={LOADING_NAME: json.dumps(config, indent=2) + "\n", ACCELERATE_NAME: text},
        names={"loading": LOADING_NAME, "accelerate": ACCELERATE_NAME},
        reasons={"tp_size": "ranks of a node that divide each layer, and read the same batch",
                 "fsdp_size": "ranks that share each part of the weights, and read other batches"},
    )  # fmt: skip


def _parts_config(strategy: Strategy, nodes: int) -> dict[str, Any]:
    """Accelerate's YAML of ranks that divide nothing themselves."""
    return fsdp2.plain_config(strategy, nodes, "MULTI_GPU", "no")


_DDP_REASONS = {
    "distributed_type": "MULTI_GPU: every GPU has the whole model, gradients are all-reduced; NO: one GPU",
    "mixed_precision": "forward runs under autocast in it, on the weights as the script loads them",
}
"""Key of Accelerate's YAML -> why it has its value."""


def _ddp_files(strategy: Strategy, job: Job, nodes: int, folder: Path) -> PlanFiles:
    text = fsdp2.yaml_text(_ddp_config(strategy, nodes), nodes, [fsdp2.batch_line(strategy)])
    names = {"accelerate": ACCELERATE_NAME}
    return PlanFiles(texts={ACCELERATE_NAME: text}, names=names, reasons=_DDP_REASONS)


def _ddp_config(strategy: Strategy, nodes: int) -> dict[str, Any]:
    """Accelerate's YAML of one GPU, or of several that each hold the whole model (accelerate 1.15,
    commands/config/config_args.py)."""
    from zerokit.domain.ddp_settings import ddp

    settings, kind = ddp(strategy.settings), "MULTI_GPU" if strategy.world_size > 1 else "NO"
    return fsdp2.plain_config(strategy, nodes, kind, settings.precision if settings.autocast else "no")


def _ddp_must(strategy: Strategy, job: Job) -> list[str]:
    """What only the script can do: load the weights in their dtype, and checkpoint."""
    from zerokit.domain.ddp_settings import ddp

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


_EMITTERS: Mapping[str, Emitter] = {
    "deepspeed": Emitter(
        names=(*DEEPSPEED_NAMES.values(), ACCELERATE_NAME),
        files=_deepspeed_files,
        config=lambda strategy, job, nodes: {"deepspeed_config": emit_deepspeed(strategy, job).config},
        script_must=script_must,
    ),
    "fsdp2": Emitter(
        names=(ACCELERATE_NAME, TRAINER_NAME, CODE_NAME),
        files=_fsdp2_files,
        config=_fsdp2_config,
        script_must=lambda strategy, job, launched: fsdp2.script_must(strategy, job),
    ),
    "parts": Emitter(
        names=(LOADING_NAME, ACCELERATE_NAME),
        files=_parts_files,
        config=lambda strategy, job, nodes: {
            "deepspeed_config": None,
            "accelerate_config": _parts_config(strategy, nodes),
        },
        script_must=lambda strategy, job, launched: fsdp2.script_must(strategy, job),
        launched=False,
    ),
    "ddp": Emitter(
        names=(ACCELERATE_NAME,),
        files=_ddp_files,
        config=lambda strategy, job, nodes: {
            "deepspeed_config": None,
            "accelerate_config": _ddp_config(strategy, nodes),
        },
        script_must=lambda strategy, job, launched: _ddp_must(strategy, job),
        launched=False,
    ),
}
NAMES = frozenset(name for emitter in _EMITTERS.values() for name in emitter.names)
"""Of all files that some plan may have."""
