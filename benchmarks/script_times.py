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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.inputs import Inputs
from benchmarks.rehearsal.rows import script_path
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
"""Imports, data preparation and the compiler may take no longer."""
SMALL = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True,
}  # fmt: skip
LARGE = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "tie_word_embeddings": True, "rope_theta": 500000.0, "max_position_embeddings": 131072,
}  # fmt: skip

MEDIUM = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 1536, "intermediate_size": 6144,
    "num_hidden_layers": 14, "num_attention_heads": 24, "num_key_value_heads": 8, "tie_word_embeddings": True,
}  # fmt: skip
QWEN = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 12, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
    "max_position_embeddings": 32768, "rope_theta": 1000000.0,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "tie_word_embeddings": True, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
}  # fmt: skip
WIDE = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 2560, "intermediate_size": 6912,
    "num_hidden_layers": 16, "num_attention_heads": 20, "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 50257, "n_embd": 1280, "n_layer": 20, "n_head": 20,
    "n_positions": 1024, "n_ctx": 1024,
}  # fmt: skip
RUN_CLM = "Transformers: examples/pytorch/language-modeling/run_clm.py"
MODELS = {
    "small": SMALL, "large": LARGE, "medium": MEDIUM, "qwen": QWEN, "qwen3": QWEN3, "wide": WIDE,
    "gpt2": GPT2,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    name: str
    gpus: int = 1
    script: str = "sft"
    data: str = "sft"
    model: str = "large"
    length: int = 2048
    micro_batch: int = 4
    accumulation: int = 1
    zero: int = 2
    offload: bool = False
    checkpointing: bool = False
    peft: bool = False


CASES = (
    Case(name="small.z2", model="small", length=1024),
    Case(name="small.accumulation", model="small", length=1024, micro_batch=1, accumulation=4),
    Case(name="large.z3", zero=3),
    Case(name="large.reward", script="reward", data="dpo", length=2304, micro_batch=2),
    Case(name="large.offload", offload=True),
    Case(name="large.z2.two", gpus=2),
    Case(name="large.z3.two", gpus=2, zero=3),
    Case(name="small.z3.two", gpus=2, zero=3, model="small", length=1024),
    Case(name="large.offload.two", gpus=2, zero=3, offload=True, checkpointing=True, micro_batch=8),
)
SECOND = (
    Case(name="medium.sft", model="medium"),
    Case(name="qwen.sft.z3", model="qwen", zero=3, length=1024),
    Case(name="qwen.dpo", model="qwen", script="dpo", data="dpo", micro_batch=1),
    Case(name="medium.reward.z3", model="medium", script="reward", data="dpo", zero=3, micro_batch=2,
         length=2304),
    Case(name="qwen.kto", model="qwen", script="kto", data="dpo", micro_batch=2),
    Case(name="medium.lora", model="medium", peft=True, checkpointing=True),
    Case(name="medium.offload", model="medium", offload=True, micro_batch=8),
    Case(name="medium.checkpointed", model="medium", checkpointing=True, micro_batch=16),
    Case(name="medium.z3.two", model="medium", zero=3, gpus=2, length=1024),
    Case(name="qwen.dpo.two", model="qwen", script="dpo", data="dpo", gpus=2, micro_batch=2),
    Case(name="medium.reward.two", model="medium", script="reward", data="dpo", gpus=2, accumulation=2,
         micro_batch=1, length=2304),
    Case(name="medium.offload.two", model="medium", gpus=2, zero=3, offload=True, checkpointing=True,
         micro_batch=8),
)  # fmt: skip
"""To be predicted before they are measured; the first ones were in part."""
_KNOWN = {case.name: case for case in (*CASES, *SECOND)}
TRACED = (
    "qwen.dpo", "medium.offload", "qwen.sft.z3", "medium.z3.two", "wide.sft.z3.two", "wide.offload.two",
)  # fmt: skip
THIRD = (
    *(_KNOWN[name] for name in TRACED[:4]),
    _KNOWN["large.offload"],
    _KNOWN["qwen.dpo.two"],
    Case(name="qwen.reward", model="qwen", script="reward", data="dpo", micro_batch=1, length=2304),
    _KNOWN["medium.offload.two"],
    Case(name="small.lora.z3", model="small", peft=True, zero=3, length=1024, micro_batch=2),
    _KNOWN["medium.reward.two"],
    Case(name="small.kto", model="small", script="kto", data="dpo", micro_batch=2, accumulation=2),
    _KNOWN["small.z3.two"],
)
"""Those of :data:`TRACED` again; the others are predicted before they are measured."""
_KNOWN |= {case.name: case for case in THIRD}
FOURTH = tuple(
    _KNOWN[name]
    for name in ("small.lora.z3", "large.offload", "qwen.reward", "qwen.kto", "medium.lora", "qwen.sft.z3",
                 "small.kto", "medium.sft")
)  # fmt: skip
"""Again on another host, all on one GPU, with a model that was changed for none of what this list gives."""
FIFTH = (
    Case(name="wide.sft.z3.two", model="wide", gpus=2, zero=3, micro_batch=2),
    Case(name="qwen3.sft.two", model="qwen3", gpus=2, length=1024),
    Case(name="wide.dpo.two", model="wide", script="dpo", data="dpo", gpus=2, micro_batch=1),
    Case(name="wide.offload.two", model="wide", gpus=2, offload=True, checkpointing=True),
    Case(name="gpt2.clm.two", model="gpt2", script="run_clm", data="sft", gpus=2, length=1024),
    Case(name="qwen3.lora.z3.two", model="qwen3", gpus=2, zero=3, peft=True, length=1024, micro_batch=2),
    Case(name="qwen3.sft.z3", model="qwen3", zero=3, length=1536, micro_batch=2),
    Case(name="wide.kto", model="wide", script="kto", data="dpo", micro_batch=2),
    Case(name="gpt2.clm", model="gpt2", script="run_clm", data="sft", length=512, micro_batch=16),
    Case(name="wide.offload.z3", model="wide", zero=3, offload=True),
    Case(name="qwen3.dpo", model="qwen3", script="dpo", data="dpo", micro_batch=1),
)
"""Models and settings that were never timed before, six on two GPUs."""
LISTS = {"first": CASES, "second": SECOND, "third": THIRD, "fourth": FOURTH, "fifth": FIFTH}


def row_of(case: Case, steps: int) -> dict[str, Any]:
    """What is run, as a row without measurements."""
    zero: dict[str, Any] = {"stage": case.zero}
    if case.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    is_example = case.script == "run_clm"
    arguments = [
        "--model_name_or_path", "{model}", "--output_dir", "{out}",
        "--per_device_train_batch_size", str(case.micro_batch),
        "--gradient_accumulation_steps", str(case.accumulation), "--max_steps", str(steps),
        "--logging_steps", "1", "--report_to", "none", "--save_strategy", "no", "--bf16", "True",
        "--dtype", "bfloat16", "--gradient_checkpointing", str(case.checkpointing),
    ]  # fmt: skip
    if is_example:
        arguments += ["--train_file", "{data}/words.txt", "--do_train", "--block_size", str(case.length)]
    else:
        arguments += ["--dataset_name", "{data}/" + case.data, "--max_length", str(case.length)]
    if case.peft:
        arguments += ["--use_peft", "--lora_target_modules", "all-linear"]
    return {
        "name": case.name,
        "script": RUN_CLM if is_example else f"trl/scripts/{case.script}.py",
        "model": MODELS[case.model],
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
        "probed": "between steps",
        "case": asdict(case),
        "phases": {},
        "peak_allocated_bytes": 1,
        "peak_reserved_bytes": 1,
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


class Started:
    """A script that was started and waits before its first forward pass."""

    def __init__(
        self,
        row: dict[str, Any],
        number: int,
        inputs: Inputs,
        folder: Path,
        trace_after: int,
        transformers: Path | None,
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
        arguments = [_filled(each, values) for each in row["args"]]
        script = script_path(row["script"], {"--transformers": transformers})
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
            command, env=environment, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
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
        speed = speed_of({MODEL: [took for each in read for took in each["rounds"]["first"]]}, "probe")
        return {
            **self.row,
            "alone_on_host": True,
            "step_seconds": seconds,
            "step_seconds_median": round(statistics.median(seconds), 5),
            "peak_allocated_bytes": max(each["allocated"] for each in read),
            "peak_reserved_bytes": max(each["reserved"] for each in read),
            "host_factor": round(speed.factor, 4),
            "host_factor_range": [round(each, 4) for each in (speed.low, speed.high) if each],
            "host_rounds": [each["rounds"] for each in read],
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


def main() -> int:
    """Run the cases; 1 where one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--cases", type=Path, help="write the rows without measurements there, and end")
    parser.add_argument("--gpus", type=int, choices=(1, 2), help="only the cases with so many")
    parser.add_argument("--list", choices=tuple(LISTS), default="first", help="of cases")
    parser.add_argument("--transformers", type=Path, help="a copy of that repository, for its examples")
    parser.add_argument("--traces", type=Path, help="trace the last steps of traced cases there (.jsonl.gz)")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=1e9, help="everything ends after that")
    parser.add_argument("--case-seconds", type=float, default=60.0, help="longest time of one case")
    options = parser.parse_args()
    cases = [
        row_of(case, options.steps)
        for case in LISTS[options.list]
        if (not options.only or case.name in options.only) and options.gpus in (None, case.gpus)
    ]
    if options.cases:
        options.cases.write_text("".join(json.dumps(row) + "\n" for row in cases))
        return 0
    began = time.monotonic()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="zerokit-times-") as folder:
        inputs = Inputs(Path(folder) / "inputs")
        after = options.steps - TRACED_STEPS if options.traces else 0
        started = [
            Started(
                row, at, inputs, Path(folder), after if row["name"] in TRACED else 0, options.transformers
            )
            for at, row in enumerate(cases)
        ]
        try:
            _wait(started, min(START_SECONDS, options.seconds))
            print(f"all wait after {time.monotonic() - began:.0f} s", flush=True)
            for each in started:
                left = options.seconds - (time.monotonic() - began)
                if left <= 0:
                    break
                done = each.go(min(options.case_seconds, left))
                failed += "error" in done
                with options.output.open("a") as output:
                    output.write(json.dumps(done) + "\n")
                if options.traces:
                    each.keep_traces(options.traces)
                said = done.get("step_seconds_median") or done["error"][-600:]
                print(f"{done['name']:24} host {done.get('host_factor')}  {said}", flush=True)
        finally:
            for each in started:
                each.process.terminate()  # all at once; stop() then waits for them
            for each in started:
                each.stop()
    return 1 if failed else 0


def _wait(started: list[Started], limit_seconds: float) -> None:
    """Until all scripts wait and DeepSpeed's operators are compiled, or the time is over."""
    end = time.monotonic() + limit_seconds
    compiling = subprocess.Popen([sys.executable, "-c", COMPILE], stdout=subprocess.DEVNULL)
    while time.monotonic() < end:
        if compiling.poll() is not None and all(each.ready() for each in started):
            return
        time.sleep(0.2)
    if compiling.poll() is None:
        compiling.kill()


if __name__ == "__main__":
    sys.exit(main())
