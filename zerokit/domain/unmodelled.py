"""DeepSpeed keys that the prediction does not follow: named in every answer.

Read from DeepSpeed 0.19.8: runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
compile/config.py and runtime/activation_checkpointing/config.py. A key of DeepSpeed's that stands neither in
``_FOLLOWED`` nor in ``_KEYS``, as one of a later version, counts as not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import READ_KEYS
from zerokit.domain.settings import value_at

BASIS = "incomplete"
"""``basis`` of an estimate of which a part is not modelled."""

_ZERO = "zero_optimization"
_FLOATS = ("fp32", "float32", "float", "fp16", "float16", "half", "bf16", "bfloat16")
_UNKNOWN = "what it changes is not known here"
_FOLLOWED = READ_KEYS | {
    # what changes neither memory nor time of a step, or only how they are reported, saved or searched
    "scheduler", "fp16", "csv_monitor", "tensorboard", "wandb", "comet", "autotuning", "timers", "checkpoint",
    "compile", "comms_logger", "flops_profiler", "bf16.check_grad_overflow", "bfloat16.check_grad_overflow",
    "dataloader_drop_last", "disable_python_gc", "dump_state", "gradient_allreduce_op",
    "gradient_predivide_factor", "log_level", "memory_breakdown", "prescale_gradients", "steps_per_print",
    "vocabulary_size", "zero_allow_untested_optimizer", "activation_checkpointing.profile",
    "activation_checkpointing.synchronize_checkpoint_boundary", "aio.block_size", "aio.intra_op_parallelism",
    "aio.overlap_events", "aio.queue_depth", "aio.single_submit", "optimizer.legacy_fusion",
    *(f"{_ZERO}.{name}" for name in (
        "cpu_offload_use_pin_memory", "elastic_checkpoint", "enable_sanity_checks",
        "ignore_unused_parameters", "load_from_fp32_weights", "log_trace_cache_warnings",
        "override_module_apply", "pipeline_loading_checkpoint", "stage3_gather_fp16_weights_on_model_save",
        "offload_optimizer.cpuadam_cores_perc", "offload_optimizer.fast_init",
    )),
}  # fmt: skip
"""Dotted keys, and blocks with all in them that ``_KEYS`` does not name."""
_OF_TIME = {"wall_clock_breakdown", "flops_profiler.enabled", "comms_logger.enabled"}
"""Of ``_KEYS``, those that move no memory."""
# dotted key -> (what it has when it does nothing, what it changes)
_KEYS: Mapping[str, tuple[tuple[object, ...], str]] = {
    f"{_ZERO}.zenflow": ((None,), "gradients and optimizer states in two parts, one updated on the host"),
    f"{_ZERO}.offload_optimizer.super_offload": ((False,), "buckets and the optimizer's place"),
    f"{_ZERO}.zero_quantized_weights": ((False,), "buffers of the quantised weights; traffic is counted"),
    f"{_ZERO}.zero_quantized_nontrainable_weights": ((False,), "frozen weights kept and gathered as int8"),
    f"{_ZERO}.zero_quantized_gradients": ((False,), "buffers of the quantised gradients; traffic is counted"),
    f"{_ZERO}.module_granularity_threshold": ((0,), "modules gathered as one"),
    f"{_ZERO}.stage3_module_granularity_threshold": ((0,), "modules gathered as one"),
    f"{_ZERO}.leaf_module": ((None, {}), "modules gathered as one"),
    f"{_ZERO}.use_all_reduce_for_fetch_params": ((False,), "buffers of the gathers"),
    f"{_ZERO}.stage3_use_all_reduce_for_fetch_params": ((False,), "buffers of the gathers"),
    f"{_ZERO}.allgather_sequential": ((False,), "gathers one weight at a time"),
    f"{_ZERO}.stage3_allgather_sequential": ((False,), "gathers one weight at a time"),
    f"{_ZERO}.legacy_stage1": ((False,), "stage 1 of an older implementation"),
    f"{_ZERO}.save_muon_momentum_buffer_in_memory": ((False,), "Muon's momentum kept on the GPU"),
    f"{_ZERO}.memory_efficient_linear": (
        (True,),
        "with zero.Init, linear layers keep gathered weights until backward",
    ),
    f"{_ZERO}.use_multi_rank_bucket_allreduce": ((True,), "one reduction for each rank of a bucket"),
    f"{_ZERO}.compute_grad_norm": ((True,), "no norm of the gradients in step"),
    f"{_ZERO}.parameter_alignment": ((None, 0, False), "gaps between parameters in the flat buffer"),
    "managed_gradient_accumulation": ((True,), "gradients kept whole and reduced in step"),
    "bf16.immediate_grad_update": ((False,), "16-bit gradients released one by one"),
    "torch_autocast.lower_precision_safe_modules": ((None,), "modules that compute in 16 bits"),
    "wall_clock_breakdown": ((False,), "a synchronisation at every phase of a step"),
    "flops_profiler.enabled": ((False,), "hooks on every module, which slow the profiled step"),
    # int8 is a value that DeepSpeed takes (runtime/config.py: DtypeEnum), with bytes of its own
    "data_types.grad_accum_dtype": (
        (None, *(f"{torch}{name}" for torch in ("", "torch.") for name in _FLOATS)),
        "gradients added up in another precision",
    ),
    "comms_logger.enabled": ((False,), "a synchronisation at every collective"),
    "aio.use_gds": ((False,), "NVMe buffers on the GPU"),
    f"{_ZERO}.offload_optimizer.pipeline_read": ((False,), "states read from NVMe during the update"),
    f"{_ZERO}.offload_optimizer.pipeline_write": ((False,), "states written to NVMe during the update"),
    f"{_ZERO}.offload_param.max_in_cpu": ((1e9,), "weights kept in host memory instead of on NVMe"),
    "datastates_ckpt": ((None, {}), "checkpoints copied through host memory"),
    "checkpoint.writer": ((None, {}), "checkpoints written through buffers of their own"),
    "pipeline": ((None, {}), "checkpointing and traffic of a PipelineModule's stages"),
    "compile.deepcompile": ((False,), "gathers, releases and offloading scheduled by compiler passes"),
    "compile.offload_activation": ((False,), "activations moved to the host"),
    "compile.offload_opt_states": ((False,), "optimizer states moved to the host"),
    "compile.offload_parameters": ((False,), "weights moved to the host"),
    "sequence_parallel_size": ((None, 0, 1), "sequences shared by ranks; --sp N estimates Ulysses"),
    "expert_parallel": ((None, {}), "experts spread over ranks"),
    "activation_checkpointing.cpu_checkpointing": ((False,), "checkpoints moved to the host"),
    "activation_checkpointing.partition_activations": ((False,), "checkpoints divided over peers"),
    "activation_checkpointing.contiguous_memory_optimization": ((False,), "checkpoints in one buffer"),
    "activation_checkpointing.number_checkpoints": ((None, 0), "layers between checkpoints"),
    "data_efficiency": ((None, {}), "sequences that grow, or layers that drop tokens"),
    "hybrid_engine": ((None, {}), "generation with kernels and caches of its own"),
    "weight_quantization": ((None, {}), "weights quantised"),
    "msamp": ((None, {}), "weights and states in fp8"),
    "data_types.param_dtype": ((None,), "the precision of the weights"),
    "data_types.buffer_dtype": ((None,), "the precision of buffers"),
    "data_types.keep_in_fp32_modules": ((None, []), "modules that stay in fp32"),
    "tensor_parallel.vocab_parallel_lm_head": (
        (False,),
        "the output head divided over ranks",
    ),
    "tensor_parallel.tp_overlap_comm": ((False,), "a second stream of tensor-parallel traffic"),
    "tensor_parallel.keep_module_on_host": ((False,), "weights kept on the host while they are divided"),
    "tensor_parallel.partition_config": ((None,), "which weights are divided, and how"),
    "tensor_parallel.preset_model": ((None,), "which weights are divided, and how"),
    "tensor_parallel.injection_policy_tuple": ((None,), "which weights are divided, and how"),
}


def _stage(config: Mapping[str, Any]) -> object:
    return value_at(config, f"{_ZERO}.stage")


def _is_on_nvme(config: Mapping[str, Any], block: str) -> bool:
    return bool(value_at(config, f"{_ZERO}.offload_{block}.device") == "nvme")


def _divides_weights(config: Mapping[str, Any]) -> bool:
    return value_at(config, "tensor_parallel.autotp_size") not in (None, 0, 1)


# dotted key -> where it has an effect at all
_ONLY_WHERE: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    f"{_ZERO}.memory_efficient_linear": lambda config: _stage(config) == 3,
    f"{_ZERO}.use_multi_rank_bucket_allreduce": lambda config: _stage(config) in (1, 2),
    # BF16_Optimizer alone reads it: stage 1 with gradients added up in fp32 (runtime/engine.py:2305)
    "bf16.immediate_grad_update": lambda config: (
        _stage(config) == 1 and value_at(config, "data_types.grad_accum_dtype") is not None
    ),
    "torch_autocast.lower_precision_safe_modules": lambda config: (
        value_at(config, "torch_autocast.enabled") is True
    ),
    "aio.use_gds": lambda config: _is_on_nvme(config, "param") or _is_on_nvme(config, "optimizer"),
    f"{_ZERO}.offload_param.max_in_cpu": lambda config: _is_on_nvme(config, "param"),
    f"{_ZERO}.offload_optimizer.pipeline_read": lambda config: _is_on_nvme(config, "optimizer"),
    f"{_ZERO}.offload_optimizer.pipeline_write": lambda config: _is_on_nvme(config, "optimizer"),
    "tensor_parallel.keep_module_on_host": _divides_weights,
    "tensor_parallel.partition_config": _divides_weights,
    "tensor_parallel.preset_model": _divides_weights,
    "tensor_parallel.injection_policy_tuple": _divides_weights,
}


def not_modelled(keys: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each of :func:`unmodelled_keys`."""
    return tuple(
        f"not modelled: {key} ({changes}); "
        f"{'time is that' if key in _OF_TIME else 'memory and time are those'} of a run without it"
        for key, changes in keys.items()
    )


def moves_memory(keys: Mapping[str, str]) -> tuple[str, ...]:
    """Keys of :func:`unmodelled_keys` with which memory may be another."""
    return tuple(key for key in keys if key not in _OF_TIME)


def unmodelled_keys(config: Mapping[str, Any], is_key: Callable[[str], bool]) -> dict[str, str]:
    """The dotted keys of a DeepSpeed JSON that are set and not followed, each with what it changes.
    ``is_key``: whether DeepSpeed has a key of this name at all; it reads no others."""
    named = {
        key: changes
        for key, (idle, changes) in _KEYS.items()
        if _is_set(config, key, idle) and _ONLY_WHERE.get(key, _everywhere)(config)
    }
    return named | {
        key: _UNKNOWN
        for key in _keys_of(config)
        if is_key(key) and not any(part in _FOLLOWED or part in _KEYS for part in _blocks(key))
    }


def _keys_of(config: Mapping[str, Any], block: str = "") -> Iterator[str]:
    """The dotted keys of all values that are set."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            if value.get("enabled") is not False:
                yield from _keys_of(value, f"{block}{name}.")
        elif value not in (None, False, "auto"):
            yield f"{block}{name}"


def _blocks(key: str) -> Iterator[str]:
    """The key, and the blocks around it."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _everywhere(_config: Mapping[str, Any]) -> bool:
    return True


def _is_set(config: Mapping[str, Any], key: str, idle: tuple[object, ...]) -> bool:
    value = value_at(config, key)
    if isinstance(value, Mapping) and value.get("enabled") is False:
        return False
    return value != "auto" and value is not None and not any(value == one for one in idle)
