"""A vision transformer under the Trainer, with evaluation and saving: ``image_trainer.py MODEL OUT``."""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AutoModelForImageClassification, Trainer, TrainingArguments


class Images(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": torch.randn(3, 224, 224), "labels": index % 10}


arguments = TrainingArguments(
    sys.argv[2],
    per_device_train_batch_size=64,
    per_device_eval_batch_size=128,
    max_steps=6,
    bf16=True,
    report_to="none",
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=3,
    save_strategy="steps",
    save_steps=3,
    save_total_limit=1,
    optim="adamw_torch_fused",
)
model = AutoModelForImageClassification.from_pretrained(sys.argv[1], num_labels=10)
Trainer(model, arguments, train_dataset=Images(640), eval_dataset=Images(512)).train()
