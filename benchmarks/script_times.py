"""Step times of TRL's scripts, unmodified, one at a time on their host, the host's probe between their steps.

    python -m benchmarks.script_times -o ROWS.jsonl [--list second] [--gpus 1] [--only small.z2] [--steps 24]
    python -m benchmarks.script_times --cases CASES.jsonl          # the rows without their measurements

Rows have the form of ``tests/data/h200/h200-script-times.jsonl`` with ``host_factor`` and the probe's rounds:
``python -m benchmarks.rehearsal_time --rows ROWS.jsonl`` prints predicted beside measured; with CASES.jsonl
it predicts before there is a measurement. Needs CUDA GPUs, TRL and datasets; models (random weights) and data
are made here. All scripts start at once and wait before their first forward pass; then one after the other
runs. A step is timed from the end of the last one's probe to its own end on the GPU (``script_clock``).
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.inputs import Inputs
from benchmarks.rehearsal.rows import script_path
from benchmarks.script_time_cases import LISTS, TRACED, row_of
from benchmarks.script_trace import TRACED_STEPS
from zerokit.timing.host_speed import MODEL, speed_of

ROOT = Path(__file__).resolve().parents[1]
CLOCK = """
import os
if "STEP_TIMES_TO" in os.environ:
    from benchmarks.script_clock import install
    install()
"""
COMPILE = (
    "from deepspeed.ops.op_builder import CPUAdamBuilder, FusedAdamBuilder; "
    "CPUAdamBuilder().load(); FusedAdamBuilder().load()"
)
START_SECONDS = 150.0
"""Imports, data preparation and the compiler may take no longer, where nothing else is said."""


def with_weights(folder: Path) -> None:
    """Random weights beside a model's configuration."""
    if (folder / "model.safetensors").exists():
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    with torch.device("cuda"):  # a CPU takes long for its random numbers
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()


class Started:
    """A script that was started and waits before its first forward pass."""

    def __init__(
        self,
        row: dict[str, Any],
        number: int,
        inputs: Inputs,
        folder: Path,
        trace_after: int,
        copies: Mapping[str, Path | None],
    ) -> None:
        self.row = row
        model = inputs.model(row["model"])
        with_weights(model)
        self.work = work = folder / row["name"]
        (work / "clock").mkdir(parents=True)
        (work / "clock" / "sitecustomize.py").write_text(CLOCK)
        config = work / "ds_config.json"
        config.write_text(json.dumps(row["deepspeed_config"]))
        values = {"{data}": str(inputs.folder), "{model}": str(model), "{out}": str(work / "out")}
        arguments = [_filled(arg, values) for arg in row["args"]]
        script = script_path(row["script"], copies)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(row["gpus"]),
            "--master-port", str(29517 + number), str(script), *arguments, row["deepspeed_option"],
            str(config),
        ]  # fmt: skip
        path = [str(work / "clock"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = dict(os.environ) | {
            "PYTHONPATH": os.pathsep.join(path),
            "STEP_TIMES_TO": str(work / "times"),
            "STEP_TRACE_AFTER": str(trace_after),
            "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in range(row["gpus"])),
            "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // row["gpus"])),  # CPU Adam's cores
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(work / "cache"),
        }
        self._log = (work / "log").open("w")
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=inputs.folder,  # finetune_llama.py reads tatsu-lab/alpaca from there
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ready(self) -> bool:
        """Whether all its ranks wait, or it has ended."""
        waits = all((self.work / f"ready.{rank}").exists() for rank in range(self.row["gpus"]))
        return waits or self.process.poll() is not None

    def go(self, limit_seconds: float) -> dict[str, Any]:
        """Let it run to its end; its row, with how it failed where it did."""
        (self.work / "go").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(1.0, limit_seconds))
        self.stop()
        read = [json.loads(path.read_text()) for path in sorted(self.work.glob("times.*"))]
        if len(read) < self.row["gpus"]:
            return {**self.row, "error": (self.work / "log").read_text()[-6000:]}
        seconds = read[0]["step_seconds"]
        speed = speed_of({MODEL: [took for record in read for took in record["rounds"]["first"]]}, "probe")
        return {
            **self.row,
            "alone_on_host": True,
            "step_seconds": seconds,
            "step_seconds_median": round(statistics.median(seconds), 5),
            "peak_allocated_bytes": max(record["allocated"] for record in read),
            "peak_reserved_bytes": max(record["reserved"] for record in read),
            "host_factor": round(speed.factor, 4),
            "host_factor_range": [round(entry, 4) for entry in (speed.low, speed.high) if entry],
            "host_rounds": [record["rounds"] for record in read],
            "versions": _versions(),
        }

    def keep_traces(self, place: Path) -> None:
        """Append the ranks' traces, a line each."""
        with gzip.open(place, "at", encoding="utf-8") as kept:
            for path in sorted(self.work.glob("trace.*")):
                kept.write(json.dumps({"name": self.row["name"], **json.loads(path.read_text())}) + "\n")

    def stop(self) -> None:
        """End what still runs: torchrun asks its ranks first."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(8)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self._log.close()


def _filled(argument: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        argument = argument.replace(name, value)
    return argument


def _versions() -> dict[str, str]:
    from importlib import metadata

    import torch

    names = ("torch", "transformers", "deepspeed", "accelerate", "trl")
    return {name: metadata.version(name) for name in names} | {"gpu": torch.cuda.get_device_name()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--cases", type=Path, help="write the rows without measurements there, and end")
    parser.add_argument("--gpus", type=int, choices=(1, 2, 4), help="only the cases with so many")
    parser.add_argument("--list", choices=tuple(LISTS), default="first", help="of cases")
    parser.add_argument("--transformers", type=Path, help="a copy of that repository, for its examples")
    parser.add_argument("--deepspeed-examples", type=Path, help="a copy of that repository, for its scripts")
    parser.add_argument("--traces", type=Path, help="trace the last steps of traced cases there (.jsonl.gz)")
    parser.add_argument("--only", action="append", default=[], help="a case; in the order in which they run")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=1e9, help="everything ends after that")
    parser.add_argument(
        "--start-seconds", type=float, default=START_SECONDS, help="what is not ready then is left out"
    )
    parser.add_argument("--case-seconds", type=float, default=60.0, help="longest time of one case")
    return parser


def main() -> int:
    """Run the cases; 1 where one failed."""
    parser = _parser()
    options = parser.parse_args()
    listed = {case.name: case for case in LISTS[options.list]}
    if unknown := set(options.only) - listed.keys():
        parser.error(f"no case of this list: {', '.join(sorted(unknown))}")
    names = options.only or list(listed)
    chosen = [listed[name] for name in names if options.gpus in (None, listed[name].gpus)]
    cases = [row_of(case, options.steps) for case in chosen]
    if options.cases:
        options.cases.write_text("".join(json.dumps(row) + "\n" for row in cases))
        return 0
    began = time.monotonic()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="zerokit-times-") as folder:
        inputs = Inputs(Path(folder) / "inputs")
        after = options.steps - TRACED_STEPS if options.traces else 0
        copies = {
            "--transformers": options.transformers and options.transformers.resolve(),
            "--deepspeed-examples": options.deepspeed_examples and options.deepspeed_examples.resolve(),
        }
        started = [
            Started(row, at, inputs, Path(folder), after if row["name"] in TRACED else 0, copies)
            for at, row in enumerate(cases)
        ]
        try:
            _wait(started, min(options.start_seconds, options.seconds))
            late = [process for process in started if not process.ready()]
            for process in late:
                process.stop()  # it would disturb the others
            names = ", ".join(process.row["name"] for process in late) or "none"
            print(f"started in {time.monotonic() - began:.0f} s; left out: {names}", flush=True)
            for process in (process for process in started if process not in late):
                left = options.seconds - (time.monotonic() - began)
                if left <= 0:
                    break
                done = process.go(min(options.case_seconds, left))
                failed += "error" in done
                with options.output.open("a") as output:
                    output.write(json.dumps(done) + "\n")
                if options.traces:
                    process.keep_traces(options.traces)
                said = done.get("step_seconds_median") or done["error"][-600:]
                print(f"{done['name']:24} host {done.get('host_factor')}  {said}", flush=True)
        finally:
            for process in started:
                process.process.terminate()  # all at once; stop() then waits for them
            for process in started:
                process.stop()
    return 1 if failed else 0


def _wait(started: list[Started], limit_seconds: float) -> None:
    """Until all scripts wait and DeepSpeed's operators are compiled, or the time is over."""
    end = time.monotonic() + limit_seconds
    compiling = subprocess.Popen([sys.executable, "-c", COMPILE], stdout=subprocess.DEVNULL)
    while time.monotonic() < end:
        if compiling.poll() is not None and all(process.ready() for process in started):
            return
        time.sleep(0.2)
    if compiling.poll() is None:
        compiling.kill()


if __name__ == "__main__":
    sys.exit(main())
