"""A Trainer whose model is given both answers of a pair, as TRL's DPO does, one pair at a time."""

import sys

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([row["chosen"] for row in rows] + [row["rejected"] for row in rows])
    return {"input_ids": ids, "labels": ids}


Trainer(
    model=AutoModelForCausalLM.from_pretrained(sys.argv[1]),
    args=TrainingArguments(
        "out", per_device_train_batch_size=int(sys.argv[2]), remove_unused_columns=False, report_to="none"
    ),
    data_collator=collate,
    train_dataset=[{"chosen": [1] * 512, "rejected": [2] * 512} for _ in range(64)],
).train()
