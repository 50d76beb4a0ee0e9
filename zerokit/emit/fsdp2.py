"""FSDP2 strategy → the files that say it: Accelerate's YAML, a Trainer's ``fsdp_config``, a loop's code.

The inverse of :mod:`zerokit.domain.fsdp2_config`. Accelerate 1.12 to 1.15 (utils/dataclasses.py,
FullyShardedDataParallelPlugin; parallelism_config.py); Transformers 5.23 (training_args.py:2775).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.fsdp2_settings import PARALLELISM_PREFIX, fsdp2
from zerokit.domain.job import Job
from zerokit.domain.settings import value_at
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TORCH_NAMES
from zerokit.errors import InputError
from zerokit.strictload.yamltext import dump_yaml

REASONS: Mapping[str, str] = {
    "mixed_precision": "forward and backward compute in it; trained weights are kept in fp32 (no: as loaded)",
    "fsdp_config.fsdp_version": "FSDP2 (fully_shard): the one that is predicted",
    "fsdp_config.fsdp_reshard_after_forward": "true frees a layer's gathered weights after its forward, and "
    "gathers them again for its backward",
    "fsdp_config.fsdp_offload_params": "true moves weights, gradients and optimizer to the CPU",
    "fsdp_config.fsdp_activation_checkpointing": "true recomputes every layer in backward",
    "fsdp_config.fsdp_auto_wrap_policy": "each layer of the model's own is gathered by itself",
    "fsdp_config.fsdp_cpu_ram_efficient_loading": "false: every rank divides the weights that it "
    "loads; true: rank 0 sends its own",
    "fsdp_config.fsdp_state_dict_type": "whole weights are saved, by rank 0",
    f"parallelism_config.{PARALLELISM_PREFIX}dp_replicate_size": "groups of ranks that each hold all weights",
    f"parallelism_config.{PARALLELISM_PREFIX}dp_shard_size": "ranks of a group, over which weights are "
    "divided",
    f"parallelism_config.{PARALLELISM_PREFIX}cp_size": "ranks that share each sequence: they get the same "
    "batch, and divide the weights, too",
    f"parallelism_config.{PARALLELISM_PREFIX}cp_comm_strategy": "keys and values of all these ranks are "
    "gathered at once (alltoall: sent from one to the next)",
}
"""Dotted key of Accelerate's YAML -> why it has its value."""


def is_said_by_accelerate(strategy: Strategy) -> bool:
    """Whether Accelerate's YAML can say it: it wraps in its own way, and reduces in forward's dtype."""
    settings = fsdp2(strategy.settings)
    return settings.wrapping == "accelerate" and settings.reduce_dtype is None


def accelerate_config(strategy: Strategy, nodes: int) -> dict[str, Any]:
    """The configuration as a dictionary.

    Layers to wrap are not named: Accelerate takes the model's own ``_no_split_modules``.

    Raises:
        InputError: Accelerate's YAML cannot say the strategy.
    """
    if not is_said_by_accelerate(strategy):
        raise InputError("a dtype of reduction and groups of layers can only be given in the script's code")
    if strategy.world_size != strategy.zero_ranks:
        raise InputError(
            "no file of Accelerate's divides layers over tensor parallel ranks: Transformers does, as it "
            "loads the model with the plan's distributed_config.json"
        )
    settings = fsdp2(strategy.settings)
    block = {f"fsdp_{name}": value for name, value in _options(strategy, "offload_params").items()}
    mixed = settings.precision if _is_mixed(strategy) else "no"
    config = {**plain_config(strategy, nodes, "FSDP", mixed), "fsdp_config": block}
    if sizes := parallelism(strategy):
        config["parallelism_config"] = sizes
    return config


def plain_config(
    strategy: Strategy, nodes: int, kind: str, mixed_precision: str | None, **blocks: Any
) -> dict[str, Any]:
    """What Accelerate's YAML says whatever trains; ``kind``: its ``distributed_type``."""
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": kind,
        **blocks,
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": mixed_precision,
        "num_machines": nodes,
        "num_processes": strategy.world_size,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    return {key: value for key, value in config.items() if value is not None}


def yaml_text(config: dict[str, Any], nodes: int, lines: list[str]) -> str:
    """Such a configuration as YAML text, with what to change by hand as comments."""
    if nodes > 1:
        lines = [*lines, "On node k add: --machine_rank k --main_process_ip HOST --main_process_port PORT"]
    return dump_yaml(config, header="\n".join(["For: accelerate launch --config_file THIS train.py", *lines]))


def batch_line(strategy: Strategy) -> str:
    """The comment on what the script sets itself."""
    settings = strategy.settings
    each = f"{settings.micro_batch} per GPU, {settings.gradient_accumulation} accumulation"
    return f"The script sets the batch: {each}."


def reasons(config: Mapping[str, Any]) -> dict[str, str]:
    """Why each key that the strategy decides has its value."""
    return {key: why for key, why in REASONS.items() if value_at(config, key) is not None}


def accelerate_yaml(strategy: Strategy, nodes: int) -> str:
    """The configuration as YAML text, with what to change by hand as comments."""
    settings = fsdp2(strategy.settings)
    lines = [
        batch_line(strategy),
        "The layers that are wrapped are the model's own (_no_split_modules); name others with",
        "fsdp_transformer_layer_cls_to_wrap.",
    ]
    if strategy.checkpointing == "full":
        lines.append("fsdp_activation_checkpointing checkpoints the layers: the script must not do so, too,")
        lines.append("and, unless it is a Trainer's, sets model.config.use_cache = False.")
    if settings.loads_once:
        lines.append("The script loads the weights on one rank of each node, as the plan says.")
    if settings.precision != "fp32" and not _is_mixed(strategy):
        lines.append(f"The script loads the weights in {settings.precision}, and they are trained in it.")
    return yaml_text(accelerate_config(strategy, nodes), nodes, lines)


def trainer_config(strategy: Strategy) -> dict[str, Any]:
    """A Trainer's ``fsdp_config``, which holds beside ``--fsdp``; replicas are variables of the run
    (:func:`parallelism`)."""
    return _options(strategy, "cpu_offload")


def distributed_config(strategy: Strategy) -> dict[str, Any]:
    """What Transformers' ``DistributedConfig`` is made of (distributed/configuration_utils.py, 5.23)."""
    settings = fsdp2(strategy.settings)
    return {
        "tp_size": strategy.tensor_parallel,
        "fsdp_size": strategy.data_parallel // settings.replicas,
        "dp_replicate_size": settings.replicas,
        "fsdp_mixed_precision": _is_mixed(strategy),
    }


def parallelism(strategy: Strategy) -> dict[str, Any]:
    """``parallelism_config`` of Accelerate, keys with their prefix; empty: ranks are one group of shards."""
    settings = fsdp2(strategy.settings)
    sizes: dict[str, Any] = groups(settings.replicas, strategy.data_parallel, strategy.sequence_parallel)
    if strategy.sequence_parallel > 1:
        sizes[f"{PARALLELISM_PREFIX}cp_comm_strategy"] = settings.rotation
    return sizes


def groups(replicas: int, ranks: int, shared: int = 1) -> dict[str, int]:
    """Sizes in that block, of groups of data-parallel ranks that each hold all weights, ``shared`` of which
    share a sequence; empty: of one group that shares none."""
    sizes = {"dp_replicate_size": replicas, "dp_shard_size": ranks // replicas}
    sizes |= {"cp_size": shared} if shared > 1 else {}
    is_one = replicas == shared == 1
    return {} if is_one else {f"{PARALLELISM_PREFIX}{name}": size for name, size in sizes.items()}


def fully_shard_code(strategy: Strategy) -> str:
    """A function in Python that divides a Transformers model as the strategy does."""
    from zerokit.emit.jobs import render

    settings = fsdp2(strategy.settings)
    reduced = settings.reduce_dtype or settings.precision
    return render(
        "fully_shard.py.j2",
        settings=settings,
        shards=strategy.zero_ranks // settings.replicas,
        checkpointing=strategy.checkpointing == "full",
        dtype=TORCH_NAMES[settings.precision],
        reduce_dtype=TORCH_NAMES[reduced],
        mixed=_is_mixed(strategy) or settings.reduce_dtype is not None,
        casts=_is_mixed(strategy),
    )


def script_must(strategy: Strategy, job: Job) -> list[str]:
    """What only the script can do: checkpoint once, and load the weights on one rank of a node where every
    rank would not have the host memory."""
    todo = []
    if strategy.is_loaded_in_parts:
        todo.append(
            "load the model with from_pretrained(…, dtype=torch.float32, distributed_config="
            "DistributedConfig.from_dict(json.load(open(FILE)))) of transformers.distributed, FILE being the "
            "plan's distributed_config.json, and give it to a Trainer of Transformers 5.19 or later without "
            "--fsdp and --bf16"
        )
        if strategy.checkpointing == "full":
            todo.append("checkpoint: a Trainer's --gradient_checkpointing True")
        return todo
    if strategy.checkpointing == "full":
        todo.append(
            "checkpoint once: fsdp_activation_checkpointing of accelerate.yaml, with "
            "model.config.use_cache = False (a Trainer sets it), or model.gradient_checkpointing_enable()"
        )
    if strategy.sequence_parallel > 1:
        todo.append(
            "in a plain Accelerate loop give batches position_ids and shift_labels, and run forward and "
            "backward in accelerator.maybe_context_parallel(buffers=tensors, buffer_seq_dims=[1] * "
            "len(tensors), no_restore_buffers={*tensors}); a Trainer does so (without packing, and with "
            "sequences padded to one length)"
        )
    if job.method == "qlora":
        todo.append(
            f"give bnb_4bit_quant_storage=torch.{TORCH_NAMES[strategy.settings.precision]}, too (axolotl and "
            "LLaMA-Factory do): without it Accelerate 1.14 and later leave packed weights whole on every "
            "GPU, older ones fail, and in another dtype the gathered weights cannot be unpacked"
        )
    settings = fsdp2(strategy.settings)
    wide = settings.frozen_bytes == 4 or job.method == "full"
    loaded = TORCH_NAMES["fp32" if wide else settings.precision]
    if job.method in job.defaults.loads_wide and not wide:
        todo.append(f"load the weights with from_pretrained(…, dtype=torch.{loaded})")
    if settings.loads_once:
        todo.append(
            "load the weights once per node (with accelerate.yaml or fsdp_config.json; from_pretrained of "
            "Transformers 5 alone loads them on every rank): after Accelerator() or TrainingArguments(), "
            f"from_pretrained(…, dtype=torch.{loaded}) where LOCAL_RANK is 0; elsewhere the same with "
            'device_map={"": "meta"}, then model._apply(lambda t: torch.empty_like(t, device="cpu") if '
            "t.is_meta else t) and model.tie_weights()"
        )
    return todo


def _is_mixed(strategy: Strategy) -> bool:
    """Whether forward casts weights from fp32, as Accelerate makes trained ones (fsdp_utils.py:815, 1.15)."""
    return strategy.settings.precision != "fp32" and strategy.settings.state_element_bytes == 4


def _options(strategy: Strategy, offload: str) -> dict[str, Any]:
    """What the plugin is given, by the names that both files have but for that of offload."""
    settings = fsdp2(strategy.settings)
    return {
        "version": 2,
        "activation_checkpointing": strategy.checkpointing == "full",
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "cpu_ram_efficient_loading": settings.broadcasts,
        offload: settings.offload,
        "reshard_after_forward": settings.reshard_after_forward,
        "state_dict_type": "FULL_STATE_DICT",
    }
