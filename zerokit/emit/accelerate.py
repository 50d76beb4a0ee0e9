"""Strategy → the YAML that ``accelerate launch --config_file`` reads (accelerate 1.15).

Two ways: naming the DeepSpeed JSON (the default; then the plugin keys must be absent, because
Accelerate refuses them beside ``deepspeed_config_file``), or with the plugin keys alone, which can
say less: bucket sizes then stay at DeepSpeed's defaults.
"""

from __future__ import annotations

from typing import Any

from zerokit.domain.deepspeed_settings import deepspeed
from zerokit.domain.fsdp2_settings import PARALLELISM_PREFIX
from zerokit.domain.strategy import Strategy
from zerokit.emit.fsdp2 import parallelism, plain_config, yaml_text
from zerokit.errors import InputError


def accelerate_config(
    strategy: Strategy, nodes: int, *, ds_config_path: str | None, attention: str = "sdpa"
) -> dict[str, Any]:
    """The configuration as a dictionary; ``ds_config_path=None`` writes plugin keys instead. Raises
    InputError: the strategy cannot be said in an accelerate YAML."""
    if strategy.pipeline_parallel > 1:
        raise InputError(
            "pipeline parallelism needs a PipelineModule built by the script; Accelerate cannot run it"
        )
    if ds_config_path is None and strategy.tensor_parallel > 1:
        raise InputError("tensor parallelism can only be given to Accelerate in a DeepSpeed JSON")
    settings = strategy.settings
    if ds_config_path is None and "nvme" in (settings.optimizer_device, settings.weights_device):
        # accelerate/utils/launch.py exports no nvme_path, and the plugin then takes the text "none"
        raise InputError("NVMe offload can only be given to Accelerate in a DeepSpeed JSON")
    mixed = None if ds_config_path is not None else {"fp32": "no"}.get(settings.precision, settings.precision)
    zero = deepspeed(strategy.settings).zero
    block: dict[str, Any] = {}
    if ds_config_path is not None:
        block["deepspeed_config_file"] = ds_config_path
    else:
        block["gradient_accumulation_steps"] = strategy.settings.gradient_accumulation
        if strategy.settings.gradient_clipping > 0:
            block["gradient_clipping"] = strategy.settings.gradient_clipping
        block["zero_stage"] = zero.stage
        block["offload_optimizer_device"] = zero.offload_optimizer.device
        block["offload_param_device"] = zero.offload_param.device
        block["zero3_save_16bit_model"] = zero.gather_16bit_weights_on_model_save
    if nodes > 1:
        # one torchrun per node; the other launchers go through pdsh or mpirun from one node
        block["deepspeed_multinode_launcher"] = "standard"
    block["zero3_init_flag"] = zero.stage == 3
    config = plain_config(strategy, nodes, "DEEPSPEED", mixed, deepspeed_config=block)
    if strategy.sequence_parallel > 1:
        config["parallelism_config"] = _parallelism_block(strategy, attention)
    return config


def accelerate_yaml(
    strategy: Strategy, nodes: int, *, ds_config_path: str | None, attention: str = "sdpa"
) -> str:
    """The configuration as YAML text, with what to change by hand as comments."""
    config = accelerate_config(strategy, nodes, ds_config_path=ds_config_path, attention=attention)
    lines = []
    if ds_config_path is not None:
        lines.append("ZeRO, precision, batch and clipping stand in the DeepSpeed file, and only there:")
        lines.append("Accelerate refuses zero_stage, gradient_*, offload_* and mixed_precision beside it.")
        lines.append("For a Hugging Face Trainer name ds_config.trainer.json instead.")
    else:
        lines.append("Without a DeepSpeed file, bucket sizes are DeepSpeed's defaults, not this plan's, and")
        lines.append(
            f"the micro-batch is the batch_size of the script's DataLoader: {strategy.settings.micro_batch}."
        )
    lines.append(f"num_processes counts the GPUs of all nodes: {_product(strategy)}.")
    if strategy.settings.divides_weights:
        lines.append("zero3_init_flag: weights are divided as they are made, so no rank holds the model.")
    if nodes > 1:
        lines.append("deepspeed_multinode_launcher standard: a launcher on every node, no ssh between them.")
    if strategy.sequence_parallel > 1:
        lines.append(
            "Sequence parallel: batches need position_ids; do not add --use_deepspeed, which drops it."
        )
    return yaml_text(config, nodes, lines)


def _product(strategy: Strategy) -> str:
    names = ("data", "tensor", "sequence")
    degrees = ((getattr(strategy, f"{name}_parallel"), name) for name in names)
    return " × ".join(f"{degree} {name} parallel" for degree, name in degrees if degree > 1) or "1"


def _parallelism_block(strategy: Strategy, attention: str) -> dict[str, Any]:
    prefix = PARALLELISM_PREFIX
    if attention == "eager":
        raise InputError("⟨attention⟩ eager cannot run with sequence parallel; use sdpa or flash_attention_2")
    return {
        f"{prefix}dp_replicate_size": strategy.data_parallel,
        f"{prefix}dp_shard_size": 1,
        f"{prefix}sp_size": strategy.sequence_parallel,
        f"{prefix}sp_backend": "deepspeed",
        f"{prefix}sp_seq_length_is_variable": True,
        f"{prefix}sp_attn_implementation": attention,
    }


def parallelism_environment(strategy: Strategy, attention: str = "sdpa") -> dict[str, str]:
    """What ``accelerate launch`` makes of ``parallelism_config``, for scripts that other launchers start.

    ``accelerate/utils/launch.py``, ``prepare_extend_env_parallelism_config``; an ``Accelerator()``, and so a
    Trainer, reads it. Empty without sequence or context parallelism and replicas of FSDP2.
    """
    block = parallelism(strategy) if strategy.engine == "fsdp2" else {}
    if strategy.sequence_parallel > 1 and strategy.engine != "fsdp2":
        block = _parallelism_block(strategy, attention)
    if not block:
        return {}
    return {
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        **{name.upper(): str(value) for name, value in block.items()},
    }
