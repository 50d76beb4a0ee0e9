"""A library beside it asks PyTorch for Triton, which cannot be imported."""

import sys

sys.modules["triton"] = None

import torch  # noqa: E402
from losses import loss_of  # noqa: E402

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    loss_of(model(torch.ones(8, 64, device="cuda"))).backward()
    optimizer.step()
    optimizer.zero_grad()
