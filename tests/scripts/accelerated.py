"""An Accelerate script, as its documentation writes one."""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, config.vocab_size, (2 * args.steps * accelerator.num_processes, 32))
    loader = DataLoader(TensorDataset(tokens), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (batch,) in enumerate(loader):
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step + 1} loss {loss.item():.4f} of {accelerator.num_processes} processes")


if __name__ == "__main__":
    main()
