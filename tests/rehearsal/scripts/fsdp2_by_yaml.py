"""A loop under ``Accelerator()``, which is told of FSDP2 by the variables of ``accelerate launch``."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig

accelerator = Accelerator()
if "--in-parts" in sys.argv:
    parts = DistributedConfig(tp_size=2, fsdp_size=2)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, distributed_config=parts)
else:
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(sys.argv[1]), dtype=torch.bfloat16)
model.config.use_cache = "--cache" in sys.argv
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
model, optimizer = accelerator.prepare(model, optimizer)
tokens = torch.randint(0, 1000, (1, 512), device=accelerator.device)
for _ in range(3):
    accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
    optimizer.step()
    optimizer.zero_grad()
