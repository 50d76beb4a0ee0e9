"""What a YAML of axolotl asks for (axolotl 0.19, utils/schemas)."""

from __future__ import annotations

from zerokit.trainer_files.says import Says
from zerokit.trainer_files.training_arguments import (
    ATTENTIONS,
    leave_out_evaluation,
    take_checkpointing,
    take_precision,
    take_targets,
)

DIRECT = {
    "model": ("base_model",),
    "seq_len": ("sequence_len",),
    "micro_batch": ("micro_batch_size",),
    "gradient_accumulation": ("gradient_accumulation_steps",),
    "lora_rank": ("lora_r",),
    "lora_dropout": ("lora_dropout",),
    "optimizer": ("optimizer",),
}

_PLUGIN_LOSSES = {
    "CutCrossEntropyPlugin": ("cut_cross_entropy", "cut"),
    "LigerPlugin": ("liger_fused_linear_cross_entropy", "liger"),
}
"""Plugin -> the key that turns its loss on, and the loss; cut cross-entropy is on unless it says no
(integrations/cut_cross_entropy/args.py)."""
_OLD_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
    "xformers_attention": "xformers",
    "flex_attention": "flex_attention",
    "sage_attention": "sage",
}
"""Keys that 0.19 still takes in place of ``attn_implementation``."""


def asks(says: Says) -> None:
    """Take what the file says."""
    says.options["trainer"] = "axolotl"
    for key in ("rl", "reward_model", "process_reward_model", "ebft", "diffusion"):
        if says(key):
            says.refuse(key, "axolotl's training by preferences, rewards or other losses")
    adapter = says("adapter")
    if adapter in ("lora", "qlora"):
        packed = says.is_on("load_in_4bit")
        says.take("method", "adapter", "qlora" if packed else "lora")
        if says.is_on("load_in_8bit"):
            says.take("quant", "load_in_8bit", "int8")
        if says.is_on("lora_target_linear"):
            says.take("lora_targets", "lora_target_linear", "all-linear")
        else:
            take_targets(says, "lora_target_modules")
    elif adapter:
        says.refuse("adapter", "any adapter but lora and qlora")
    else:
        says.take("method", "adapter", "full")
        for key in ("lora_r", "lora_dropout", "lora_target_modules", "lora_target_linear",
                    "load_in_4bit", "load_in_8bit"):  # fmt: skip
            says(key)
        says.options |= {"lora_rank": None, "lora_dropout": None}
    take_precision(says, "bf16", "fp16")
    _take_attention(says)
    _take_checkpointing(says)
    _take_loss(says)
    if says("deepspeed"):
        says.engine["deepspeed"] = says("deepspeed")
    elif says("fsdp") or says("fsdp_config"):
        block = says("fsdp_config", {})
        version = says("fsdp_version") or block.get("fsdp_version") or block.get("version")
        says.engine["fsdp"] = {"fsdp": "full_shard", "fsdp_config": {"version": version or 2, **block}}
    for key in ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size", "context_parallel_size",
                "sequence_parallel_degree", "expert_parallel_size"):  # fmt: skip
        if (says(key) or 1) > 1:
            says.leave_out(key, "one division of the model over all GPUs is counted")
    leave_out_evaluation(says, "micro_batch_size", "eval_batch_size", "val_set_size", "test_datasets")
    says("pad_to_sequence_len"), says("sample_packing"), says("eval_sample_packing"), says("model_type")


def _take_attention(says: Says) -> None:
    old = next((key for key in _OLD_ATTENTION if says.is_on(key)), "")
    if old and not says.values.get("attn_implementation"):
        if _OLD_ATTENTION[old] in ATTENTIONS:
            says.take("attention", old, _OLD_ATTENTION[old])
        else:
            says.leave_out(old, "counted as sdpa")
    says.take_one("attention", "attn_implementation", ATTENTIONS, "sdpa")


def _take_checkpointing(says: Says) -> None:
    value = says("gradient_checkpointing")
    take_checkpointing(says, "gradient_checkpointing", bool(value))
    if isinstance(value, str) and value.startswith("offload"):
        says.leave_out("gradient_checkpointing", "what it keeps is counted on the GPU")
    if says("activation_offloading"):
        says.leave_out("activation_offloading", "what it keeps is counted on the GPU")


def _take_loss(says: Says) -> None:
    others = []
    plugins = says("plugins", [])
    for plugin in plugins if isinstance(plugins, list) else [plugins]:
        name = str(plugin).rpartition(".")[2]
        key, loss = _PLUGIN_LOSSES.get(name, ("", ""))
        if not loss:
            others.append(name)
        elif says(key) if loss == "liger" else says(key) is not False:
            says.take("loss", key, loss)
    if others:
        says.leave_out("plugins", ", ".join(others))
