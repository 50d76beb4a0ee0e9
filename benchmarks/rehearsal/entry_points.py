"""Public scripts, rehearsed as they are.

    python -m benchmarks.rehearsal.entry_points --checkouts FOLDER [NAME…] [--jsonl OUT] [--part 1/2]

``FOLDER/OWNER+NAME`` holds a checkout of each repository, with its commit in ``.commit``; TRL's own scripts
are those of the installed package. ``entry-points.json`` lists them with their arguments. A line each: name,
whether the rehearsal reached the script's end, steps, peak, CPU, what was guessed that decides sizes, and
where it stopped.
``entry-points-rehearsed.jsonl`` is the outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.entry_point_inputs import EntryPointInputs

LIST = Path(__file__).with_name("entry-points.json")
ROOT = Path(__file__).resolve().parents[2]
"""This tree's code is what rehearses, whatever the scripts' Python has installed."""
TIMEOUT_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class EntryPoint:
    """One script with its arguments; ``repository`` is empty for a module of an installed package, and a dot
    for a script of this one.

    ``inside``: it runs in a copy of its own folder, as its documentation says. ``torchrun``: on one GPU
    too it is started by torchrun, since DeepSpeed's engine asks for a launcher's environment. ``rank``: whose
    figures are compared.
    """

    name: str
    repository: str
    script: str
    arguments: str
    gpus: int = 1
    inside: bool = False
    torchrun: bool = False
    rank: int = 0


ENTRY_POINTS = tuple(EntryPoint(**row) for row in json.loads(LIST.read_text()))

_ENGINE = {
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
_FSDP2 = {"fsdp_version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
_FIXED = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}

_PIPELINE = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}
_ZERO_1 = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
_PIPELINES: dict[str, dict[str, Any]] = {
    "zero1": _ZERO_1,
    "checkpointed": _ZERO_1 | {"pipeline": {"activation_checkpoint_interval": 1, "use_reentrant": False}},
    "fp16": {"fp16": {"enabled": True}, "gradient_accumulation_steps": 4},
    "fp32": {},
}


class Runner:
    """Rehearses entry points in one folder of inputs."""

    def __init__(self, folder: Path, checkouts: Path, python: str, gpu: str = "h200") -> None:
        self.python, self.gpu = python, gpu
        self.inputs = EntryPointInputs(folder / "inputs")
        self.checkouts = checkouts
        self.home = folder / "huggingface"
        self.inside = folder / "inside"
        here = self.inputs.folder
        (here / "zero2.json").write_text(json.dumps(_ENGINE))
        for stage in (1, 2, 3):
            (here / f"zero{stage}.auto.json").write_text(json.dumps(_ENGINE | {
                "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": stage},
            }))  # fmt: skip
        for name, settings in _PIPELINES.items():
            (here / f"pipe.{name}.json").write_text(json.dumps(_PIPELINE | settings))
        (here / "fsdp2.json").write_text(json.dumps(_FSDP2))
        (here / "zero2.fixed.json").write_text(json.dumps(_FIXED | {"zero_optimization": {"stage": 2}}))
        (here / "zero3.fixed.json").write_text(json.dumps(_FIXED | {"zero_optimization": {"stage": 3}}))

    def rehearse(self, entry: EntryPoint) -> dict[str, Any]:
        """One row: what it is, and what came of it."""
        source, target, folder = self.target(entry)
        command = [
            self.python,
            "-m",
            "zerokit",
            "rehearse",
            "--json",
            "--gpu",
            self.gpu,
            "--gpus",
            str(entry.gpus),
            "--rank",
            str(entry.rank),
            *(("--launcher", "torchrun") if entry.torchrun else ()),
            *target,
            *entry.arguments.split(),
        ]
        tree = os.pathsep.join(item for item in (str(ROOT), os.environ.get("PYTHONPATH")) if item)
        # a cache of its own: this user's may hold other data sets under the names of the inputs
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": tree, "HF_HOME": str(self.home)}
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        said: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        rank = (said.get("ranks") or [{}])[0]
        return {
            "name": entry.name,
            "source": source,
            "script": entry.script,
            "arguments": entry.arguments,
            "gpus": entry.gpus,
            "complete": bool(said.get("complete")) and said.get("steps", 0) > 0,
            "steps": said.get("steps", 0),
            "repeats": said.get("repeats"),
            "phases": rank.get("phases", {}),
            "lower_bounds": rank.get("lower_bounds", {}),
            "peak_allocated_bytes": rank.get("peak_allocated_bytes"),
            "peak_reserved_bytes": rank.get("peak_reserved_bytes"),
            "guesses": [
                f"{guess['location']}: {guess['what']} = {guess['value']}"
                + (" (decides sizes)" if guess.get("decides_sizes") else "")
                for guess in said.get("guesses", [])
            ],
            "stubbed": said.get("stubbed", []),
            "warnings": said.get("warnings", []),
            "notes": said.get("notes", []),
            "stopped": said.get("stopped") or (None if said else done.stderr[-1500:]),
            "cpu_seconds": said.get("cpu_seconds"),
            "versions": said.get("versions"),
        }

    def target(self, entry: EntryPoint) -> tuple[str, list[str], Path]:
        """Where the script comes from, how it is named to a launcher, and the folder it runs in."""
        if not entry.repository:
            package = entry.script.partition(".")[0]
            return f"{package} {metadata.version(package)}", ["-m", entry.script], self.inputs.folder
        if entry.repository == ".":
            return "zerokit", [str(ROOT / entry.script)], self.inputs.folder
        checkout = self.checkouts / entry.repository.replace("/", "+")
        commit = (checkout / ".commit").read_text().strip() if (checkout / ".commit").exists() else "?"
        script, folder = checkout / entry.script, self.inputs.folder
        if entry.inside:
            folder = self._with_data(script.parent)
            script = folder / script.name
        return f"{entry.repository}@{commit}", [str(script)], folder

    def _with_data(self, folder: Path) -> Path:
        """A copy of a script's folder with the data that it reads there, which a checkout lacks."""
        copy = self.inside / folder.relative_to(self.checkouts)
        if not copy.exists():
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git"))
            shutil.copytree(self.inputs.folder / "data", copy / "data", dirs_exist_ok=True)
        return copy


def main() -> int:
    """Rehearse what was asked for."""
    parser = argparse.ArgumentParser(description="Public scripts, rehearsed as they are.")
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="with the scripts' libraries")
    parser.add_argument("--jsonl", type=Path)
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th from the I-th on")
    options = parser.parse_args()
    first, parts = map(int, options.part.split("/"))
    chosen = [e for e in ENTRY_POINTS if not options.names or e.name in options.names][first - 1 :: parts]
    ended = 0
    with tempfile.TemporaryDirectory(prefix="zerokit-entry-points-") as folder:
        runner = Runner(Path(folder), options.checkouts.resolve(), options.python)
        for entry in chosen:
            row = runner.rehearse(entry)
            ended += row["complete"]
            guesses = [guess for guess in row["guesses"] if guess.endswith("(decides sizes)")]
            outcome = "to the end" if row["complete"] else "STOPPED"
            print(
                f"{row['name']:<30} {outcome}  steps {row['steps']}  peak "
                f"{row['peak_allocated_bytes']}  cpu {row['cpu_seconds']}  {guesses}  {row['stopped'] or ''}",
                flush=True,
            )
            if options.jsonl:
                with options.jsonl.open("a") as file:
                    line = json.dumps(row)
                    for place in (runner.checkouts, runner.inside):
                        line = line.replace(f"{place}/", "")
                    file.write(line + "\n")
    print(f"{ended} of {len(chosen)} to the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
