"""Run the cases on a GPU machine: ``python -m benchmarks.rehearsal.gpu.run OUT.jsonl [--gpus 1|2] [NAME…]``.

Makes the data and random weights, then starts each case under :mod:`benchmarks.rehearsal.gpu.measure`:
those of one GPU several at a time (their figures are their own allocators'), those of two one after another.
One line of JSON for each; a case that fails has its error in its line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.gpu.cases import CASES, STEPS, Case, CaseInputs, script_path

MEASURE = Path(__file__).resolve().parent / "measure.py"
ROOT = Path(__file__).resolve().parents[3]
LIMIT_SECONDS = 150


def make_weights(folder: Path, head: str) -> None:
    """Random weights in bf16, beside the configuration."""
    import torch
    import transformers

    if (folder / "model.safetensors").exists() or (folder / "model.safetensors.index.json").exists():
        return
    config = transformers.AutoConfig.from_pretrained(folder)
    if head.endswith("Classification"):
        config.num_labels = 10 if "Image" in head else 1
    with torch.device("cuda"):
        model = getattr(transformers, head).from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()


class Runner:
    """The cases of one machine."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        self.inputs = CaseInputs(folder / "inputs")
        self.lock = threading.Lock()

    def command(self, case: Case, port: int) -> list[str]:
        """The measured script, under torchrun where it has a launcher."""
        model = self.inputs.model(case.model)
        arguments = self.inputs.filled(case, model, self.folder / f"out-{case.name}")
        measured = [str(MEASURE), str(self.out), case.name, str(STEPS), str(script_path(case)), *arguments]
        if case.launcher == "none":
            return [sys.executable, *measured]
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nproc_per_node={case.gpus}",
            "--master_addr",
            "127.0.0.1",
            "--master_port",
            str(port),
            *measured,
        ]

    def run(self, case: Case, port: int) -> None:
        """One case, to its end or its limit."""
        began = time.monotonic()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_DATASETS_CACHE": str(self.folder / f"cache-{case.name}"),
            "OMP_NUM_THREADS": "4",
        }
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            environment.pop(name, None)
        if case.alloc_conf:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = case.alloc_conf
        log = self.folder / f"{case.name}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                self.command(case, port),
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        try:
            code = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            code = 124
        self._note(case, code, log)
        print(f"{case.name:<28} code {code}  {time.monotonic() - began:.0f} s", flush=True)

    def _note(self, case: Case, code: int, log: Path) -> None:
        """A case without a line gets one."""
        with self.lock:
            lines = self.out.read_text().splitlines() if self.out.exists() else []
            if any(json.loads(line)["name"] == case.name for line in lines):
                return
            tail = log.read_text(errors="replace")[-3000:]
            with self.out.open("a") as file:
                file.write(json.dumps({"name": case.name, "error": f"code {code}: {tail}"}) + "\n")


def main() -> None:
    """Cases for one GPU side by side, then those for two."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4)
    options = parser.parse_args()
    chosen = [
        case
        for case in CASES
        if case.gpus == options.gpus and (not options.names or any(n in case.name for n in options.names))
    ]
    with tempfile.TemporaryDirectory(prefix="cases-") as folder:
        runner = Runner(Path(folder), options.out.absolute())
        for case in chosen:
            make_weights(runner.inputs.model(case.model), case.head)
        _all(runner, chosen, options.at_once if options.gpus == 1 else 1)


def _all(runner: Runner, cases: list[Case], at_once: int) -> None:
    waiting: list[Any] = list(enumerate(cases))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                number, case = waiting.pop(0)
            runner.run(case, 29600 + number)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
