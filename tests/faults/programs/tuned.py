"""A training script whose ranks import no torch: each ZeRO stage does as it is told.

    tuned.py --deepspeed_config FILE [--batch N] 0=0.05 1=oom 2=hang 3=fail

A number is the seconds of a step. The rest of the stages take 0.02 s.
"""

import argparse
import json
import sys
import time

from zerokit.launcher.rank import probe as probes
from zerokit.launcher.rank import step_limit

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed_config")
parser.add_argument("--deepspeed", action="store_true")
parser.add_argument("--local_rank")
parser.add_argument("--batch", type=int)
parser.add_argument("--tokens", type=int, default=128)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("deeds", nargs="*")
args = parser.parse_args()

with open(args.deepspeed_config) as file:  # noqa: PTH123
    config = json.load(file)
stage = config["zero_optimization"]["stage"]
micro = config["train_micro_batch_size_per_gpu"]
deed = dict(text.split("=") for text in args.deeds).get(str(stage), "0.02")
rank = probes.ACTIVE
assert rank is not None
limit = step_limit.of_environment(rank)
rank.event(
    {"type": "engine", "zero_stage": stage, "micro_batch": micro, "batch_rows": args.batch or micro,
     "gradient_accumulation": config["gradient_accumulation_steps"], "batch_columns": args.tokens,
     "gradient_checkpointing": False, "parameters": None}
)  # fmt: skip
for _ in range(args.steps):
    rank.enter("forward")
    if deed == "oom" and rank.steps == 1:
        raise MemoryError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes"
        )
    if deed == "fail":
        sys.exit(3)
    while deed == "hang":
        time.sleep(0.1)
    time.sleep(float(deed) if deed != "oom" else 0.02)
    rank.enter("step")
    rank.step_done()
    rank.enter("other")
    if limit is not None:
        limit.step_done()
print("the script went on to its end")
