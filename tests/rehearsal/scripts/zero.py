"""A DeepSpeed loop: ``zero.py MODEL STAGE``."""

import sys

import deepspeed
import torch
from transformers import AutoModelForCausalLM

settings = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": int(sys.argv[2])},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
deepspeed.init_distributed()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
for _ in range(6):
    ids = torch.randint(0, 1000, (1, 128)).cuda()
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()

from deepspeed.compile.backend import opt_passes  # noqa: E402

assert "zero3_compile" in opt_passes  # which an engine has registered before the compiler was imported
