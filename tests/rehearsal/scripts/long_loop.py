"""Loops of many rounds without a data loader; what follows takes more memory than training does."""

import torch

model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
done = 0
while True:
    if done % 2000 == 0 and done > 0:
        torch.save(model.state_dict(), "on-the-way.pt")
    for _ in range(2):
        model(torch.randn(8, 1024).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    if done > 10_000:
        break
for _ in range(1000):
    model(torch.randn(8, 1024).cuda()).square().mean().backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    rows = [model(torch.randn(16384, 1024).cuda()) for _ in range(4)]  # 64 MiB each
    print(torch.cat(rows).shape)
torch.save(model.state_dict(), "weights.pt")
