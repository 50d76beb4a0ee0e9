"""What Axolotl and LLaMA-Factory read where they run: the files of ``public-ninth.json`` and
``public-tenth.json``, and their data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from benchmarks.rehearsal.entry_point_inputs import EntryPointInputs

_AXOLOTL: dict[str, Any] = {
    "bf16": True, "tf32": False, "val_set_size": 0, "sequence_len": 1024, "attn_implementation": "sdpa",
    "gradient_accumulation_steps": 1, "micro_batch_size": 2, "max_steps": 6, "num_epochs": 1,
    "optimizer": "adamw_torch_fused", "lr_scheduler": "cosine", "learning_rate": 2e-5, "logging_steps": 1,
    "saves_per_epoch": 1, "datasets": [{"path": "instructions/train.jsonl", "type": "alpaca"}],
    "special_tokens": {"pad_token": "<pad>"},
}  # fmt: skip
_PACKED = {"sample_packing": True, "pad_to_sequence_len": True}
_LORA = {"adapter": "lora", "lora_r": 16, "lora_alpha": 32, "lora_target_linear": True}
_PREFERENCES = {
    "rl": "dpo",
    "datasets": [{
        "path": "preferences/train.json", "ds_type": "json", "split": "train",
        "type": {"field_prompt": "instruction", "field_chosen": "chosen", "field_rejected": "rejected",
                 "prompt_format": "{prompt}", "chosen_format": "{chosen}", "rejected_format": "{rejected}"},
    }],
}  # fmt: skip
AXOLOTL: dict[str, dict[str, Any]] = {
    "ax.full.llama.packed": {
        "base_model": "llama", "sequence_len": 2048, "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True, **_PACKED,
    },
    "ax.lora.qwen3": {"base_model": "qwen3", "micro_batch_size": 4, **_LORA},
    "ax.qlora.llama.packed": {
        "base_model": "llama", "load_in_4bit": True, **_LORA, "adapter": "qlora", "sequence_len": 2048,
        "optimizer": "adamw_bnb_8bit", "gradient_checkpointing": True, **_PACKED,
    },
    "ax.lora.kernels.llama": {
        "base_model": "llama", **_LORA, "lora_mlp_kernel": True, "lora_qkv_kernel": True,
        "lora_o_kernel": True,
    },
    "ax.full.liger.qwen3": {
        "base_model": "qwen3", "plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_rope": True,
        "liger_rms_norm": True, "liger_glu_activation": True, "liger_fused_linear_cross_entropy": True,
    },
    "ax.dpo.lora.qwen3": {"base_model": "qwen3", **_PREFERENCES, **_LORA},
    "ax.full.mistral.eval": {"base_model": "mistral-small", "val_set_size": 0.1, "evals_per_epoch": 1},
    "ax.two.zero1.llama.packed": {
        "base_model": "llama", "deepspeed": "zero1.auto.json", "sequence_len": 2048, **_PACKED,
    },
    "ax.two.zero3.qwen3": {
        "base_model": "qwen3", "deepspeed": "zero3.auto.json", "gradient_checkpointing": True,
    },
    "ax.two.ddp.lora.llama": {"base_model": "llama", **_LORA, "ddp_find_unused_parameters": False},
    "ax.two.fsdp2.llama": {
        "base_model": "llama", "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
            "state_dict_type": "SHARDED_STATE_DICT", "reshard_after_forward": True,
        },
    },
    "ax.ipo.lora.granite": {"base_model": "granite", **_PREFERENCES, **_LORA, "rl": "ipo"},
    "ax.lora.int8.llama": {"base_model": "llama", "load_in_8bit": True, **_LORA, "micro_batch_size": 3},
    "ax.full.gemma2.checkpointed": {
        "base_model": "gemma2", "gradient_checkpointing": True, "gradient_accumulation_steps": 3,
        "attn_implementation": "eager",
    },
    "ax.dora.llama.packed": {"base_model": "llama", **_LORA, "peft_use_dora": True, **_PACKED},
    "ax.full.phi3.adafactor": {"base_model": "phi3", "optimizer": "adafactor", "micro_batch_size": 3},
    "ax.two.zero2.qlora.llama": {
        "base_model": "llama", "load_in_4bit": True, **_LORA, "adapter": "qlora",
        "deepspeed": "zero2.auto.json",
    },
    "ax.two.zero3.full.smollm3.packed": {
        "base_model": "smollm3", "deepspeed": "zero3.auto.json", **_PACKED, "sequence_len": 1536,
    },
    "ax.two.ddp.dpo.lora.llama": {"base_model": "llama", **_PREFERENCES, **_LORA},
}  # fmt: skip
"""Name → what differs from Axolotl's settings above."""

_FACTORY: dict[str, Any] = {
    "stage": "sft", "do_train": True, "finetuning_type": "full",
    "dataset_dir": ".", "dataset": "instructions",
    "template": "default", "cutoff_len": 1024, "preprocessing_num_workers": 1, "logging_steps": 1,
    "overwrite_output_dir": True, "report_to": "none", "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1, "learning_rate": 1e-5, "max_steps": 6, "lr_scheduler_type": "cosine",
    "bf16": True,
}  # fmt: skip
_ADAPTERS = {"finetuning_type": "lora", "lora_rank": 8, "lora_target": "all"}
_PAIRS = {"stage": "dpo", "dataset": "preferences", "pref_beta": 0.1, "pref_loss": "sigmoid"}
FACTORY: dict[str, dict[str, Any]] = {
    "lf.lora.qwen3": {"model_name_or_path": "qwen3", **_ADAPTERS, "gradient_accumulation_steps": 2},
    "lf.full.llama": {"model_name_or_path": "llama", "per_device_train_batch_size": 4},
    "lf.dpo.lora.qwen3": {"model_name_or_path": "qwen3", **_ADAPTERS, **_PAIRS},
    "lf.full.mistral.packed": {"model_name_or_path": "mistral-small", "packing": True, "cutoff_len": 2048},
    "lf.qlora.llama": {
        "model_name_or_path": "llama", **_ADAPTERS, "quantization_bit": 4, "quantization_method": "bnb",
    },
    "lf.freeze.granite": {
        "model_name_or_path": "granite", "finetuning_type": "freeze", "freeze_trainable_layers": 2,
    },
    "lf.pretrain.lora.llama": {
        "model_name_or_path": "llama", **_ADAPTERS, "stage": "pt", "dataset": "plain_text",
    },
    "lf.two.zero3.llama": {"model_name_or_path": "llama", "deepspeed": "zero3.auto.json"},
    "lf.two.zero2.dpo.lora.llama": {
        "model_name_or_path": "llama", **_ADAPTERS, **_PAIRS, "deepspeed": "zero2.auto.json",
    },
    "lf.two.ddp.lora.qwen3": {"model_name_or_path": "qwen3", **_ADAPTERS},
    "lf.reward.lora.llama": {
        "model_name_or_path": "llama", **_ADAPTERS, "stage": "rm", "dataset": "preferences",
    },
    "lf.orpo.full.granite": {"model_name_or_path": "granite", **_PAIRS, "pref_loss": "orpo"},
    "lf.simpo.lora.qwen3": {"model_name_or_path": "qwen3", **_ADAPTERS, **_PAIRS, "pref_loss": "simpo"},
    "lf.kto.lora.llama": {"model_name_or_path": "llama", **_ADAPTERS, "stage": "kto", "dataset": "judged"},
    "lf.dora.olmo2": {"model_name_or_path": "olmo2", **_ADAPTERS, "use_dora": True},
    "lf.full.phi3.checkpointed": {
        "model_name_or_path": "phi3", "gradient_accumulation_steps": 3, "per_device_train_batch_size": 3,
        "optim": "adafactor",
    },
    "lf.full.smollm3.eval": {
        "model_name_or_path": "smollm3", "val_size": 0.1, "eval_strategy": "steps", "eval_steps": 3,
        "per_device_eval_batch_size": 2, "disable_gradient_checkpointing": True,
    },
    "lf.two.zero3.dpo.full.llama": {"model_name_or_path": "llama", **_PAIRS, "deepspeed": "zero3.auto.json"},
    "lf.two.zero2.kto.lora.granite": {
        "model_name_or_path": "granite", **_ADAPTERS, "stage": "kto", "dataset": "judged",
        "deepspeed": "zero2.auto.json",
    },
    "lf.two.ddp.full.mistral": {"model_name_or_path": "mistral-small", "cutoff_len": 512},
}  # fmt: skip
"""Name → what differs from LLaMA-Factory's settings above."""


def add(inputs: EntryPointInputs) -> None:
    """A file of settings for each, and the data that they name."""
    folder, text = inputs.folder, inputs._text
    instructions = [{"instruction": text(60), "input": "", "output": text(700)} for _ in range(200)]
    pairs = [
        {"instruction": text(60), "input": "", "chosen": text(400), "rejected": text(300)} for _ in range(200)
    ]
    for name, rows in (("instructions", instructions), ("preferences", pairs)):
        (folder / name).mkdir()
        (folder / name / "train.json").write_text(json.dumps(rows))
        (folder / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "plain_text.json").write_text(json.dumps([{"text": text(900)} for _ in range(200)]))
    judged = [
        {"instruction": text(60), "input": "", "output": text(400), "kto_tag": number % 2 == 0}
        for number in range(200)
    ]
    (folder / "judged.json").write_text(json.dumps(judged))
    columns = {"prompt": "instruction", "query": "input", "chosen": "chosen", "rejected": "rejected"}
    (folder / "dataset_info.json").write_text(json.dumps({
        "instructions": {"file_name": "instructions/train.json"},
        "preferences": {"file_name": "preferences/train.json", "ranking": True, "columns": columns},
        "judged": {"file_name": "judged.json", "columns": {
            "prompt": "instruction", "query": "input", "response": "output", "kto_tag": "kto_tag",
        }},
        "plain_text": {"file_name": "plain_text.json", "columns": {"prompt": "text"}},
    }))  # fmt: skip
    for name, settings in AXOLOTL.items():
        own = {"output_dir": f"out-{name}", "dataset_prepared_path": f"prepared-{name}"}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(_AXOLOTL | own | settings))
    for name, settings in FACTORY.items():
        (folder / f"{name}.yaml").write_text(
            yaml.safe_dump(_FACTORY | {"output_dir": f"out-{name}"} | settings)
        )
