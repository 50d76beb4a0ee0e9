"""Accelerate's loop in three steps; DeepSpeed comes from outside, or not at all."""

import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.rand(12, 256), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    loss = model(batch.to(next(model.parameters()).dtype)).float().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
