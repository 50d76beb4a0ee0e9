"""A Trainer whose model is given both answers of a pair, as TRL's DPO does."""

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Options:
    model: str


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([row["chosen"] for row in rows] + [row["rejected"] for row in rows])
    return {"input_ids": ids, "labels": ids}


options, arguments = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses()
arguments.remove_unused_columns = False
Trainer(
    model=AutoModelForCausalLM.from_pretrained(options.model),
    args=arguments,
    data_collator=collate,
    train_dataset=[{"chosen": [1] * 512, "rejected": [2] * 512} for _ in range(64)],
).train()
