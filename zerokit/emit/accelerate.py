"""Strategy → the YAML that ``accelerate launch --config_file`` reads (accelerate 1.15).

Two ways: naming the DeepSpeed JSON (the default; then the plugin keys must be absent, because
Accelerate refuses them beside ``deepspeed_config_file``), or with the plugin keys alone, which can
say less: bucket sizes then stay at DeepSpeed's defaults.
"""

from __future__ import annotations

from typing import Any

from zerokit.core.hardware import Cluster
from zerokit.core.job import Job
from zerokit.core.strategy import Strategy
from zerokit.errors import InputError
from zerokit.strictload.yamldump import dump_yaml


def accelerate_config(
    strategy: Strategy, cluster: Cluster, *, ds_config_path: str | None, job: Job | None = None
) -> dict[str, Any]:
    """The configuration as a dictionary; ``ds_config_path=None`` writes plugin keys instead.

    Raises:
        InputError: the strategy cannot be said in an accelerate YAML.
    """
    if strategy.pipeline_parallel > 1:
        raise InputError(
            "pipeline parallelism needs a PipelineModule built by the script; Accelerate cannot run it"
        )
    if ds_config_path is None and strategy.tensor_parallel > 1:
        raise InputError("tensor parallelism can only be given to Accelerate in a DeepSpeed JSON")
    zero = strategy.settings.zero
    if ds_config_path is None and "nvme" in (zero.offload_optimizer.device, zero.offload_param.device):
        # accelerate/utils/launch.py exports no nvme_path, and the plugin then takes the text "none"
        raise InputError("NVMe offload can only be given to Accelerate in a DeepSpeed JSON")
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": _deepspeed_block(strategy, cluster, ds_config_path),
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "num_machines": cluster.nodes,
        "num_processes": strategy.world_size,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if ds_config_path is None:
        config["mixed_precision"] = {"fp32": "no"}.get(
            strategy.settings.precision, strategy.settings.precision
        )
    if strategy.sequence_parallel > 1:
        config["parallelism_config"] = _parallelism_block(strategy, job)
    return config


def accelerate_yaml(
    strategy: Strategy, cluster: Cluster, *, ds_config_path: str | None, job: Job | None = None
) -> str:
    """The configuration as YAML text, with what to change by hand as comments."""
    config = accelerate_config(strategy, cluster, ds_config_path=ds_config_path, job=job)
    lines = ["For: accelerate launch --config_file THIS train.py"]
    if ds_config_path is not None:
        lines.append("ZeRO, precision, batch and clipping stand in the DeepSpeed file, and only there:")
        lines.append("Accelerate refuses zero_stage, gradient_*, offload_* and mixed_precision beside it.")
    else:
        lines.append("Without a DeepSpeed file, bucket sizes are DeepSpeed's defaults, not this plan's.")
    if cluster.nodes > 1:
        lines.append(
            "On node k of the cluster add: --machine_rank k --main_process_ip HOST --main_process_port PORT"
        )
    if strategy.sequence_parallel > 1:
        lines.append(
            "Sequence parallel: batches need position_ids; do not add --use_deepspeed, which drops it."
        )
    return dump_yaml(config, header="\n".join(lines))


def _deepspeed_block(strategy: Strategy, cluster: Cluster, ds_config_path: str | None) -> dict[str, Any]:
    zero = strategy.settings.zero
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
    if cluster.nodes > 1:
        # one torchrun per node; the other launchers go through pdsh or mpirun from one node
        block["deepspeed_multinode_launcher"] = "standard"
    block["zero3_init_flag"] = zero.stage == 3
    return block


def _parallelism_block(strategy: Strategy, job: Job | None) -> dict[str, Any]:
    prefix = "parallelism_config_"
    attention = job.attention if job is not None else "sdpa"
    if attention == "eager":
        raise InputError("--attention eager cannot run with sequence parallel; use sdpa or flash_attention_2")
    return {
        f"{prefix}dp_replicate_size": strategy.data_parallel,
        f"{prefix}dp_shard_size": 1,
        f"{prefix}sp_size": strategy.sequence_parallel,
        f"{prefix}sp_backend": "deepspeed",
        f"{prefix}sp_seq_length_is_variable": True,
        f"{prefix}sp_attn_implementation": attention,
    }
