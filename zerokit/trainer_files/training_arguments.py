"""What trainers say in the names of TrainingArguments, which LLaMA-Factory's, ms-swift's and TRL's extend."""

from __future__ import annotations

import re

from zerokit.trainer_files.says import Says

_NAME = re.compile(r"[\w.]+")
ATTENTIONS = {name: name for name in ("sdpa", "eager", "flash_attention_2")}
"""Names of Transformers that are an option's too."""
TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
DIRECT = {
    "model": ("model_name_or_path",),
    "micro_batch": ("per_device_train_batch_size",),
    "gradient_accumulation": ("gradient_accumulation_steps",),
    "lora_rank": ("lora_r",),
    "lora_dropout": ("lora_dropout",),
    "optimizer": ("optim",),
}
"""Option -> key, as TrainingArguments and TRL's ModelConfig have them."""


def take_precision(says: Says, *switches: str) -> None:
    """Take the first precision that is on, of ``bf16`` and ``fp16``; tf32 is of products in fp32 alone."""
    says("tf32")
    for key in switches:
        if says(key) not in (None, False, "false", "False"):
            says.take("precision", key, "auto" if says(key) == "auto" else key)
            return


def take_checkpointing(says: Says, key: str, is_on: bool) -> None:
    """Take whether the layers are checkpointed, by which key, and whether that is reentrant."""
    says.take("checkpointing", key, "full" if is_on else "none")
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        given = says(name) if name in says.values else None
        if is_on and isinstance(given, dict) and isinstance(given.get("use_reentrant"), bool):
            says.take("reentrant", name, "on" if given["use_reentrant"] else "off")


def take_targets(says: Says, key: str, of_all: tuple[str, ...] = ("all", "all-linear")) -> None:
    """Take the modules that get adapters: a list, a text with commas, or ``all``."""
    value = says(key)
    names = value if isinstance(value, list) else str(value or "").split(",")
    names = [str(name).strip() for name in names if str(name).strip()]
    if not names:
        return
    if any(name in of_all for name in names):
        says.take("lora_targets", key, "all-linear")
    elif all(_NAME.fullmatch(name) for name in names):
        says.take("lora_targets", key, ",".join(names))
    else:
        says.leave_out(key, "a pattern: adapters are counted on every linear module")


def leave_out_evaluation(says: Says, micro: str, size: str, *switches: str) -> None:
    """Name an evaluation in larger batches than the training's, whose peak no answer counts.

    Args:
        micro, size: keys of the batch sizes per GPU. switches: any of them turns evaluation on.
    """
    on = [key for key in switches if says(key) not in (None, False, 0, 0.0, "no")]
    batch, trained = says(size), says(micro)
    if on and isinstance(batch, int) and isinstance(trained, int) and batch > trained:
        says.leave_out(
            size if size in says.values else on[0], f"evaluation runs with {batch} sequences per GPU"
        )


def take_trainer_arguments(says: Says) -> None:
    """Take precision, checkpointing, loss and engine; name a larger evaluation."""
    leave_out_evaluation(
        says, "per_device_train_batch_size", "per_device_eval_batch_size", "eval_strategy", "do_eval",
        "val_size", "split_dataset_ratio", "val_dataset", "eval_dataset",
    )  # fmt: skip
    take_precision(says, "bf16", "fp16")
    if "gradient_checkpointing" in says.trainer.keys:
        is_on = says.is_on("gradient_checkpointing") or says.is_on("activation_checkpointing")
        take_checkpointing(says, "gradient_checkpointing", is_on)
    if says.is_on("use_liger_kernel"):
        says.take("loss", "use_liger_kernel", "liger")
    if says("deepspeed"):
        says.engine["deepspeed"] = says("deepspeed")
    elif says("fsdp"):
        says.engine["fsdp"] = {"fsdp": says("fsdp"), "fsdp_config": says("fsdp_config", {})}
