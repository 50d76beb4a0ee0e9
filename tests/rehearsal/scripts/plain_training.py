"""Transformers' Trainer without an engine: ``plain_training.py CONFIG.json [options]``.

One process trains on one GPU; several, started by torchrun, under DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--tokens", type=int, default=512)
parser.add_argument("--accumulation", type=int, default=1)
parser.add_argument("--dtype", default="bfloat16", help="in which the model is loaded")
parser.add_argument("--mixed", default="bf16", choices=("bf16", "fp16", "no"), help="the Trainer's precision")
parser.add_argument("--lora", type=int, default=0)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--narrow", action="store_true", help="adapters in the base's dtype")
parser.add_argument("--bits", type=int, default=16, help="of the base's weights: 4 or 8 are quantised")
parser.add_argument("--optim", default="adamw_torch_fused")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--reentrant", action="store_true")
args = parser.parse_args()

config = AutoConfig.for_model(**json.loads(Path(args.config).read_text()))
dtype = getattr(torch, args.dtype)
if args.bits == 16:
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
else:
    from transformers import BitsAndBytesConfig

    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    packed = four | {"bnb_4bit_compute_dtype": dtype} if args.bits == 4 else {"load_in_8bit": True}
    model = AutoModelForCausalLM.from_pretrained(
        str(Path(args.config).parent), dtype=dtype, quantization_config=BitsAndBytesConfig(**packed),
        device_map={"": int(os.environ.get("LOCAL_RANK", "0"))},
    )  # fmt: skip
model.config.use_cache = False
if args.lora:
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(
        r=args.lora, target_modules="all-linear", lora_dropout=args.dropout, task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, adapters, autocast_adapter_dtype=not args.narrow)
    if args.checkpointing:
        model.enable_input_require_grads()


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Tokens drawn at random."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.randint(0, config.vocab_size, (args.tokens,))
        return {"input_ids": ids, "labels": ids}


arguments = TrainingArguments(
    output_dir="out", max_steps=4, per_device_train_batch_size=args.batch, save_strategy="no",
    gradient_accumulation_steps=args.accumulation, bf16=args.mixed == "bf16", fp16=args.mixed == "fp16",
    optim=args.optim, gradient_checkpointing=args.checkpointing, report_to="none",
    gradient_checkpointing_kwargs={"use_reentrant": args.reentrant},
)  # fmt: skip
Trainer(model=model, args=arguments, train_dataset=Rows()).train()
