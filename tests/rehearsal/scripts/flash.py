"""Attention of flash-attn, which need not be installed: padded sequences, then the same tokens in a row."""

import sys

import torch
from flash_attn import flash_attn_func, flash_attn_varlen_func
from flash_attn.bert_padding import pad_input, unpad_input

torch.ones(8, 8, device="cuda").matmul(torch.ones(8, 8, device="cuda"))
batch, length, heads, dim = 4, 1024, 16, 64


def made(shared):
    return torch.randn(batch, length, shared, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)


query, key, value = made(heads), made(4), made(4)
before = torch.cuda.memory_allocated()
out = flash_attn_func(query, key, value, causal=True)
print("saved", torch.cuda.memory_allocated() - before)
gradient = torch.ones_like(out)
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
out.backward(gradient)
print("workspaces", torch.cuda.max_memory_allocated() - before)

mask = torch.ones(batch, length, dtype=torch.int64)
mask[1:, 256:] = 0
rows, where, lengths, longest, _ = unpad_input(query.detach(), mask.cuda())
tokens = length + 3 * 256
assert (rows.shape[0], longest, lengths.tolist()) == (tokens, length, [0, 1024, 1280, 1536, 1792])
rows.requires_grad_()
out = flash_attn_varlen_func(rows, rows, rows, lengths, lengths, longest, longest, causal=True)
gradient = torch.ones_like(out)
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
out.backward(gradient)
print("in a row", torch.cuda.max_memory_allocated() - before)
assert pad_input(out, where, batch, length).shape == query.shape
sys.stdout.flush()
