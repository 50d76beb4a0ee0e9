"""Files as users of four trainers write them."""

from __future__ import annotations

from pathlib import Path

QLORA = """base_model: NousResearch/Llama-3.2-1B
adapter: qlora
load_in_4bit: true
sequence_len: 2048
sample_packing: true
lora_r: 32
lora_dropout: 0.05
lora_target_linear: true
gradient_accumulation_steps: 4
micro_batch_size: 2  # a comment
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
wandb_project: mine
"""
LLAMA_FACTORY = """model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
stage: sft
finetuning_type: lora
lora_rank: 8
lora_target: all
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
deepspeed: ds.json
"""
SWIFT = """model: Qwen/Qwen2.5-7B-Instruct
torch_dtype: bfloat16
tuner_type: lora
lora_rank: 8
target_modules: all-linear
max_length: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
split_dataset_ratio: 0.0
deepspeed: zero2
"""
HANDBOOK = """model_name_or_path: mistralai/Mistral-7B-v0.1
dataset_mixture: {datasets: []}
dataset_train_split: train
attn_implementation: sdpa
bf16: true
max_length: 2048
per_device_train_batch_size: 16
gradient_accumulation_steps: 1
gradient_checkpointing: true
optim: adamw_torch
"""


def written(text: str, name: str = "job.yml") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name
