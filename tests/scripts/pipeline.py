"""A pipeline of two stages, whatever its configuration says; ``--stages 0``: an engine without one."""

import argparse

import deepspeed
import torch
from deepspeed.pipe import PipelineModule

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--stages", type=int, default=2)
args = parser.parse_args()

deepspeed.init_distributed()
layers = [torch.nn.Linear(32, 32) for _ in range(4)]
rows = [(torch.randn(32), torch.randn(32)) for _ in range(64)]
if args.stages:
    model = PipelineModule(layers=layers, loss_fn=torch.nn.MSELoss(), num_stages=args.stages)
    engine, *_ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=rows
    )
    for _ in range(3):
        engine.train_batch()
else:
    model = torch.nn.Sequential(*layers)
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    for _ in range(3):
        engine.backward(engine(torch.randn(engine.train_micro_batch_size_per_gpu(), 32)).pow(2).mean())
        engine.step()
