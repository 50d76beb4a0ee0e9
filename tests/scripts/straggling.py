"""Steps of a small Llama under ZeRO in which the last rank is slow in the way that is named, or none is.

    straggling.py KIND STAGE [--hidden N --layers N --batch N --seq-len N --steps N --slow SECONDS --factor N]

``loader`` sleeps between steps, ``host`` in the forward, ``tokens`` has so many times the sequences.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

KINDS = ("none", "loader", "host", "tokens")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("stage", type=int)
    for name, default in (
        ("hidden", 64),
        ("layers", 2),
        ("batch", 2),
        ("seq-len", 64),
        ("steps", 24),
        ("factor", 4),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--slow", type=float, default=0.08)
    parser.add_argument("--local_rank", type=int)
    return parser.parse_args()


def wait_for_turn() -> None:
    """Where several are started at once, train alone: the file TURN holds the number of the one that may."""
    if "TURN" not in os.environ:
        return
    turn, number = Path(os.environ["TURN"]), os.environ["NUMBER"]
    turn.with_name(f"ready-{number}-{os.environ['RANK']}").touch()
    while turn.read_text() != number:
        time.sleep(0.05)


def main() -> None:
    args = parse()
    on_gpu = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"
    deepspeed.init_distributed(dist_backend="nccl" if on_gpu else "gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    slow = rank == ranks - 1
    config = LlamaConfig(hidden_size=args.hidden, intermediate_size=3 * args.hidden, vocab_size=4096,
                         num_hidden_layers=args.layers, num_attention_heads=8)  # fmt: skip
    settings = {
        "train_micro_batch_size_per_gpu": args.batch, "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
        "zero_optimization": {"stage": args.stage}, "bf16": {"enabled": on_gpu},
    }  # fmt: skip
    model = LlamaForCausalLM(config)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    batch = args.batch * (args.factor if slow and args.kind == "tokens" else 1)
    tokens = torch.randint(0, 4096, (batch, args.seq_len), device=engine.device)
    wait_for_turn()
    steps = []
    for _ in range(args.steps):
        began = time.perf_counter()
        if slow and args.kind == "loader":
            time.sleep(args.slow)
        loss = engine(input_ids=tokens, labels=tokens).loss
        if slow and args.kind == "host":
            time.sleep(args.slow)
        engine.backward(loss)
        engine.step()
        loss.item()
        steps.append(round(time.perf_counter() - began, 5))
    if rank == 0:
        print(json.dumps({"steps": steps}), flush=True)


if __name__ == "__main__":
    main()
