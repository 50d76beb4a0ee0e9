"""Public scripts, unmodified: rehearsed first, then measured on a GPU machine with the same commands.

    python -m benchmarks.rehearsal.gpu.public predict OUT.jsonl [NAME…] --checkouts FOLDER [--list LIST]
    python -m benchmarks.rehearsal.gpu.public measure OUT.jsonl [NAME…] --checkouts FOLDER [--list LIST]
    python -m benchmarks.rehearsal.gpu.compare PREDICTED.jsonl MEASURED.jsonl

``public.json``, ``public-second.json`` to ``public-tenth.json`` (``--list``) list them, in the form of
``entry-points.json``: none was measured before it was rehearsed. Each runs to its own end. Random weights of
the models are made beside their configurations. Runs share the GPUs, several at a time: their figures are
their own allocators'.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.entry_point_inputs import MODELS
from benchmarks.rehearsal.entry_points import EntryPoint, Runner

MEASURE = Path(__file__).resolve().parent / "measure.py"
ROOT = Path(__file__).resolve().parents[3]
LIMIT_SECONDS = 150
LISTS = (
    "public",
    *(
        f"public-{name}"
        for name in ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    ),
)
EVERY_STEP = 10**9


def make_weights(folder: Path, names: list[str]) -> None:
    """Random weights for these models of the inputs, in the type that each one's configuration names."""
    import torch
    import transformers

    for name in names:
        path = folder / name
        if (path / "model.safetensors").exists():
            continue
        torch.manual_seed(0)
        config = transformers.AutoConfig.from_pretrained(path)
        with torch.device("cuda"):  # seconds faster than the CPU's generator
            model = getattr(transformers, MODELS[name][1])(config).to(config.dtype)
        model.save_pretrained(path)


class Measurer:
    """The scripts of one machine, in one folder of inputs."""

    def __init__(self, folder: Path, checkouts: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        self.runner = Runner(folder, checkouts, sys.executable)
        self.lock = threading.Lock()

    def prepare(self, entries: list[EntryPoint]) -> None:
        """Make the weights that these scripts name, in their arguments, files of these, or in themselves."""
        said = " ".join(entry.arguments for entry in entries)
        files = [self.runner.inputs.folder / word for word in said.split() if word.endswith(".yaml")]
        said += " ".join(file.read_text() for file in files)
        for entry in entries:
            path = Path(self.runner.target(entry)[1][0])
            said += path.read_text(errors="replace") if path.is_file() else ""
        make_weights(self.runner.inputs.folder, [name for name in MODELS if name in said])

    def measure(self, entry: EntryPoint, port: int, device: int = 0) -> None:
        """One script, to its end or its limit; a line whatever happens.

        A script for one GPU runs on ``device``.
        """
        source, target, working = self.runner.target(entry)
        program = [
            str(MEASURE),
            str(self.out),
            entry.name,
            str(EVERY_STEP),
            *target,
            *entry.arguments.split(),
        ]
        command = [sys.executable, *program]
        if entry.gpus > 1 or entry.torchrun:
            launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={entry.gpus}"]
            address = ["--master_addr", "127.0.0.1", "--master_port", str(port)]
            command = [sys.executable, *launcher, *address, *program]
        own = self.folder / entry.name
        own.mkdir()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(own / "huggingface"),
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "2",
            "MEASURED_RANK": str(entry.rank),
            "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
        }
        if entry.gpus == 1:  # as zerokit rehearse has it: a run of one GPU without a launcher
            environment["CUDA_VISIBLE_DEVICES"] = str(device)
        log = own / "log"
        try:
            with log.open("wb") as stream:
                code = subprocess.run(
                    command, cwd=working, env=environment, stdout=stream, stderr=subprocess.STDOUT,
                    timeout=LIMIT_SECONDS, check=False,
                ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = 124
        with self.lock:
            self._note(entry, source, code, log)

    def _note(self, entry: EntryPoint, source: str, code: int, log: Path) -> None:
        lines = self.out.read_text().splitlines() if self.out.exists() else []
        mine = [json.loads(line) for line in lines if json.loads(line)["name"] == entry.name]
        if not mine:
            row: dict[str, Any] = {"name": entry.name, "source": source}
            row["error"] = f"code {code}: {log.read_text(errors='replace')[-2500:]}"
            with self.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            mine = [row]
        said = mine[0].get("error") or f"{mine[0]['peak_allocated_bytes'] / 2**30:.3f} GiB"
        print(f"{entry.name:<28} {str(said)[-400:]}", flush=True)


def _predict(entries: list[EntryPoint], checkouts: Path, out: Path, jobs: int, gpu: str) -> None:
    lock = threading.Lock()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the GPU of a rehearsal is not there

    with tempfile.TemporaryDirectory(prefix="public-") as folder:
        runner = Runner(
            Path(folder), checkouts, sys.executable, gpu
        )  # a rehearsal leaves its folder as it was

        def one(entry: EntryPoint) -> None:
            row = runner.rehearse(entry)
            with lock, out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            peak = (row["peak_allocated_bytes"] or 0) / 2**30
            stopped = "" if row["complete"] else f"STOPPED {row['stopped']}"[-300:]
            print(f"{row['name']:<28} {peak:.3f} GiB  {row['cpu_seconds']} s  {stopped}", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, entries))


def _measure(entries: list[EntryPoint], checkouts: Path, out: Path, at_once: int, devices: int) -> None:
    with tempfile.TemporaryDirectory(prefix="public-") as folder:
        measurer = Measurer(Path(folder), checkouts, out.absolute())
        measurer.prepare(entries)

        def one(number: int) -> None:
            measurer.measure(entries[number], 29700 + number, number % devices)

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, range(len(entries))))


def main() -> None:
    """Rehearse or measure those asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("predict", "measure"))
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--list", default="public", choices=LISTS)
    parser.add_argument("--gpus", type=int, help="only those of so many GPUs")
    parser.add_argument("--gpu", default="h200", help="on which they are rehearsed")
    parser.add_argument("--jobs", type=int, default=1, help="rehearsals at a time")
    parser.add_argument("--at-once", type=int, default=6, help="runs at a time")
    parser.add_argument("--devices", type=int, default=1, help="GPUs over which runs of one GPU are spread")
    options = parser.parse_args()
    rows = json.loads(Path(__file__).with_name(f"{options.list}.json").read_text())
    chosen = [
        entry
        for entry in (EntryPoint(**row) for row in rows)
        if options.gpus in (None, entry.gpus)
        and (not options.names or any(name in entry.name for name in options.names))
    ]
    checkouts = options.checkouts.resolve()
    if options.what == "predict":
        _predict(chosen, checkouts, options.out, options.jobs, options.gpu)
    else:
        _measure(chosen, checkouts, options.out, options.at_once, options.devices)


if __name__ == "__main__":
    main()
