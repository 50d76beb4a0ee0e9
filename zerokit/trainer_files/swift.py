"""What a YAML, or the arguments, of ms-swift ask for (ms-swift 4.6, arguments)."""

from __future__ import annotations

from typing import Any

from zerokit.trainer_files.says import Says
from zerokit.trainer_files.training_arguments import DIRECT as SHARED
from zerokit.trainer_files.training_arguments import TORCH_DTYPES, take_targets, take_trainer_arguments

_ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash_attn": "flash_attention_2",
              "flash_attention_2": "flash_attention_2"}  # fmt: skip
_GLOBAL_BATCH = 16
"""Where nobody says the accumulation (trainers/arguments.py:291)."""
DIRECT = {
    **SHARED,
    "model": ("model",),
    "seq_len": ("max_length",),
    "lora_rank": ("lora_rank",),
}
_STAGES = {"zero0": 0, "zero1": 1, "zero2": 2, "zero2_offload": 2, "zero3": 3, "zero3_offload": 3}
_BUCKET = 200_000_000
"""Elements of ``zero0`` to ``zero2_offload``."""


def _preset(name: str) -> dict[str, Any]:
    """What counts of a DeepSpeed file that ms-swift brings (config/zero3_offload.json and its like)."""
    stage, device = _STAGES[name], "cpu" if name.endswith("_offload") else "none"
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False, "contiguous_gradients": True}
    if stage:
        zero["offload_optimizer"] = {"device": device, "pin_memory": True}
    if stage < 3:
        zero |= {"allgather_bucket_size": _BUCKET, "reduce_bucket_size": _BUCKET}
    else:
        buckets = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
        zero |= {"offload_param": {"device": device, "pin_memory": True}, "sub_group_size": 10**9}
        zero |= {"stage3_max_live_parameters": 10**9, "stage3_max_reuse_distance": 10**9}
        zero |= dict.fromkeys(buckets, "auto")
    open_keys = ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size",
                 "train_micro_batch_size_per_gpu")  # fmt: skip
    precisions = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    return {**precisions, "zero_optimization": zero, **dict.fromkeys(open_keys, "auto")}


def asks(says: Says) -> None:
    """Take what the file says."""
    says.options["trainer"] = "swift"
    if says.stage == "rlhf" or says.values.get("rlhf_type"):
        says.refuse("rlhf_type", "ms-swift's training by preferences and rewards")
        says.stage = "rlhf"
    says.stage = says.stage or "sft"
    if says("task_type", "causal_lm") != "causal_lm":
        says.refuse("task_type", "any task but causal_lm")
    key = "train_type" if says.values.get("train_type") else "tuner_type"  # its name until 3.12
    kind = says(key, "lora")
    if kind not in ("lora", "full"):
        says.refuse(key, "any tuner but lora and full")
    if kind == "lora":
        bits = says("quant_bits") if says("quant_method") in (None, "bnb") else None
        says.take("method", key, "qlora" if bits == 4 else "lora")
        take_targets(says, "target_modules")
        if bits == 8:
            says.take("quant", "quant_bits", "int8")
        elif says("quant_bits") and bits != 4:
            says.leave_out("quant_bits", "weights are counted in 16 bits")
    else:
        says.take("method", key, "full")
        says.options |= {"lora_rank": None, "lora_dropout": None}
    take_trainer_arguments(says)
    says.take_one("precision", "torch_dtype", TORCH_DTYPES, "bf16")
    says.take_one("attention", "attn_impl", _ATTENTION, "sdpa")
    if isinstance(named := says.engine.get("deepspeed"), str) and named in _STAGES:
        says.engine["deepspeed"] = _preset(named)
    if says("gradient_accumulation_steps") is None:
        says.take("global_batch", "gradient_accumulation_steps", _GLOBAL_BATCH)
    says("packing"), says("padding_free"), says("bnb_4bit_use_double_quant")
