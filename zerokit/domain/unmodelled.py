"""DeepSpeed keys that move memory or time and that the prediction does not follow: named in every answer.

Read from DeepSpeed 0.19.8: runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
compile/config.py and runtime/activation_checkpointing/config.py. What is in neither this list nor
``zerokit.domain.deepspeed_settings`` changes neither memory nor time, or ends the run (``zerokit check``
says which).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

BASIS = "incomplete"
"""``basis`` of an estimate of which a part is not modelled."""

_ZERO = "zero_optimization"
_FLOATS = ("fp32", "float32", "float", "fp16", "float16", "half", "bf16", "bfloat16")
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
    return _value(config, f"{_ZERO}.stage")


def _is_on_nvme(config: Mapping[str, Any], block: str) -> bool:
    return _value(config, f"{_ZERO}.offload_{block}.device") == "nvme"


def _divides_weights(config: Mapping[str, Any]) -> bool:
    return _value(config, "tensor_parallel.autotp_size") not in (None, 0, 1)


# dotted key -> where it has an effect at all
_ONLY_WHERE: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    f"{_ZERO}.memory_efficient_linear": lambda config: _stage(config) == 3,
    f"{_ZERO}.use_multi_rank_bucket_allreduce": lambda config: _stage(config) in (1, 2),
    # BF16_Optimizer alone reads it: stage 1 with gradients added up in fp32 (runtime/engine.py:2305)
    "bf16.immediate_grad_update": lambda config: (
        _stage(config) == 1 and _value(config, "data_types.grad_accum_dtype") is not None
    ),
    "torch_autocast.lower_precision_safe_modules": lambda config: (
        _value(config, "torch_autocast.enabled") is True
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


def not_modelled(config: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each key of a DeepSpeed JSON that is set and not followed."""
    return tuple(
        f"not modelled: {key} ({changes}); memory and time are those of a run without it"
        for key, changes in unmodelled_keys(config).items()
    )


def unmodelled_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """The dotted keys of a DeepSpeed JSON that are set and not followed, each with what it changes."""
    return {
        key: changes
        for key, (idle, changes) in _KEYS.items()
        if _is_set(config, key, idle) and _ONLY_WHERE.get(key, _everywhere)(config)
    }


def _everywhere(_config: Mapping[str, Any]) -> bool:
    return True


def _value(config: Mapping[str, Any], key: str) -> object:
    """The value of a dotted key; None where it is absent."""
    value: object = config
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def _is_set(config: Mapping[str, Any], key: str, idle: tuple[object, ...]) -> bool:
    value = _value(config, key)
    if isinstance(value, Mapping) and value.get("enabled") is False:
        return False
    return value != "auto" and value is not None and not any(value == one for one in idle)
