"""Gathers on a side stream what the default stream works with, as ZeRO-3 does: ``side_stream.py [record]``.

The host is far ahead of the GPU: products of 4,096 by 4,096 take longer than it takes to issue them.
"""

import sys

import torch

side = torch.cuda.Stream()
weight = torch.nn.Parameter(torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(6):
    value = weight
    for _ in range(20):
        with torch.cuda.stream(side):
            gathered = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
            gathered.zero_()
        torch.cuda.current_stream().wait_stream(side)
        value = value + 0.1
        for _ in range(8):
            torch.mm(value.detach(), gathered)
        if sys.argv[1:] == ["record"]:
            gathered.record_stream(torch.cuda.current_stream())
        del gathered
    value.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
