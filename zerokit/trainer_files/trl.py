"""What a YAML for TRL's scripts, or for alignment-handbook's, asks for (TRL 1.16, trainer/*_config.py)."""

from __future__ import annotations

from zerokit.trainer_files.says import Says
from zerokit.trainer_files.training_arguments import (
    ATTENTIONS,
    TORCH_DTYPES,
    take_targets,
    take_trainer_arguments,
)
from zerokit.trainer_files.training_arguments import DIRECT as SHARED

_TRAINERS = {"sft": "trl", "dpo": "trl-dpo", "reward": "trl-reward"}
DIRECT = {**SHARED, "seq_len": ("max_length", "max_seq_length")}


def stages(says: Says) -> tuple[str, ...]:
    """The trainers whose arguments have every key of the file, SFT's first where it is among them."""
    found: list[str] = []
    for name in (*_TRAINERS, *sorted({one for key in says.trainer.keys.values() for one in key.of})):
        stages_of = (says.trainer.keys[key].of for key in says.values if key in says.trainer.keys)
        if name not in found and all(name in of for of in stages_of if of):
            found.append(name)
    return tuple(found)


def asks(says: Says) -> None:
    """Take what the file says."""
    fitting = (says.stage,) if says.stage else stages(says)
    says.stage = stage = fitting[0] if fitting else "sft"
    if stage not in _TRAINERS:
        of = {key: says.trainer.keys[key].of for key in says.values if key in says.trainer.keys}
        key = next((key for key, has in of.items() if has and "sft" not in has), "trainer")
        says.refuse(key, f"TRL's {stage} trainer")
    says.options["trainer"] = _TRAINERS.get(stage, "trl")
    says("beta"), says("max_prompt_length")  # within max_length, which counts
    if says.is_on("use_peft"):
        packed = says.is_on("load_in_4bit")
        says.take("method", "use_peft", "qlora" if packed else "lora")
        if says.is_on("load_in_8bit"):
            says.take("quant", "load_in_8bit", "int8")
        take_targets(says, "lora_target_modules")
    else:
        says.take("method", "use_peft", "full")
        says("load_in_4bit"), says("load_in_8bit"), says("lora_target_modules")
        says.options |= {"lora_rank": None, "lora_dropout": None}
    says("use_bnb_nested_quant"), says("bnb_4bit_quant_type")
    take_trainer_arguments(says)
    says.take_one("attention", "attn_implementation", ATTENTIONS, "sdpa")
    if says.is_on("activation_offloading"):
        says.take("offload_activations", "activation_offloading", True)
    for key in ("dtype", "torch_dtype"):  # its name until 0.27
        if key in says.values:
            says.take_one("load_dtype", key, TORCH_DTYPES, "the trainer loads it")
    says("packing"), says("padding_free"), says("packing_strategy")
