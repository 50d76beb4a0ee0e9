"""What exact answers cost beside an import: rehearsals of TRL's sft.py with Llama-3.1, and a plan for it.

    python -m benchmarks.rehearsal_cost [NAME…] [--jsonl OUT]

Before each row S is measured, the CPU seconds of importing the libraries that the script imports; a row's CPU
seconds, everything included, are given as so many S. Sequences have 4,096 tokens; the GPUs are H200s and for
the plan four H100s. A plan is to be made in 60 s by the clock on two quiet cores, and the same one again in
1.5 s of CPU. The exit code is 1 where a row is above its bar. CPU seconds depend on what else the
machine does, hence S in the same minute.
"""

from __future__ import annotations

import compileall
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import zerokit
from benchmarks.common import append, options_of
from benchmarks.rehearsal.inputs import Inputs
from zerokit.catalog import gpus, models
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.ranks import rehearse
from zerokit.script.entry_points import Target

IMPORTS = "import torch, transformers, trl, deepspeed, peft, datasets"
LORA = ("--use_peft", "True")
REHEARSALS: dict[str, tuple[str, int, tuple[str, ...], float]] = {
    "8b": ("llama-3.1-8b", 1, (), 2.5),
    "8b-lora": ("llama-3.1-8b", 1, LORA, 2.5),
    "8b-ranks": ("llama-3.1-8b", 8, (), 2.5),
    "8b-lora-ranks": ("llama-3.1-8b", 8, LORA, 2.5),
    "70b-ranks": ("llama-3.1-70b", 8, (), 3.0),
    "70b-lora-ranks": ("llama-3.1-70b", 8, LORA, 3.0),
}
"""By name: the model, GPUs (under ZeRO-3 where they are several), arguments, and the bar as so many S."""
PLAN = "plan"
OPERATORS = "operators"
ENGINE = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}


class Cost:
    """What a command took, and what it printed: CPU seconds of all its processes, seconds by the clock, bytes
    of its largest process."""

    def __init__(self, words: Sequence[str], folder: Path, **variables: str) -> None:
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **variables}
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, check=False, env=environment, cwd=folder
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.wall_seconds = time.monotonic() - begun
        self.cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.memory_bytes = after.ru_maxrss * 1024
        if done.returncode not in (0, 3, 15):
            raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        self.exit_code, self.printed = done.returncode, done.stdout


class Jobs:
    """TRL's sft.py on made-up data, in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._inputs = folder, Inputs(folder / "inputs")

    def imports(self) -> float:
        """S. CPU seconds."""
        return Cost(["-c", IMPORTS], self._folder).cpu_seconds

    def _script(self, model: str, *arguments: str) -> list[str]:
        given = self._inputs.model(dict(models.load(model).hf_config))
        return (
            f"""-m trl.scripts.sft --model_name_or_path {given} --dtype bfloat16
            --dataset_name {self._inputs.folder / "sft"} --output_dir {self._folder / "out"}
            --max_length 4096 --bf16 True --report_to none""".split()
            + list(arguments)
        )

    def _rehearsed(self, model: str, gpus: int, *arguments: str) -> Cost:
        engine = self._folder / "ds_config.json"
        engine.write_text(json.dumps(ENGINE))
        under = ["--deepspeed", str(engine)] if gpus > 1 else []
        words = f"-m zerokit rehearse --json --no-cache --gpus {gpus} --gpu h200".split()
        batch = ["--per_device_train_batch_size", "1", "--gradient_checkpointing", "True"]
        return Cost([*words, *self._script(model, *batch, *under, *arguments)], self._folder)

    def rehearsal(self, name: str) -> Iterator[dict[str, Any]]:
        """One rehearsal as the first of its GPUs."""
        model, gpus, arguments, bar = REHEARSALS[name]
        s = self.imports()
        cost = self._rehearsed(model, gpus, *arguments)
        report = json.loads(cost.printed)
        yield {
            **_row(name, s, cost.cpu_seconds, bar),
            "wall_seconds": round(cost.wall_seconds, 1),
            "memory_bytes": cost.memory_bytes,
            "peak_allocated_bytes": report["ranks"][0]["peak_allocated_bytes"],
            "depth": report["depth"],
            "versions": report["versions"],
        }

    def operators(self) -> None:
        """Print how many operators a second a script dispatches, all layers run, loading included."""
        recorded = self._folder / "operators.json"
        words = self._script("llama-3.1-8b", "--per_device_train_batch_size", "1")
        target = Target(script=None, module=words[1], arguments=tuple(words[2:]))
        request = RehearsalRequest(target=target, gpu=gpus.load("h200"), operators=recorded, no_cache=True)
        done = rehearse(request)
        count = done.steps * len(json.loads(recorded.read_text()))
        a_second = count / done.cpu_seconds
        print(f"operators: {count:,} in {done.cpu_seconds:.1f} s of CPU, {a_second:,.0f} a second")

    def plan(self) -> Iterator[dict[str, Any]]:
        """A plan on four GPUs; what each strategy adds to a rehearsal of one; the plan once more."""
        s = self.imports()
        one = self._rehearsed("llama-3.1-8b", 4)
        s = (s + self.imports()) / 2
        words = ["-m", "zerokit", "plan", "--json", "--gpus", "4", "--gpu", "h100-sxm-80gb", "--"]
        whole, again = (Cost([*words, *self._script("llama-3.1-8b")], self._folder) for _ in range(2))
        count = len(json.loads(whole.printed)["rehearsals"])
        further = (whole.cpu_seconds - one.cpu_seconds) / (count - 1)
        wall = {"wall_seconds": round(whole.wall_seconds, 1), "rehearsals": count}
        yield {**_row(PLAN, s, whole.cpu_seconds, 5.0), **wall}
        yield _row("each further strategy", s, further, 0.5)
        yield _row("the same plan again", s, again.cpu_seconds, round(1.5 / s, 2))


def _row(name: str, s: float, cpu: float, bar: float) -> dict[str, Any]:
    """CPU seconds beside S; ``bar``: as so many S."""
    in_imports = round(cpu / s, 2)
    row = {"name": name, "imports_seconds": round(s, 2), "cpu_seconds": round(cpu, 2)}
    return {**row, "in_imports": in_imports, "bar": bar, "is_above": in_imports > bar}


def main() -> int:
    names = (*REHEARSALS, PLAN, OPERATORS)
    parser = options_of(__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}; all if none is named")
    parser.add_argument("--jsonl", type=Path, help="append a line for each row")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    compileall.compile_dir(Path(zerokit.__file__).parent, quiet=1)  # as pip does
    above = False
    for name in options.names or names:
        with tempfile.TemporaryDirectory(prefix="zerokit-benchmark-") as folder:
            jobs = Jobs(Path(folder))
            if name == OPERATORS:
                jobs.operators()
                continue
            for row in jobs.plan() if name == PLAN else jobs.rehearsal(name):
                above |= row["is_above"]
                wall = f", {row['wall_seconds']} s by the clock" if "wall_seconds" in row else ""
                print(
                    f"{row['name']}: {row['cpu_seconds']} s of CPU, {row['in_imports']} times S of "
                    f"{row['imports_seconds']} s (bar {row['bar']}){wall}{', above' * row['is_above']}",
                    flush=True,
                )
                if options.jsonl:
                    append(options.jsonl, row)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
