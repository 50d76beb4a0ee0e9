"""Accelerate's own loop: saves its state every two steps, and loads what it is told to."""

import argparse

import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--load")
parser.add_argument("--other")
args = parser.parse_args()
torch.manual_seed(0)
accelerator = Accelerator()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4 // accelerator.num_processes)
model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
done = 0
if args.load:
    accelerator.load_state(args.load)
    done = int(args.load.rpartition("-")[2])
losses = []
for number, row in enumerate(rows):
    if number < done:
        continue
    if number == 6:
        break
    loss = model(row).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
    if (number + 1) % 2 == 0:
        accelerator.save_state(f"state-{number + 1}")
if accelerator.is_main_process:
    print("losses", " ".join(f"{loss:.6f}" for loss in losses), flush=True)
