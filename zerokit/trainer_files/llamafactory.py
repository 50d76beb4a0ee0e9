"""What a YAML of LLaMA-Factory asks for (LLaMA-Factory 0.9.5, hparams)."""

from __future__ import annotations

from zerokit.trainer_files.says import Says
from zerokit.trainer_files.training_arguments import DIRECT as SHARED
from zerokit.trainer_files.training_arguments import (
    take_checkpointing,
    take_precision,
    take_targets,
    take_trainer_arguments,
)

_ATTENTION = {"sdpa": "sdpa", "fa2": "flash_attention_2", "disabled": "eager"}
DIRECT = {**SHARED, "seq_len": ("cutoff_len",), "lora_rank": ("lora_rank",)}


def asks(says: Says) -> None:
    """Take what the file says."""
    says.options["trainer"] = "llamafactory"
    if "model_class" in says.values or ("model" in says.values and "model_name_or_path" not in says.values):
        says.refuse("model", "LLaMA-Factory's new trainer (its v1 arguments)")
    if says.values.get("export_dir") or says.values.get("infer_backend"):
        key = "export_dir" if says.values.get("export_dir") else "infer_backend"
        says.refuse(key, "what trains nothing")
    if says("stage") not in ("sft", "pt"):
        says.refuse("stage", "LLaMA-Factory's training by preferences and rewards")
    kind = says("finetuning_type")
    if kind not in ("lora", "full"):
        says.refuse("finetuning_type", "any but lora and full")
    bits = says("quantization_bit")
    if kind == "lora":
        says.take("method", "finetuning_type", "qlora" if bits == 4 else "lora")
        take_targets(says, "lora_target")
        if bits == 8:
            says.take("quant", "quantization_bit", "int8")
        elif bits and bits != 4:
            says.leave_out("quantization_bit", "weights are counted in 16 bits")
    else:
        says.take("method", "finetuning_type", "full")
        says.options |= {"lora_rank": None, "lora_dropout": None}
    take_trainer_arguments(says)
    if says.is_on("pure_bf16"):
        take_precision(says, "pure_bf16")
        says.options |= {"precision": "bf16", "load_dtype": "bf16"}
    off = says.is_on("disable_gradient_checkpointing")
    take_checkpointing(says, "disable_gradient_checkpointing", not off)
    if not off and "use_reentrant_gc" in says.values:
        says.take("reentrant", "use_reentrant_gc", "on" if says.is_on("use_reentrant_gc") else "off")
    says.take_one("attention", "flash_attn", _ATTENTION, "sdpa")
    if says.is_on("enable_liger_kernel"):
        says.take("loss", "enable_liger_kernel", "liger")
    says("packing"), says("neat_packing"), says("double_quantization")
