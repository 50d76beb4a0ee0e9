"""DeepSpeed's autotuner, ``zerokit plan`` and ``zerokit tune`` on one training job and this host's GPUs.

    python -m benchmarks.autotuner FOLDER --model llama-3.2-1b --seq-len 2048 --global-batch 32

For each: seconds to its answer, runs of the script that it needed, and the speed of its answer. Every answer
is run again in the same way: ``autotuner_job.py`` under the ``deepspeed`` launcher with the answer's
configuration, for ``--steps`` optimizer steps; the median after the warm-up gives tokens a second.
FOLDER/result.json is written after every part. Given again, the command goes on with what is missing there.
The autotuner needs the package ``tabulate``.

What each may choose. zerokit meets the global batch exactly and chooses ZeRO stage, micro-batch,
accumulation, activation checkpointing and offload. The autotuner (in its fast mode, the default) tries ZeRO
stages and micro-batches; the global batch is its upper limit (``max_train_batch_size``), and it may answer
with less: hence tokens a second. It knows no activation checkpointing: its runs have none. The other
settings (optimizer, clipping, precision) are the same for all. An answer's environment is part of it.

The autotuner sizes its search by the memory of the whole GPU and what a forward pass left allocated. With
``--card-gib`` the allocator of every run is held to what such a card leaves it, and ``zerokit plan`` plans
for it; the autotuner cannot be told, and finds out by runs that fail. ``zerokit tune`` plans for the GPUs
that are there, and is left out.

After each of its runs the autotuner calls ``pdsh -w localhost pkill -f NAME``, through ssh, to end what is
left of it on the nodes. On this one host it has waited for that run, and NAME does not occur in the run's
command line: a ``pdsh`` that does nothing is put before others on its PATH. It takes a run for failed when
a line of its stderr holds the word "error", be it a warning: warnings are silenced in its runs. It is stopped
when ``--seconds`` leaves only ``--run-seconds`` to measure its answer, which then is its best run so far.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import zerokit
from benchmarks.autotuner_table import Answer, table
from benchmarks.measure import planned
from benchmarks.measure.rows import notes_of
from benchmarks.measure.run import free_port
from zerokit.errors import ZerokitError

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "benchmarks" / "autotuner_job.py"
WARM_UP = 3
GRACE_SECONDS = 20.0
TUNED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization",
)
OPERATORS = "from deepspeed.ops.op_builder import FusedAdamBuilder as B; B().load(); import transformers"
QUIET = {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="result.json, and what the commands leave")
    parser.add_argument("--model", default="llama-3.2-1b", help="a name of the catalogue, or a config.json")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--global-batch", type=int, default=32, help="sequences a step")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--card-gib", type=int, help="hold every run to a card of so much memory")
    parser.add_argument("--stages", default="all", help="for the autotuner: all, or such as 0,1")
    parser.add_argument("--top", type=int, default=3, help="plans that zerokit tune runs")
    parser.add_argument("--tune-steps", type=int, default=8, help="optimizer steps of each")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps that an answer is measured by")
    parser.add_argument("--seconds", type=float, default=510.0, help="longest time of all")
    parser.add_argument("--run-seconds", type=float, default=70.0, help="longest time of measuring an answer")
    parser.add_argument("--without", action="append", choices=("tune", "autotuner"), default=[])
    options = parser.parse_args()
    if options.model.endswith(".json"):
        options.model = str(Path(options.model).resolve())
    options.folder = options.folder.resolve()
    return options


# ------------------------------------------------------------------ child processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that ended, or was stopped at its limit: then ``code`` is ``None``."""

    code: int | None
    seconds: float
    output: Path
    log: Path

    @property
    def why(self) -> str:
        """It did not get there: at its limit, or the last line of what it said."""
        if self.code is None:
            return f"stopped after {self.seconds:.0f} s"
        text = self.output.read_text(encoding="utf-8") + self.log.read_text(encoding="utf-8")
        return ([line for line in text.splitlines() if line.strip()] or [f"exit code {self.code}"])[-1]


def fresh(folder: Path) -> Path:
    """The folder, with nothing of an earlier call in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def run(
    command: Sequence[object], folder: Path, seconds: float, environment: dict[str, str] | None = None
) -> Ended:
    """Run a command in ``folder``, where its output is kept; all of its processes end with it."""
    output, log = folder / "stdout.txt", folder / "stderr.txt"
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path} | (environment or {})
    began = time.monotonic()
    with output.open("wb") as out, log.open("wb") as err:
        process = subprocess.Popen(
            [str(word) for word in command], cwd=folder, env=env, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
        code: int | None = None
        try:
            code = process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
        finally:
            elapsed = time.monotonic() - began
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Ended(code=code, seconds=round(elapsed, 2), output=output, log=log)


# ------------------------------------------------------------------ the three ways to an answer


class Benchmark:
    """The options, what was found so far, and the time that is left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder
        self.ends_at: float = time.monotonic() + options.seconds
        self.folder.mkdir(parents=True, exist_ok=True)
        names = ("model", "seq_len", "global_batch", "gpus", "device", "card_gib", "stages", "top",
                 "tune_steps", "steps")  # fmt: skip
        job = {name: getattr(options, name) for name in names}
        path = self.folder / "result.json"
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"job": job}
        if kept["job"] != job:
            raise SystemExit(f"{path} is of another job: {kept['job']}")
        self.result: dict[str, Any] = {"answers": {}} | kept

    @property
    def left(self) -> float:
        """Seconds."""
        return self.ends_at - time.monotonic()

    @property
    def answers(self) -> dict[str, Answer]:
        """By ``plan``, ``tune`` and ``autotuner``."""
        found: dict[str, Answer] = self.result["answers"]
        return found

    def save(self) -> None:
        """Write the result as it is."""
        text = json.dumps(self.result, indent=1) + "\n"
        (self.folder / "result.json").write_text(text, encoding="utf-8")

    @property
    def planning(self) -> dict[str, Any]:
        """The job as the planner is told of it."""
        options = self.options
        return {"model": options.model, "gpus": options.gpus, "seq_len": options.seq_len,
                "global_batch": options.global_batch, "tp": 1, "sp": 1, "device": options.device,
                "no_calibration": True}  # fmt: skip

    @property
    def device_environment(self) -> dict[str, str]:
        """For the ``deepspeed`` launcher; zerokit sets its own."""
        on_cpu = self.options.device == "cpu"
        return {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(self.options.gpus)} if on_cpu else {}

    def script(self, steps: int, notes: Path, checkpointing: str) -> list[str]:
        """The training script and its arguments."""
        words = {"model": self.options.model, "seq-len": self.options.seq_len, "steps": steps,
                 "checkpointing": checkpointing, "notes": notes}  # fmt: skip
        if self.options.card_gib is not None:
            config = self.answers["plan"]["deepspeed_config"]
            gpu = planned.card(self.options.card_gib * 1024)
            words["limit-bytes"] = planned.allocator_limit(gpu, config, self.options.gpus)
        return [str(JOB), *planned.argv(words)]

    def plan(self) -> Answer:
        """``zerokit.plan``."""
        card = {} if self.options.card_gib is None else {"vram": f"{self.options.card_gib}GiB"}
        began = time.monotonic()
        try:
            answer = zerokit.plan(**self.planning, **card, out=fresh(self.folder / "plan") / "files")
        except ZerokitError as error:
            raise SystemExit(f"zerokit.plan: {error}") from None
        seconds, chosen = round(time.monotonic() - began, 2), answer.chosen
        step = chosen.estimate.step_seconds
        tokens = self.options.global_batch * self.options.seq_len
        return {"seconds": seconds, "finished": True, "runs": [], **of_plan(chosen.to_dict()),
                "own_tokens_per_second": step and tokens / step}  # fmt: skip

    def tune(self) -> Answer:
        """``zerokit tune``; its answer is its fastest trial, also when it was stopped."""
        if self.options.card_gib is not None:
            return {"error": "zerokit tune plans for the GPUs that are there, not for a smaller card"}
        path = fresh(self.folder / "tune")
        job = {name.replace("_", "-"): value for name, value in self.planning.items() if value is not True}
        # a process of its own: it is stopped when time is up
        command = [sys.executable, "-m", "zerokit", "tune", *planned.argv(job), "--no-calibration",
                   "--style", "raw", "--out", "files", "--run-dir", path / "run", "--top", self.options.top,
                   "--steps", self.options.tune_steps,
                   *self.script(10_000, path / "notes", "{checkpointing}")]  # fmt: skip
        done = run(command, path, self.left - self.options.run_seconds)
        found: Answer = {"seconds": done.seconds, "finished": done.code is not None}
        if not (path / "run" / "tune.json").exists():
            return found | {"error": done.why}
        body = json.loads((path / "run" / "tune.json").read_text(encoding="utf-8"))
        kept = ("description", "outcome", "counts", "problem", "measured_step_seconds")
        found["runs"] = [
            {name: trial.get(name) for name in kept}
            for trial in body["trials"]
            if trial["outcome"] != "not_run"
        ]
        if body["fastest"] is None:
            return found | {"error": done.why}
        best = body["trials"][body["fastest"] - 1]
        tokens = self.options.global_batch * self.options.seq_len
        chosen = chosen_of(Path(best["run_dir"]) / "plan")
        return found | of_plan(chosen) | {"own_tokens_per_second": tokens / best["measured_step_seconds"]}

    def autotuner(self) -> Answer:
        """``deepspeed --autotuning tune``; when it was stopped, the best of its runs so far."""
        path = fresh(self.folder / "autotuner")
        stand_in = fresh(path / "bin") / "pdsh"
        stand_in.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
        stand_in.chmod(0o755)
        config = self.autotuner_config(path)
        (path / "ds_config.json").write_text(json.dumps(config), encoding="utf-8")
        command = ["deepspeed", "--autotuning", "tune", "--num_gpus", self.options.gpus, "--master_port",
                   free_port(), *self.script(10_000, path / "notes", "none"),
                   "--deepspeed_config", path / "ds_config.json"]  # fmt: skip
        environment = {"PATH": f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}", **QUIET}
        limit = self.left - self.options.run_seconds
        done = run(command, path, limit, environment | self.device_environment)
        runs = experiments(path / "results")
        found: Answer = {"seconds": done.seconds, "finished": done.code == 0, "runs": runs}
        best = path / "results" / "ds_config_optimal.json"
        if not best.exists():
            ran = [one for one in runs if one["throughput"] and not one["error"]]
            if not ran:
                why = [one["error"] for one in runs if one["error"]]
                return found | {"error": why[-1] if why else done.why}
            fastest = max(ran, key=lambda one: one["throughput"])
            best = path / "results" / fastest["name"] / "ds_config.json"
        answer = json.loads(best.read_text(encoding="utf-8"))
        answer.pop("autotuning", None)
        same = [one for one in runs if one["deepspeed_config"] == answer]
        said = same[0]["throughput"] * self.options.seq_len if same else None
        return found | {"deepspeed_config": answer, "checkpointing": "none", "environment": {},
                        "own_tokens_per_second": said}  # fmt: skip

    def autotuner_config(self, place: Path) -> dict[str, Any]:
        """The plan's configuration without what the autotuner chooses."""
        config = {k: v for k, v in self.answers["plan"]["deepspeed_config"].items() if k not in TUNED}
        stages = self.options.stages
        config["zero_optimization"] = {
            "stage": stages if stages == "all" else [int(stage) for stage in stages.split(",")]
        }
        config["autotuning"] = {
            "enabled": True,
            "results_dir": str(place / "results"),
            "exps_dir": str(place / "experiments"),
            "max_train_batch_size": self.options.global_batch,
        }
        return config

    # -------------------------------------------------------------- the speed of an answer

    def measure(self, name: str, answer: Answer) -> dict[str, Any]:
        """Run the script with an answer; the same answer is not run twice."""
        keys = ("deepspeed_config", "checkpointing", "environment")
        for other, known in self.answers.items():
            timed = "tokens_per_second" in known.get("measured", {})
            if timed and all(known[key] == answer[key] for key in keys):
                return {**known["measured"], "same_as": other}
        path = fresh(self.folder / "measured" / name)
        config = answer["deepspeed_config"]
        (path / "ds_config.json").write_text(json.dumps(config), encoding="utf-8")
        command = ["deepspeed", "--num_gpus", self.options.gpus, "--master_port", free_port(),
                   *self.script(self.options.steps, path / "notes", answer["checkpointing"]),
                   "--deepspeed_config", path / "ds_config.json"]  # fmt: skip
        environment = answer["environment"] | self.device_environment
        done = run(command, path, min(self.left, self.options.run_seconds), environment)
        notes = notes_of(path / "notes", self.options.gpus)
        seconds = notes[0].get("step_seconds", [])
        found = {"seconds": done.seconds, "step_seconds": seconds, "versions": notes[0].get("versions"),
                 "peak_allocated_bytes": [note.get("peak_allocated_bytes") for note in notes]}  # fmt: skip
        if len(seconds) <= WARM_UP:
            return found | {"error": notes[0].get("error") or done.why}
        median = statistics.median(seconds[WARM_UP:])
        sequences = (config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
                     * self.options.gpus)  # fmt: skip
        return found | {
            "median_step_seconds": median,
            "tokens_per_second": sequences * self.options.seq_len / median,
        }


def chosen_of(folder: Path) -> dict[str, Any]:
    """The strategy of a plan's folder."""
    body = yaml.safe_load((folder / "plan.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = body["chosen"]
    return found


def of_plan(chosen: Mapping[str, Any]) -> Answer:
    """What a plan's answer is run with."""
    return {
        "deepspeed_config": chosen["deepspeed_config"],
        "checkpointing": chosen["activation_checkpointing"],
        "environment": chosen["environment"],
    }


def experiments(results: Path) -> list[dict[str, Any]]:
    """The autotuner's runs of the script, in their order; ``throughput`` is in samples a second.

    ``error``: a line of the run's stderr with that word in it, for which the autotuner drops the run.
    """
    found = []
    for path in sorted(results.glob("*/exp.json"), key=lambda path: path.stat().st_mtime):
        folder = path.parent
        config = json.loads((folder / "ds_config.json").read_text(encoding="utf-8"))
        config.pop("autotuning", None)
        said, log, metrics = folder / "stdout.log", folder / "stderr.log", folder / "metrics.json"
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        values = json.loads(metrics.read_text(encoding="utf-8")) if metrics.exists() else {}
        ended = said.stat().st_mtime if said.exists() else path.stat().st_mtime
        found.append(
            {
                "name": folder.name,
                "seconds": round(ended - path.stat().st_mtime, 1),
                "throughput": values.get("throughput"),
                "error": next((s for s in text.splitlines() if re.search("Error|error|ERROR", s)), None),
                "deepspeed_config": config,
            }
        )
    return found


# ------------------------------------------------------------------ the table


def main() -> None:
    options = parse()
    benchmark = Benchmark(options)
    if options.device == "cuda":  # before anything is timed: the operator is built, files are in the cache
        path = fresh(benchmark.folder / "operators")
        built = run([sys.executable, "-c", OPERATORS], path, benchmark.left)
        if built.code != 0:
            raise SystemExit(f"DeepSpeed's FusedAdam: {built.why}")
    for name in ("plan", "tune", "autotuner"):
        if name in options.without:
            continue
        if name not in benchmark.answers:
            benchmark.answers[name] = getattr(benchmark, name)()
            benchmark.save()
        answer = benchmark.answers[name]
        if "deepspeed_config" in answer and "tokens_per_second" not in answer.get("measured", {}):
            answer["measured"] = benchmark.measure(name, answer)
            benchmark.save()
    print(table(benchmark.answers))


if __name__ == "__main__":
    main()
