"""A Trainer whose batch and accumulation are computed, whatever a plan has."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

sizes = [1, 2, 3]
config = LlamaConfig(
    vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 1000, (96, 64))]
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=len(sizes),
    gradient_accumulation_steps=len(sizes) - 1,
    bf16=bool(sizes),
    max_steps=4,
    report_to="none",
)
Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=rows).train()
