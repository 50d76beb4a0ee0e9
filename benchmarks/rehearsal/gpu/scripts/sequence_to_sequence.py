"""T5 in a plain loop with Adafactor: ``sequence_to_sequence.py MODEL``."""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForSeq2SeqLM

model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).cuda().train()
optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)
for _ in range(6):
    ids = torch.randint(4, 1000, (8, 512)).cuda()
    labels = torch.randint(4, 1000, (8, 128)).cuda()
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
