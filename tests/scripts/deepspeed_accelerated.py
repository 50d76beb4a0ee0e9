"""Some steps of a small model on CPU ranks under the DeepSpeed that Accelerate is given.

Rank 0 prints as JSON what the engine has.
"""

from __future__ import annotations

import json

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)
accelerator = Accelerator(gradient_accumulation_steps=2)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=2)
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
batches = DataLoader([torch.arange(8) for _ in range(32)], batch_size=2)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
losses = []
for batch in batches:
    with accelerator.accumulate(model):
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
if accelerator.is_main_process:
    seen = {
        "stage": model.zero_optimization_stage(),
        "micro_batch": model.train_micro_batch_size_per_gpu(),
        "gradient_accumulation": model.gradient_accumulation_steps(),
        "losses": losses,
    }
    print("SEEN " + json.dumps(seen))
