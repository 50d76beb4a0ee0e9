"""Adapters on a frozen base, which the engine moves to the GPU: ``frozen_base.py MODEL BITS``."""

import sys

import deepspeed
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

settings = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
deepspeed.init_distributed()
four_bit = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(
    sys.argv[1], dtype=torch.bfloat16, quantization_config=four_bit if sys.argv[2] == "4" else None
)
model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
trained = [weight for weight in model.parameters() if weight.requires_grad]
engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=settings)
for _ in range(4):
    ids = torch.randint(0, 1000, (1, 8)).cuda()
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
