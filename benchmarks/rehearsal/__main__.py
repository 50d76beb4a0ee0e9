"""Rehearse the measured runs, and print measured beside rehearsed.

    python -m benchmarks.rehearsal                       # every given row, in bytes by phase
    python -m benchmarks.rehearsal sft.full llama3.2-1b  # rows whose name has one of these
    python -m benchmarks.rehearsal --jsonl OUT           # and a line of JSON for each
    python -m benchmarks.rehearsal --rows FILE t5        # loops of another file of benchmarks/measure/data

Errors are rehearsed - measured. The rows were measured with torch 2.11.0+cu130 and transformers 5.17.0:
other versions allocate otherwise in places (docs/rehearsal.md), so the ones in use are printed. The last
lines are the summary over all phases of all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zerokit
from benchmarks.common import append
from benchmarks.rehearsal.inputs import Inputs
from benchmarks.rehearsal.rows import (
    MeasuredRun,
    beside_nearest,
    compared,
    planned_runs,
    raw_runs,
    script_path,
    timed_runs,
)
from zerokit.catalog import gpus
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.ranks import rehearse
from zerokit.rehearsal.result import Rehearsal
from zerokit.rehearsal.script import PlanUse
from zerokit.script.entry_points import Target

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run the rows that were asked for."""
    parser = argparse.ArgumentParser(description="Rehearsals beside measured runs.")
    parser.add_argument("names", nargs="*", help="parts of the names of rows")
    parser.add_argument("--kind", choices=("raw", "plan", "file"), help="only these")
    parser.add_argument("--deepspeed-examples", type=Path, help="a copy of that repository, for its scripts")
    parser.add_argument("--transformers", type=Path, help="a copy of that repository, for its examples")
    parser.add_argument("--rows", type=Path, help="rows of the loop, in place of those of tests/data/h200")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--jsonl", type=Path, help="append a line for each row")
    options = parser.parse_args()
    runs = raw_runs(options.rows) if options.rows else [*planned_runs(), *timed_runs(), *raw_runs()]
    chosen = [
        run
        for run in runs
        if (not options.names or any(part in run.name for part in options.names))
        and (options.kind is None or run.kind == options.kind)
    ]
    with tempfile.TemporaryDirectory(prefix="zerokit-benchmark-") as folder:
        bench = Bench(Path(folder), options)
        for run in chosen:
            bench.compare(run)
    bench.summary()
    return 0


class Bench:
    """The runs so far, and what they differ by."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.options = options
        (folder / "shown").mkdir()
        self.inputs = Inputs(folder / "inputs")
        self.errors: list[float] = []
        self.reserved_errors: list[float] = []
        self.unanswered: list[str] = []
        self.versions: dict[str, str] = {}

    def compare(self, run: MeasuredRun) -> None:
        """Rehearse one row and print a line."""
        try:
            rehearsed, phases, peak, reserved = self._rehearse(run)
        except Exception as error:
            self.unanswered.append(run.name)
            print(f"{run.name:<44} no answer: {error}", flush=True)
            return
        self.versions = rehearsed.versions
        cells = []
        for group, (size, difference) in compared(run, phases).items():
            cells.append(f"{group} {size} {difference:+d}")
            self.errors.append(abs(difference) / size)
        self.errors.append(abs(peak - run.peak_bytes) / run.peak_bytes)
        self.reserved_errors.append(abs(reserved - run.reserved_bytes) / run.reserved_bytes)
        nearest = ""
        if len(run.reserved_of_ranks) > 1:
            nearest = (
                f"(nearest rank: peak {beside_nearest(peak, run.peaks_of_ranks):+.3f}%, "
                f"reserved {beside_nearest(reserved, run.reserved_of_ranks):+.2f}%)  "
            )
        print(
            f"{run.name:<44} peak {run.peak_bytes} {100 * (peak / run.peak_bytes - 1):+.3f}%  "
            f"reserved {100 * (reserved / run.reserved_bytes - 1):+.2f}%  {nearest}{'  '.join(cells)}  "
            f"cpu {rehearsed.cpu_seconds:.0f} s  steps {rehearsed.steps}",
            flush=True,
        )
        if self.options.jsonl:
            line = {
                "name": run.name,
                "measured": run.phases,
                "rehearsed": phases,
                "peak": [run.peak_bytes, peak],
                "reserved": [run.reserved_bytes, reserved],
                "versions": rehearsed.versions,
                "guesses": [f"{g.location} {g.what}" for g in rehearsed.guesses],
            }
            append(self.options.jsonl, line)

    def _rehearse(self, run: MeasuredRun) -> tuple[Rehearsal, dict[str, int], int, int]:
        target, plan, allocator, launcher = self._target(run)
        request = RehearsalRequest(
            target=target,
            gpu=gpus.load("h200"),
            gpus=run.gpus,
            plan=PlanUse(folder=plan),
            launcher=launcher,
            no_cache=True,
            steps=100 if run.kind == "raw" else self.options.steps,
            writable=self.folder / "shown",
        )
        os.chdir(self.inputs.folder)  # finetune_llama.py reads "tatsu-lab/alpaca", a folder there
        with allocator_of_run(allocator):
            done = rehearse(request)
        if done.stopped is not None:
            raise RuntimeError(f"{done.stopped.location}: {done.stopped.reason[:600]}")
        rank = done.ranks[0]
        if run.kind != "raw":
            return done, rank.phases, rank.peak_allocated_bytes, rank.peak_reserved_bytes
        record = json.loads((self.folder / "shown" / "raw.json").read_text())
        last = record["last_step_rank0"]
        phases = {
            "init": record["after_init_rank0"]["max_alloc"],
            "forward": last["fwd"]["max_alloc"],
            "backward": last["bwd"]["max_alloc"],
            "step": last["step"]["max_alloc"],
        }
        # the script's own max_memory_reserved knows nothing of blocks that come back late
        return done, phases, record["peak"], rank.peak_reserved_bytes

    def _target(self, run: MeasuredRun) -> tuple[Target, str | None, str, str]:
        """What is run, its plan, the allocator's settings and the launcher."""
        if run.kind == "raw":
            row = self.folder / "row.json"
            row.write_text(json.dumps(run.row))
            out = self.folder / "shown" / "raw.json"
            allocator = run.row.get("alloc_conf", "")
            return _script(HERE / "raw_loop.py", str(row), str(out)), None, allocator, "deepspeed"
        model = self.inputs.model(run.model)
        strategy = run.strategy
        values = {
            "{data}": str(self.inputs.folder),
            "{model}": str(model),
            "{out}": str(self.folder / "out"),
            "{micro_batch}": str(strategy.get("micro_batch")),
            "{accumulation}": str(strategy.get("gradient_accumulation")),
        }
        arguments = [_filled(argument, values) for argument in run.arguments]
        copies = {"--deepspeed-examples": self.options.deepspeed_examples,
                  "--transformers": self.options.transformers}  # fmt: skip
        script = script_path(run.script, copies)
        if run.kind == "plan":
            return (
                _script(script, *arguments),
                self._plan(run, model),
                "expandable_segments:True",
                "deepspeed",
            )
        config = self.folder / "ds_config.json"
        config.write_text(json.dumps(run.deepspeed_config))
        return _script(script, *arguments, run.deepspeed_option, str(config)), None, "", "deepspeed"

    def _plan(self, run: MeasuredRun, model: Path) -> str:
        strategy, out = run.strategy, self.folder / f"plan-{run.name}"
        batch = strategy["micro_batch"] * strategy["data_parallel"] * strategy["gradient_accumulation"]
        lora: dict[str, Any] = {"method": "lora", "lora_rank": 16} if "--use_peft" in run.arguments else {}
        zerokit.plan(
            model=model,
            gpus=run.gpus,
            gpu="h200",
            seq_len=1024 if "grpo" in run.name else 2048,
            zero=strategy["zero_stage"],
            micro_batch=strategy["micro_batch"],
            global_batch=batch,
            checkpointing=strategy["activation_checkpointing"],
            offload_optimizer=strategy["offload_optimizer"],
            offload_param=strategy["offload_param"],
            out=out,
            **lora,
        )
        self._without_gathers_for_saves(out / "ds_config.json")
        return str(out)

    @staticmethod
    def _without_gathers_for_saves(path: Path) -> None:
        """As the plans of these rows were: zerokit gathers weights for a save only since 4c2193cc."""
        config = json.loads(path.read_text())
        zero = config["zero_optimization"]
        if "stage3_gather_16bit_weights_on_model_save" in zero:
            zero["stage3_gather_16bit_weights_on_model_save"] = False
            path.write_text(json.dumps(config))

    def summary(self) -> None:
        """Over all phases of all rows."""
        if not self.errors:
            return
        ordered = sorted(self.errors)
        share = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
        print(f"versions: {', '.join(f'{n} {v}' for n, v in self.versions.items())}")
        print(
            f"{len(ordered)} phases: median {100 * statistics.median(ordered):.4f} %, 95th percentile "
            f"{100 * share:.3f} %, worst {100 * ordered[-1]:.3f} %; reserved worst "
            f"{100 * max(self.reserved_errors):.2f} %; without answer: {', '.join(self.unanswered) or 'none'}"
        )


def _script(path: Path, *arguments: str) -> Target:
    return Target(script=str(path), module=None, arguments=arguments)


def _filled(argument: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        argument = argument.replace(name, value)
    return argument


@contextmanager
def allocator_of_run(settings: str) -> Iterator[None]:
    """PYTORCH_CUDA_ALLOC_CONF as the measured run had it."""
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    before: dict[str, Any] = {name: os.environ.pop(name, None) for name in names}
    if settings:
        os.environ[names[0]] = settings
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


if __name__ == "__main__":
    sys.exit(main())
