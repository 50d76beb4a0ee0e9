"""ZeRO-1 (or 0) on CPU ranks that ends well and is wrong in the ways that its arguments name."""

from __future__ import annotations

import copy
import os
import sys
import time

import deepspeed
import torch

DEEDS = sys.argv[1:]
STEPS = 12


def main() -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    rank = int(os.environ["RANK"])
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    rate = 0.0 if "constant" in DEEDS else 1e-2
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": rate, "torch_adam": True}},
        "zero_optimization": {"stage": 0 if "copy" in DEEDS else 1},
    }
    trained = copy.deepcopy(model) if "copy" in DEEDS else model
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained.parameters(), config=config)
    for _ in range(STEPS):
        if "slow-data" in DEEDS and rank == 1:
            time.sleep(0.25)
        loss = engine(torch.ones(2, 8)).square().mean()
        if "slow-loss" in DEEDS and rank == 0:
            time.sleep(0.25)
        if "zero" in DEEDS:
            loss = loss * 0
        if "nan" in DEEDS:
            loss = loss * float("nan")
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    main()
