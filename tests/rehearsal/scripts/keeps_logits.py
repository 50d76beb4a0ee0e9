"""A Trainer with much data that evaluates and saves after thousands of steps, and keeps what it evaluated."""

import sys

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

rows, evaluated = int(sys.argv[1]), int(sys.argv[2])
shape = {"vocab_size": 8000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
config = AutoConfig.for_model("llama", **shape, num_attention_heads=4, num_key_value_heads=4)
model = AutoModelForCausalLM.from_config(config)


def tokenized(row):
    count = min(512, len(row["text"]) // 4)
    return {"input_ids": [5] * count, "labels": [5] * count, "attention_mask": [1] * count}


def padded(batch):
    most = max(len(row["input_ids"]) for row in batch)
    return {
        name: torch.tensor([row[name] + [0] * (most - len(row[name])) for row in batch])
        for name in ("input_ids", "labels", "attention_mask")
    }


train = Dataset.from_list([{"text": "word" * (20 + number * 37 % 480)} for number in range(rows)])
test = Dataset.from_list([{"text": "word" * 128} for _ in range(evaluated)])
train = train.map(tokenized, num_proc=4, remove_columns=["text"]).select(range(rows - 1000))
settings = TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, per_device_eval_batch_size=8, eval_strategy="steps",
    eval_steps=2000, save_steps=3000, max_steps=100_000, report_to="none", bf16=True,
    push_to_hub=True, hub_model_id="somebody/model",
)  # fmt: skip
data = {"train_dataset": train, "eval_dataset": test.map(tokenized, remove_columns=["text"])}
Trainer(model, settings, **data, data_collator=padded, compute_metrics=lambda seen: {}).train()
