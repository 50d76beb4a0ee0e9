"""A masked language model under Accelerate with accumulation: ``masked_accelerate.py MODEL``."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from transformers import AutoModelForMaskedLM


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(5, 20000, (384,))
        labels = torch.where(torch.rand(384) < 0.15, ids, -100)
        return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = AutoModelForMaskedLM.from_pretrained(sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
loader = torch.utils.data.DataLoader(Tokens(), batch_size=32, shuffle=True)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
model.train()
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(accelerator.gather(loss.detach()).mean().item())
model.eval()
for number, batch in enumerate(loader):
    with torch.no_grad():
        print(accelerator.gather_for_metrics(model(**batch).logits.argmax(-1)).shape)
    if number == 2:
        break
