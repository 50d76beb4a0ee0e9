"""An Accelerate loop whose batch size is computed, whatever a plan has."""

import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

sizes = [1, 2, 3]
config = LlamaConfig(
    vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
)
accelerator = Accelerator()
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters())
rows = torch.utils.data.DataLoader(torch.randint(0, 1000, (96, 64)), batch_size=len(sizes))
model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
for tokens in rows:
    with accelerator.accumulate(model):
        accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
        optimizer.step()
        optimizer.zero_grad()
