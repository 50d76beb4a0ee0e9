"""Real DeepSpeed on two CPU ranks: phases, steps, memory, and a rank that runs out of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packages import needs
from tests.support.ranks import BOOTSTRAP, read_rank, write_script
from tests.support.reports import report_of
from tests.support.run_reports import PLAN, shown
from zerokit.report.predicted import compare_with_plan
from zerokit.report.schema import RunReport

needs("deepspeed")
needs("accelerate")

MIB = 1 << 20
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}
RAW = """
    import argparse, deepspeed, importlib, os, torch, zerokit
    from deepspeed.runtime.utils import see_memory_usage

    class Spike(torch.nn.Module):
        def forward(self, x):
            torch.ones(64 << 20)          # 256 MiB of float32, gone after the forward
            return x

    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=int(os.environ["LOCAL_RANK"]))
    deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    assert args.local_rank >= 0
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # minutes of C++
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), Spike(), torch.nn.Linear(64, 64))
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    data = torch.utils.data.DataLoader(torch.randn(12, 64), batch_size=2, num_workers=1)
    for batch in data:
        loss = engine(batch).pow(2).mean()
        engine.backward(loss)
        engine.step()
    see_memory_usage("here", force=True)
    with zerokit.phase("generate"):
        torch.ones(128 << 20)             # 512 MiB
    engine.eval()
    with torch.no_grad():
        engine(batch)
    print("steps", engine.global_steps, flush=True)
"""


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def launch(run_dir: Path, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "ZEROKIT_RUN_DIR": str(run_dir), "ZEROKIT_DEVICE": "cpu", "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **variables,
    }  # fmt: skip
    return subprocess.run(command, env=environment, cwd=run_dir, capture_output=True, text=True, timeout=200,
                          check=False)  # fmt: skip


def test_phases_and_steps_of_a_raw_deepspeed_script(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    script = write_script(tmp_path, RAW)
    done = launch(
        tmp_path,
        ["torchrun", "--nproc_per_node", "2", "--master_port", str(free_port()), str(BOOTSTRAP), "--",
         str(script), "--deepspeed", "--deepspeed_config", "ds.json"],  # DeepSpeed's launcher imports it, too
        DS_ACCELERATOR="cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("steps 3") == 2
    report = report_of(tmp_path, 2)
    RunReport.model_validate(report)
    assert report["outcome"] == "ok"
    for rank in report["ranks"]:
        assert (rank["state"], rank["steps"], rank["micro_steps"]) == ("finished", 3, 6)
        counts = {name: phase["count"] for name, phase in rank["phase_details"].items()}
        counts.pop("other")
        assert counts == {
            "load": 1,
            "init": 1,
            "forward": 6,
            "backward": 6,
            "step": 6,
            "eval": 1,
            "generate": 1,
        }
        assert rank["peak_allocated_bytes"] is None
        phases = rank["phases"]
        assert phases["forward"] - phases["step"] > 200 * MIB
        assert phases["generate"] - phases["forward"] > 200 * MIB
        assert rank["peak_host_rss_bytes"] >= max(phases.values())
        assert 0 < rank["baseline_host_rss_bytes"] < phases["forward"]
        assert rank["engine"]["other_parameters"] == 0


PLAIN = """
    import torch

    torch.distributed.init_process_group("gloo")

    class Spike(torch.nn.Module):
        def forward(self, x):
            torch.ones(64 << 20)          # 256 MiB of float32, gone after the forward
            return x

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), Spike(), torch.nn.Linear(64, 64))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(6):
        for micro_batch in range(2):
            model(torch.randn(2, 64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model(torch.randn(2, 64))
    torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.slow
def test_phases_and_steps_of_a_script_without_deepspeed(tmp_path):
    script = write_script(tmp_path, PLAIN)
    done = launch(
        tmp_path,
        ["torchrun", "--nproc_per_node", "2", "--master_port", str(free_port()), str(BOOTSTRAP), "--", "--",
         str(script)],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = report_of(tmp_path, 2)
    assert report["outcome"] == "ok" and report["problems"] == []
    for rank in report["ranks"]:
        assert (rank["steps"], rank["micro_steps"], rank["most_micro_steps"]) == (6, 12, 2)
        assert rank["steps_counted_by"] == "optimizer" and rank["engine"] is None
        assert rank["median_step_seconds"] > 0
        counts = {name: phase["count"] for name, phase in rank["phase_details"].items()}
        counts.pop("other")
        assert counts == {"load": 1, "forward": 12, "backward": 12, "step": 6, "eval": 1, "save": 1}
        assert rank["phases"]["forward"] - rank["phases"]["step"] > 200 * MIB
    assert "without DeepSpeed" in shown(report)
    assert compare_with_plan(report, PLAN) is None


ACCELERATED = """
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    assert accelerator.num_processes == 2, accelerator.num_processes
    model = torch.nn.Linear(64, 64)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for step in range(5):
        loss = model(torch.randn(2, 64)).pow(2).mean()
        if step == 3 and accelerator.process_index == 1:
            torch.empty(1 << 55, dtype=torch.uint8)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow  # a real rank runs out of memory in tests/faults/test_out_of_memory.py
def test_a_rank_that_runs_out_of_memory_is_the_first_failure(tmp_path):
    (tmp_path / "ds.json").write_text(
        json.dumps({**{k: v for k, v in CONFIG.items() if k != "optimizer"}, "gradient_accumulation_steps": 1,
                    "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True})
    )  # fmt: skip
    script = write_script(tmp_path, ACCELERATED)
    done = launch(
        tmp_path,
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port",
         str(free_port()), str(BOOTSTRAP), "--", str(script)],
        ACCELERATE_USE_DEEPSPEED="true",
        ACCELERATE_DEEPSPEED_CONFIG_FILE="ds.json",
    )  # fmt: skip
    assert done.returncode != 0
    plan = {
        "chosen": {
            "micro_batch": 2, "gradient_accumulation": 1, "zero_stage": 2, "data_parallel": 2,
            "activation_checkpointing": "none", "offload_optimizer": "none",
            "estimate": {"min_vram_bytes": 50, "per_rank": [{"ranks": [0, 1], "peak_allocated_bytes": 40}]},
        },
    }  # fmt: skip
    report = report_of(tmp_path, 2, plan=plan)
    RunReport.model_validate(report)
    assert (report["outcome"], report["exit_code"]) == ("oom", 10)
    failure = report["first_failure"]
    assert (failure["rank"], failure["phase"], failure["step"]) == (1, "forward", 4)
    assert failure["oom"]["asked_bytes"] == 1 << 55
    assert failure["oom"]["memory"] == "host"
    assert failure["oom"]["predicted_peak_allocated_bytes"] == 40
    assert failure["oom"]["measured_peak_host_rss_bytes"] > 0
    states = {rank["rank"]: rank["state"] for rank in report["ranks"]}
    assert states == {0: "terminated", 1: "failed"}
    assert read_rank(tmp_path, 1).last("error")["phase"] == "forward"
