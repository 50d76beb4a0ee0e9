"""Step times of TRL's scripts, unmodified, one at a time on their host, with the host's probe beside them.

    python -m benchmarks.script_times -o ROWS.jsonl [--gpus 1] [--only small.z2] [--steps 12]
    python -m benchmarks.script_times --cases CASES.jsonl          # the rows without their measurements

Rows have the form of ``tests/data/h200/h200-script-times.jsonl`` with ``host_probe`` and ``host_factor``:
``python -m benchmarks.rehearsal_time --rows ROWS.jsonl`` prints predicted beside measured; with CASES.jsonl
it predicts before there is a measurement. Needs CUDA GPUs, TRL and datasets; models (random weights) and data
are made here. Times are those of the host between the ends of DeepSpeed's steps, without a wait for the GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.inputs import Inputs
from zerokit.timing.host_speed import speed_of

ROOT = Path(__file__).resolve().parents[1]
CLOCK = """
import atexit, json, os, sys, time
if "STEP_TIMES_TO" in os.environ:
    from zerokit.instrument.post_import import PostImport
    ends = []
    def _engine(module):
        cls = module.DeepSpeedEngine
        step = cls._take_model_step
        def timed(self, *args, **kwargs):
            result = step(self, *args, **kwargs)
            ends.append(time.perf_counter())
            return result
        cls._take_model_step = timed
    PostImport({"deepspeed.runtime.engine": _engine}).install()
    def _write():
        torch = sys.modules.get("torch")
        if ends:
            with open(os.environ["STEP_TIMES_TO"] + "." + os.environ.get("RANK", "0"), "w") as file:
                json.dump({"ends": ends, "allocated": torch.cuda.max_memory_allocated(),
                           "reserved": torch.cuda.max_memory_reserved()}, file)
    atexit.register(_write)
"""
PROBE = (
    "import json, torch; from zerokit.doctor.host_probe import probe_host; "
    "print(json.dumps(probe_host(torch.device('cuda', 0))))"
)
SMALL = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True,
}  # fmt: skip
LARGE = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "tie_word_embeddings": True, "rope_theta": 500000.0, "max_position_embeddings": 131072,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    name: str
    gpus: int = 1
    script: str = "sft"
    data: str = "sft"
    large: bool = True
    length: int = 2048
    micro_batch: int = 4
    accumulation: int = 1
    zero: int = 2
    offload: bool = False
    checkpointing: bool = False


CASES = (
    Case(name="small.z2", large=False, length=1024),
    Case(name="small.accumulation", large=False, length=1024, micro_batch=1, accumulation=4),
    Case(name="large.z3", zero=3),
    Case(name="large.reward", script="reward", data="dpo", length=2304, micro_batch=2),
    Case(name="large.offload", offload=True),
    Case(name="large.z2.two", gpus=2),
    Case(name="large.z3.two", gpus=2, zero=3),
    Case(name="small.z3.two", gpus=2, zero=3, large=False, length=1024),
    Case(name="large.offload.two", gpus=2, zero=3, offload=True, checkpointing=True, micro_batch=8),
)


def row_of(case: Case, steps: int) -> dict[str, Any]:
    """What is run, as a row without measurements."""
    zero: dict[str, Any] = {"stage": case.zero}
    if case.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    arguments = [
        "--dataset_name", "{data}/" + case.data, "--model_name_or_path", "{model}", "--output_dir", "{out}",
        "--per_device_train_batch_size", str(case.micro_batch),
        "--gradient_accumulation_steps", str(case.accumulation), "--max_steps", str(steps),
        "--logging_steps", "1", "--report_to", "none", "--save_strategy", "no", "--bf16", "True",
        "--max_length", str(case.length), "--dtype", "bfloat16",
        "--gradient_checkpointing", str(case.checkpointing),
    ]  # fmt: skip
    return {
        "name": case.name,
        "script": f"trl/scripts/{case.script}.py",
        "model": LARGE if case.large else SMALL,
        "args": arguments,
        "deepspeed_config": {
            "bf16": {"enabled": "auto"},
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "zero_optimization": zero,
        },
        "deepspeed_option": "--deepspeed",
        "gpus": case.gpus,
        "case": asdict(case),
        "phases": {},
        "peak_allocated_bytes": 1,
        "peak_reserved_bytes": 1,
    }


def probe() -> dict[str, list[float]]:
    """Seconds that this host needs for each kind of work of the probe, by round."""
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _host(before: dict[str, list[float]], after: dict[str, list[float]]) -> dict[str, Any]:
    """The probes before and after a run, together: their middle and spread."""
    rounds = {name: [*took, *after[name]] for name, took in before.items()}
    speed = speed_of(rounds, "probe")
    return {
        "host_probe": {name: statistics.median(took) for name, took in rounds.items()},
        "host_factor": round(speed.factor, 4),
        "host_factor_range": [round(each, 4) for each in (speed.low, speed.high) if each],
        "host_factor_before_and_after": [round(speed_of(each, "").factor, 4) for each in (before, after)],
    }


def with_weights(folder: Path) -> None:
    """Random weights beside a model's configuration."""
    if (folder / "model.safetensors").exists():
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def measure(row: dict[str, Any], inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Run it once; the step times of rank 0 and the peaks of its worst rank."""
    import trl

    model = inputs.model(row["model"])
    with_weights(model)
    work = folder / row["name"]
    (work / "clock").mkdir(parents=True)
    (work / "clock" / "sitecustomize.py").write_text(CLOCK)
    config = work / "ds_config.json"
    config.write_text(json.dumps(row["deepspeed_config"]))
    values = {"{data}": str(inputs.folder), "{model}": str(model), "{out}": str(work / "out")}
    arguments = [_filled(each, values) for each in row["args"]]
    script = Path(trl.__file__).parent.parent / row["script"]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(row["gpus"]),
        "--master-port", "29517", str(script), *arguments, row["deepspeed_option"], str(config),
    ]  # fmt: skip
    environment = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join([str(work / "clock"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "STEP_TIMES_TO": str(work / "times"),
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in range(row["gpus"])),
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // row["gpus"])),  # CPU Adam's cores
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(work / "cache"),
    }
    with (work / "log").open("w") as log:
        code = subprocess.run(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False, timeout=240
        ).returncode
    read = [json.loads(path.read_text()) for path in sorted(work.glob("times.*"))]
    if code or not read:
        return {**row, "error": (work / "log").read_text()[-6000:]}
    ends = read[0]["ends"]
    seconds = [round(after - before, 4) for before, after in itertools.pairwise(ends)]
    return {
        **row,
        "alone_on_host": True,
        "step_seconds": seconds,
        # from the third step on, as the given rows have it
        "step_seconds_median": round(statistics.median(seconds[1:]), 4),
        "peak_allocated_bytes": max(each["allocated"] for each in read),
        "peak_reserved_bytes": max(each["reserved"] for each in read),
        "versions": _versions(),
    }


def _filled(argument: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        argument = argument.replace(name, value)
    return argument


def _versions() -> dict[str, str]:
    from importlib import metadata

    import torch

    names = ("torch", "transformers", "deepspeed", "accelerate", "trl")
    return {name: metadata.version(name) for name in names} | {"gpu": torch.cuda.get_device_name()}


def main() -> int:
    """Run the cases; 1 where one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--cases", type=Path, help="write the rows without measurements there, and end")
    parser.add_argument("--gpus", type=int, choices=(1, 2), help="only the cases with so many")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    cases = [
        row_of(case, options.steps)
        for case in CASES
        if (not options.only or case.name in options.only) and options.gpus in (None, case.gpus)
    ]
    if options.cases:
        options.cases.write_text("".join(json.dumps(row) + "\n" for row in cases))
        return 0
    failed = 0
    with tempfile.TemporaryDirectory(prefix="zerokit-times-") as folder:
        inputs = Inputs(Path(folder) / "inputs")
        for row in cases:
            before = probe()
            done = measure(row, inputs, Path(folder))
            done |= _host(before, probe())
            failed += "error" in done
            with options.output.open("a") as output:
                output.write(json.dumps(done) + "\n")
            said = done.get("step_seconds_median") or done["error"][-600:]
            print(f"{row['name']:24} host {done['host_factor']:.3f}  {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
