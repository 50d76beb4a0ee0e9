"""DeepSpeed keys that move memory or time and that the prediction does not follow: named in every answer.

Read from DeepSpeed 0.19.8: runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
compile/config.py and runtime/activation_checkpointing/config.py. What is in neither this list nor
``zerokit.domain.deepspeed_settings`` changes neither memory nor time, or ends the run (``zerokit check``
says which).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BASIS = "incomplete"
"""``basis`` of an estimate of which a part is not modelled."""

_ZERO = "zero_optimization"
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
}


def not_modelled(config: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each key of a DeepSpeed JSON that is set and not followed."""
    return tuple(
        f"not modelled: {key} ({changes}); memory and time are those of a run without it"
        for key, (idle, changes) in _KEYS.items()
        if _set(config, key, idle)
    )


def _set(config: Mapping[str, Any], key: str, idle: tuple[object, ...]) -> bool:
    value: object = config
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    if isinstance(value, Mapping) and value.get("enabled") is False:
        return False
    return value != "auto" and value is not None and not any(value == one for one in idle)
