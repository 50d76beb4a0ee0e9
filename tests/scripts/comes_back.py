"""A raw script that saves every two steps and loads what it is told to; rank 1 dies once, at step 5."""

import argparse
import os
import signal
from pathlib import Path

import deepspeed
import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load")
    parser.add_argument("--error", action="store_true")
    args, _ = parser.parse_known_args()
    deepspeed.init_distributed(dist_backend="gloo")
    config = {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
    }
    model = torch.nn.Linear(8, 8)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    if args.load:
        engine.load_checkpoint(args.load)
        print("resumed at", engine.global_steps, flush=True)
    while engine.global_steps < 8:
        if engine.global_steps == 5 and os.environ["RANK"] == "1":
            if args.error:
                raise ValueError("a bad sample")
            if not Path("died").exists():
                Path("died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        engine.backward(engine(torch.randn(2, 8)).square().mean())
        engine.step()
        if engine.global_steps % 2 == 0:
            engine.save_checkpoint("ckpt")
    print("done", engine.global_steps, flush=True)


if __name__ == "__main__":
    main()
