"""GPU memory by phase in TensorBoard's event file, beside the losses of TRL's own SFT script.

    python -m benchmarks.tracker_memory OUT.jsonl                    # one GPU
    python -m benchmarks.tracker_memory OUT.jsonl --device cpu       # one CPU rank: host memory

``trl.scripts.sft`` runs under ``zerokit launch`` twice, with TRL's ``--report_to tensorboard``, on a small
Llama and texts made here. The first run is the unmodified module. The second logs without zerokit's
figures (``--no-trackers``), and a line at its end prints PyTorch's own peak. Needs ``tensorboard``.

One row: which tags stand at the steps of ``train/loss``, their highest values in bytes beside the report's
peaks by phase, and PyTorch's own peak.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.support.tinyjob import make_model, make_rows, texts

ROOT = Path(__file__).parents[1]
PHASES = ("forward", "backward", "step")
GIB = 1 << 30
STEPS = 5
FLOAT32 = 1e-6  # an event file keeps its numbers in 32 bits
LIMIT_SECONDS = 240.0
OWN_PEAK = """
if __name__ == "__main__":
    import torch
    print("own peak", torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0, flush=True)
"""
SCRIPT_ARGUMENTS = ["--model_name_or_path", "model", "--dataset_name", "data", "--max_steps", str(STEPS),
                    "--logging_steps", "1", "--max_length", "128", "--save_strategy", "no",
                    "--report_to", "tensorboard"]  # fmt: skip


def zerokit(folder: Path, *arguments: str, events: str = "") -> tuple[int, str]:
    """Run a command; its exit code and everything that it printed."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1",
                   "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1",
                   "TENSORBOARD_LOGGING_DIR": events}  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "zerokit", *arguments], cwd=folder, env=environment,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=LIMIT_SECONDS, check=False)  # fmt: skip
    return done.returncode, done.stdout


def make_job(folder: Path, device: str) -> None:
    """Model, data and plan.

    Raises:
        SystemExit: ``zerokit plan`` refused.
    """
    make_model(folder / "model", layers=4, width=512)
    make_rows(folder / "data", texts(words=120))
    code, said = zerokit(
        folder, "plan", "--model", "model", "--device", device, "--gpus", "1", "--seq-len", "128", "--zero",
        "2", "--micro-batch", "2", "--gradient-accumulation", "1", "--checkpointing", "none", "--out", "plan",
    )  # fmt: skip
    if code:
        raise SystemExit(said)


def curves(folder: Path) -> dict[str, dict[int, float]]:
    """The scalars of the event files below ``folder``: tag, step, value."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: dict[str, dict[int, float]] = defaultdict(dict)
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tensor.float_val:
                    found[value.tag][event.step] = value.tensor.float_val[0]
    return found


def rank_of(run: Path) -> dict[str, Any]:
    """The report of the one rank."""
    rank: dict[str, Any] = json.loads((run / "report.json").read_text())["ranks"][0]
    return rank


def compared(events: dict[str, dict[int, float]], rank: dict[str, Any], device: str) -> dict[str, Any]:
    """What the event file says beside the rank's report."""
    metric = "zerokit/peak_allocated_gib/" if device == "cuda" else "zerokit/peak_host_rss_gib/"
    losses = sorted(events.get("train/loss", {}))
    highest = {
        phase: round(max(events[metric + phase].values()) * GIB)
        for phase in PHASES if metric + phase in events
    }  # fmt: skip
    reported = {phase: rank["phases"].get(phase) for phase in PHASES}
    alike = all(
        phase in highest and reported[phase] and abs(highest[phase] / reported[phase] - 1) < FLOAT32
        for phase in PHASES
    )
    return {
        "loss_steps": losses, "tags": sorted(tag for tag in events if tag.startswith("zerokit/")),
        "at_every_loss": all(sorted(events.get(metric + phase, {})) == losses for phase in PHASES),
        "highest_bytes": highest, "report_bytes": reported, "equal": bool(alike),
    }  # fmt: skip


def measured(folder: Path, device: str) -> dict[str, Any]:
    """The row of both runs."""
    make_job(folder, device)
    import trl.scripts

    text = (Path(trl.scripts.__path__[0]) / "sft.py").read_text()
    (folder / "sft.py").write_text(text + OWN_PEAK)
    common = ["launch", "--plan", "plan", "--device", device]
    row: dict[str, Any] = {"device": device}
    begun = time.monotonic()
    code, said = zerokit(folder, *common, "--run-dir", "run", "-m", "trl.scripts.sft", *SCRIPT_ARGUMENTS,
                         "--output_dir", "out", events=str(folder / "events"))  # fmt: skip
    row |= {"exit_code": code, "seconds": round(time.monotonic() - begun, 1)}
    if code:
        return {**row, "right": False, "output": said.splitlines()[-60:]}
    rank = rank_of(folder / "run")
    row |= compared(curves(folder / "events"), rank, device)
    code, said = zerokit(folder, *common, "--run-dir", "run-2", "--no-trackers", "sft.py",
                         *SCRIPT_ARGUMENTS, "--output_dir", "out-2",
                         events=str(folder / "events-2"))  # fmt: skip
    own = re.search(r"own peak (\d+)", said)
    plain, second = curves(folder / "events-2"), rank_of(folder / "run-2")
    row |= {
        "second_exit_code": code, "own_peak_bytes": int(own[1]) if own else None,
        "report_peaks_bytes": [rank["peak_allocated_bytes"], second["peak_allocated_bytes"]],
        "second_tags": sorted(tag for tag in plain if tag.startswith("zerokit/")),
        "losses_equal": plain.get("train/loss") == curves(folder / "events").get("train/loss"),
    }  # fmt: skip
    same_peak = device == "cpu" or row["own_peak_bytes"] == second["peak_allocated_bytes"]
    row["right"] = (
        row["loss_steps"] == list(range(1, STEPS + 1)) and row["at_every_loss"] and row["equal"]
        and code == 0 and not row["second_tags"] and "train/loss" in plain and same_peak
    )  # fmt: skip
    return row if row["right"] else {**row, "output": said.splitlines()[-40:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zk-trackers-") as name:
        row = measured(Path(name), args.device)
    args.out.write_text(json.dumps(row) + "\n")
    print(json.dumps(row))
    raise SystemExit(0 if row["right"] else 1)


if __name__ == "__main__":
    main()
