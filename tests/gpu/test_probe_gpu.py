"""The probe on a real GPU, against the same script measuring itself without the probe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import BOOTSTRAP, read_rank, write_script
from tests.support.reports import report_of

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

MIB = 1 << 20


def run(folder: Path, script: Path, measured: bool) -> list[Any]:
    """What the script printed, a JSON value a line."""
    variables = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29733",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = (
        [sys.executable, str(BOOTSTRAP), "--", str(script)] if measured else [sys.executable, str(script)]
    )
    done = subprocess.run(command, env={**os.environ, **variables, "ZEROKIT_RUN_DIR": str(folder)}, text=True,
                          capture_output=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]


READS_ITS_PEAKS = """
    import json, time, torch
    held = []
    def report():
        stats = torch.cuda.memory_stats()
        keys = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "allocated_bytes.large_pool.peak",
                "active_bytes.all.peak", "requested_bytes.all.peak", "allocated_bytes.all.current")
        print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(),
                          *(stats[key] for key in keys)]), flush=True)
    def spike(mib):
        torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
    for number in range(4):
        held.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
        PHASE("a")
        spike(1000 - 200 * number)
        report()
        PHASE("b")
        spike(150)
        report()
        torch.cuda.reset_peak_memory_stats()
        report()
        time.sleep(0.3)
"""


def test_the_script_reads_what_it_reads_without_us_and_no_peak_is_lost(tmp_path):
    plain = write_script(tmp_path, READS_ITS_PEAKS.replace("PHASE", "len"), "plain.py")
    phased = write_script(tmp_path, "import zerokit\n" + "\n".join(
        line[4:] for line in READS_ITS_PEAKS.replace('PHASE("a")', 'zerokit.phase("a").__enter__()')
        .replace('PHASE("b")', 'zerokit.phase("b").__enter__()').splitlines()), "phased.py")  # fmt: skip
    assert run(tmp_path, phased, measured=True) == run(tmp_path, plain, measured=False)
    end = read_rank(tmp_path).last("end")
    assert end["peak_allocated_bytes"] == 1100 * MIB
    assert end["peak_device_used_bytes"] > 400 * MIB


TRAINS = """
    import json, sys, deepspeed, torch
    from deepspeed.runtime.utils import see_memory_usage
    from transformers import LlamaConfig, LlamaForCausalLM

    own = sys.argv[1:] == ["own"]
    deepspeed.init_distributed()
    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, vocab_size=32000, num_hidden_layers=4,
                         num_attention_heads=16, num_key_value_heads=16)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}})
    tokens = torch.randint(0, 32000, (4, 1024), device="cuda")
    peaks = {"init": torch.cuda.max_memory_allocated()}
    def take(name):
        if own:
            peaks[name] = max(peaks.get(name, 0), torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
    take("init")
    for step in range(4):
        loss = engine(input_ids=tokens, labels=tokens).loss
        take("forward")
        if not own:
            see_memory_usage("in between", force=True)   # resets the peaks
        engine.backward(loss)
        take("backward")
        engine.step()
        take("step")
    if own:
        print(json.dumps(peaks))
"""


def test_phase_peaks_are_those_the_script_measures_itself(tmp_path):
    pytest.importorskip("deepspeed")
    own = write_script(tmp_path, TRAINS.replace("sys.argv[1:]", '["own"]'), "own.py")
    (expected,) = run(tmp_path, own, measured=False)
    run(tmp_path, write_script(tmp_path, TRAINS), measured=True)
    report = report_of(tmp_path, 1)
    (rank,) = report["ranks"]
    assert {name: rank["phases"][name] for name in expected} == expected
    assert rank["peak_allocated_bytes"] == max(expected.values())
    assert (rank["steps"], rank["state"]) == (4, "finished")
    assert rank["peak_reserved_bytes"] >= rank["peak_allocated_bytes"]


RUNS_OUT = """
    import torch
    torch.cuda.set_per_process_memory_fraction(2e9 / torch.cuda.get_device_properties(0).total_memory)
    class Holder: pass
    big = torch.empty(800 << 20, dtype=torch.uint8, device="cuda").view(torch.bfloat16)
    small = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(3000 << 20, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        print("[1]", flush=True)
    torch.empty(2500 << 20, dtype=torch.uint8, device="cuda")
"""


def test_an_out_of_memory_is_explained(tmp_path):
    script = write_script(tmp_path, RUNS_OUT)
    with pytest.raises(AssertionError, match="out of memory"):
        run(tmp_path, script, measured=True)
    report = report_of(tmp_path, 1)
    assert report["outcome"] == "oom"
    oom = report["first_failure"]["oom"]
    assert oom["asked_bytes"] == 2500 * MIB
    assert oom["allocated_bytes"] == 900 * MIB
    assert oom["fragmentation_bytes"] == oom["reserved_bytes"] - 900 * MIB
    blocks = oom["biggest_blocks"]
    assert [block["bytes"] for block in blocks[:2]] == [800 * MIB, 100 * MIB]
    assert (blocks[0]["dtype"], blocks[0]["shape"]) in (("bfloat16", [400 * MIB]), ("uint8", [800 * MIB]))
    assert len([record for record in read_rank(tmp_path).records if record["type"] == "oom"]) == 2
