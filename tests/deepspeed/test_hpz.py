"""hpZ (ZeRO++) keeps losses and gradients: real DeepSpeed on four CPU ranks, two and two of a node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packages import needs

needs("deepspeed")

_SCRIPT = """
import sys, torch, deepspeed
size = int(sys.argv[1])
config = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
    "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 3, "zero_hpz_partition_size": size, "stage3_max_reuse_distance": 0,
                          "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 1000},
}
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
with deepspeed.zero.Init(config_dict_or_path=config):
    model = torch.nn.Sequential(torch.nn.Linear(13, 37), torch.nn.Tanh(), torch.nn.Linear(37, 5))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
torch.manual_seed(1 + torch.distributed.get_rank())
batch = torch.randn(2, 13, dtype=torch.bfloat16)
seen = []
for _ in range(8):
    loss = engine(batch).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
    seen.append((loss.item(), float(engine.get_global_grad_norm() or 0)))
if torch.distributed.get_rank() == 0:
    open(sys.argv[2], "w").write(repr(seen))
"""


@pytest.mark.slow
def test_losses_and_gradients_are_those_without_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    seen = []
    for size in ("1", "2"):
        told = tmp_path / f"seen{size}"
        ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
        environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        subprocess.run([*ranks, str(script), size, str(told)], check=True, env=environment, timeout=300)
        seen.append(told.read_text())
    assert seen[0] == seen[1]
    assert "0.0)" not in seen[1].partition("),")[2]  # no gradient vanished
