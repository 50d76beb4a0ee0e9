"""A plain loop on one GPU that saves, downloads nothing, and reads back what it can know."""

import sys
from pathlib import Path

import torch

steps = int(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = torch.utils.data.TensorDataset(torch.randn(1024, 1024))
for _ in range(steps):
    for (batch,) in torch.utils.data.DataLoader(rows, batch_size=64):
        loss = model(batch.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
torch.save(model.state_dict(), "weights.pt")
Path("log.txt").write_text("done")
Path.home().joinpath("left-behind.txt").write_text("done")
