"""Runs out of GPU memory, as PyTorch says it, with a larger micro-batch than its argument names."""

import argparse
import json
from pathlib import Path

import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--deepspeed_config", type=Path, required=True)
    parser.add_argument("--most", type=int, required=True)
    parser.add_argument("--asks", type=int, help="Bytes of host memory that it asks for instead.")
    args = parser.parse_args()
    config = json.loads(args.deepspeed_config.read_text())
    micro_batch = config["train_micro_batch_size_per_gpu"]
    if args.asks:
        torch.empty(args.asks, dtype=torch.uint8)
    if micro_batch > args.most:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    print(f"trained {micro_batch} x {config['gradient_accumulation_steps']}", flush=True)


if __name__ == "__main__":
    main()
