"""Runs of another job than their plan's: what `launch` predicts for them afterwards, beside what they took.

    python -m benchmarks.predicted_again predict ROWS.jsonl [--gpu h100-sxm-80gb]
    python -m benchmarks.predicted_again measure ROWS.jsonl [--at-once 3] [--only dpo] [--seconds 120]

Each case is an unmodified script of TRL's wheel, planned to train all weights on texts: QLoRA, DoRA,
pairs with a reference model, generation. TRL's scripts cannot ask for IA3: that case is
``benchmarks/train_ia3.py``. ``predict`` rehearses the commands, which needs no GPU. ``measure``
launches them on one GPU; ``launch`` itself then has to find that the job was another, rehearse the command,
and set the new prediction beside the peak that it measured.

A row of ``measure``: the case, the exit code, what differed, and ``predicted_vs_measured`` of the report.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zerokit
from benchmarks.script_peaks import GENERATION, LENGTH, LORA, SHAPE, TINY, make_inputs, run
from zerokit.errors import ZerokitError

QLORA = ("--load_in_4bit", "--bnb_4bit_quant_type", "nf4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A script with its own arguments; ``script``: a name in ``trl/scripts``, or a file in ``benchmarks``."""

    name: str
    script: str
    data: str
    arguments: tuple[str, ...]


CASES = (
    Case(name="sft.qlora", script="sft", data="sft", arguments=(*LENGTH, *LORA, *QLORA)),
    Case(name="sft.dora", script="sft", data="sft", arguments=(*LENGTH, *LORA, "--use_dora")),
    Case(name="sft.ia3", script="train_ia3.py", data="sft", arguments=LENGTH),
    Case(name="dpo", script="dpo", data="dpo", arguments=LENGTH),
    Case(name="dpo.qlora", script="dpo", data="dpo", arguments=(*LENGTH, *LORA, *QLORA)),
    Case(name="kto", script="kto", data="kto", arguments=LENGTH),
    Case(name="grpo", script="grpo", data="prompts", arguments=GENERATION),
)


def _write_plan(folder: Path, gpu: str) -> None:
    """For full training on texts, whatever the case is."""
    zerokit.plan(
        model=folder / "model", gpus=1, gpu=gpu, seq_len=1024, zero=2, micro_batch=4, global_batch=4,
        precision="bf16", checkpointing="none", offload_optimizer="none", offload_param="none",
        out=folder / "plan",
    )  # fmt: skip


def _file(script: str) -> Path:
    if script.endswith(".py"):
        return Path(__file__).parent / script
    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "scripts" / f"{script}.py"


def _script(case: Case, folder: Path, work: Path) -> list[str]:
    return [
        str(_file(case.script)),
        "--dataset_name", str(folder / case.data), "--model_name_or_path", str(folder / "model"),
        "--output_dir", str(work / "out"), "--max_steps", "4", "--logging_steps", "1",
        "--report_to", "none", "--dtype", "bfloat16", "--save_strategy", "no", *case.arguments,
    ]  # fmt: skip


def _environment(work: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(work / "cache"),
        "OMP_NUM_THREADS": "1",
    }


def measure(case: Case, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Launch a case, and read what its report compares."""
    work = folder / "runs" / case.name
    work.mkdir(parents=True)
    device = ["--device", "cpu"] if options.cpu else []
    command = [
        sys.executable, "-m", "zerokit", "launch", "--plan", str(folder / "plan"), *device,
        "--run-dir", str(work / "run"), "--rehearsal-seconds", str(options.seconds),
        *_script(case, folder, work), *(["--use_cpu"] if options.cpu else []),
    ]  # fmt: skip
    started = time.monotonic()
    code = run(command, work / "launch.log", _environment(work))
    row: dict[str, Any] = {**asdict(case), "exit_code": code, "seconds": time.monotonic() - started}
    path = work / "run" / "report.json"
    if path.is_file():
        report = json.loads(path.read_text())
        row |= {name: report[name] for name in ("outcome", "problems", "predicted_vs_measured")}
        row["engine"] = report["ranks"][0].get("engine")
        row["phases"] = report["ranks"][0]["phases"]
    if code or "outcome" not in row:
        row["error"] = (work / "launch.log").read_text()[-2000:]
    return row


def predict(case: Case, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Rehearse a case's command for the GPU named."""
    work = folder / "runs" / case.name
    work.mkdir(parents=True)
    os.environ.update(_environment(folder))  # a rehearsed script runs in a process with this one's
    script, *arguments = _script(case, folder, work)
    row: dict[str, Any] = {**asdict(case), "gpu": options.gpu}
    try:
        done = zerokit.rehearse(Path(script), arguments, plan=folder / "plan", gpus=1, gpu=options.gpu)
    except ZerokitError as error:
        return row | {"exit_code": error.exit_code, "error": str(error)[-2000:]}
    rehearsal = done.to_dict()
    (rank,) = rehearsal["ranks"]
    names = ("peak_allocated_bytes", "peak_phase", "phases")
    figures = {name: rank[name] for name in names}
    return row | {"exit_code": done.exit_code} | figures | {"stopped": rehearsal["stopped"]}


def _tell(row: dict[str, Any]) -> None:
    compared = row.get("predicted_vs_measured") or {}
    peak = compared.get("peak_bytes") or {}
    print(
        f"{row['name']:12} exit {row['exit_code']} {row.get('outcome', '')} {compared.get('predicted_by')} "
        f"{peak or row.get('peak_allocated_bytes')} {compared.get('not_predicted') or ''}",
        flush=True,
    )
    if "error" in row:
        print("   " + row["error"].strip().replace("\n", "\n   "), flush=True)


def main() -> int:
    """Predict or measure the cases; 1 where one has no figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("predict", "measure"))
    parser.add_argument("output")
    parser.add_argument("--work", default="/tmp/zerokit-predicted-again")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--gpu", default="h100-sxm-80gb", help="the plan's")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0, help="for a rehearsal after a run")
    parser.add_argument("--cpu", action="store_true", help="one CPU rank and a tiny model: does it run?")
    options = parser.parse_args()
    folder = Path(options.work)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make_inputs(folder, TINY if options.cpu else SHAPE)
    _write_plan(folder, options.gpu)
    cases = [case for case in CASES if not options.only or case.name in options.only]
    do = measure if options.what == "measure" else predict
    missing = 0
    with (
        Path(options.output).open("w") as output,
        concurrent.futures.ThreadPoolExecutor(options.at_once) as pool,
    ):
        for job in concurrent.futures.as_completed([pool.submit(do, c, folder, options) for c in cases]):
            row = job.result()
            compared = row.get("predicted_vs_measured") or {}
            missing += not (row.get("peak_allocated_bytes") or compared.get("predicted_for"))
            output.write(json.dumps(row) + "\n")
            output.flush()
            _tell(row)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
