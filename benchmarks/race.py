"""The race: what trainers' own documentation gives beside the plan for the same job.

    python -m benchmarks.race --write      # plans: the cases to measure, and what is said of each
    python -m benchmarks.measure.series benchmarks/measure/cases/race.json -o ROWS.jsonl --gpus 2 --steps 20
    python -m benchmarks.race              # docs/race.md from the rows beside what was said

Bare loops: the model, micro-batch, accumulation, checkpointing, engine and its configuration of each, with
the same rows a step and the model's own loss, one after the other on one machine. What a trainer's Python
adds to a step is left out of both.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

import zerokit
from benchmarks.bare_loop_times import loops
from benchmarks.common import options_of
from benchmarks.measure import case as cases
from benchmarks.rehearsal_page import at_factor
from zerokit.catalog import models
from zerokit.planner.documents import PlannedStrategy
from zerokit.planner.request import resolve
from zerokit.search.explain import strategy_words
from zerokit.search.plan import make_space
from zerokit.timing.constants import Calibration
from zerokit.values import frozen_dataclass, replace

HERE = Path(__file__).parent
CASES = HERE / "measure" / "cases" / "race.json"
SAID = HERE / "measure" / "data" / "race-predicted.jsonl"
ROWS = HERE / "measure" / "data" / "race.jsonl"
PAGE = HERE.parent / "docs" / "race.md"
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8)
TEMPLATE = HERE / "race.md.j2"
_EXACT = 0.001
_FAR_OFF = 0.25
_FAR = (
    "The first was predicted as of Transformers 5.23, which releases what is gathered to compute a layer "
    "again; 5.17, which ran, keeps it until backward ends, and an estimate beside 5.17 counts that now "
    "(zerokit/memory/rank_model.py). DPO's figures are of TRL's code, and the loop has a plainer "
    "loss."
)


@frozen_dataclass
class Job:
    """What somebody trains, as a page of its trainer gives it.

    Attributes:
        source: file of a repository and its commit; ``words``: what it gives.
        options: of the job, as arguments of a plan.
        documented: how it is trained, likewise; ``deepspeed``: the file that it names, without batch.
        runners: beside ``documented``.
    """

    name: str
    source: str
    words: str
    options: Mapping[str, Any]
    documented: Mapping[str, Any]
    deepspeed: Mapping[str, Any] | None = None
    runners: tuple[str, ...] = ("plan",)


def _auto(hidden: int, **settings: Any) -> dict[str, Any]:
    """ZeRO-3 with the three sizes that Transformers fills in for "auto" (integrations/deepspeed.py)."""
    square = hidden * hidden
    return {
        "stage": 3, "contiguous_gradients": True, "sub_group_size": 1_000_000_000,
        "reduce_bucket_size": square,
        "stage3_prefetch_bucket_size": int(0.9 * square), "stage3_param_persistence_threshold": 10 * hidden,
        "stage3_max_live_parameters": 1_000_000_000, "stage3_max_reuse_distance": 1_000_000_000, **settings,
    }  # fmt: skip


_FACTORY = "LLaMA-Factory ff6d4d12"
_TRL = "TRL f2cd5771"
_HANDBOOK = "alignment-handbook 925acdf"
_LORA_8 = {"method": "lora", "lora_rank": 8, "lora_dropout": 0.0}
_FACTORYS_LOOP = {"checkpointing": "full", "reentrant": "on", "micro_batch": 1}
_ALONE = {"engine": "ddp", "loss": "standard"}
JOBS = (
    Job(
        name="qwen3-4b.full",
        source=f"{_FACTORY}, examples/train_full/qwen3_full_sft.yaml and deepspeed/ds_z3_config.json",
        words="ZeRO-3 with auto sizes, no overlap; 1 × 2 rows, reentrant checkpointing",
        options={"model": "qwen3-4b", "gpus": 2, "seq_len": 2048},
        documented={**_FACTORYS_LOOP, "gradient_accumulation": 2},
        deepspeed=_auto(2560, overlap_comm=False),
        runners=("plan", "fsdp2"),
    ),
    Job(
        name="qwen3-4b.lora",
        source=f"{_FACTORY}, examples/train_lora/qwen3_lora_sft_ds3.yaml and deepspeed/ds_z3_config.json",
        words="ZeRO-3 with auto sizes, no overlap; 1 × 2 rows, reentrant checkpointing, rank 8",
        options={"model": "qwen3-4b", "gpus": 2, "seq_len": 2048, **_LORA_8},
        documented={**_FACTORYS_LOOP, "gradient_accumulation": 2},
        deepspeed=_auto(2560, overlap_comm=False),
    ),
    Job(
        name="qwen2.5-0.5b.full.1gpu",
        source=f"{_TRL}, trl/scripts/sft.py",
        words="no engine, weights in fp32 under autocast; 2 × 8 rows, checkpointing",
        options={"model": "qwen2.5-0.5b", "gpus": 1, "seq_len": 1024, "trainer": "trl", **_ALONE},
        documented={"micro_batch": 2, "gradient_accumulation": 8, "checkpointing": "full"},
    ),
    Job(
        name="qwen2.5-0.5b.full",
        source=f"{_TRL}, trl/scripts/sft.py with examples/accelerate_configs/deepspeed_zero2.yaml",
        words="ZeRO-2 of Accelerate; 2 × 8 rows, checkpointing",
        options={"model": "qwen2.5-0.5b", "gpus": 2, "seq_len": 1024},
        documented={"micro_batch": 2, "gradient_accumulation": 8, "checkpointing": "full"},
        deepspeed={"stage": 2},
        runners=("plan", "fsdp2"),
    ),
    Job(
        name="mistral-7b.full",
        source=f"{_HANDBOOK}, recipes/zephyr-7b-beta/sft/config_full.yaml and accelerate_configs/zero3.yaml",
        words="ZeRO-3 of Accelerate; 16 × 1 rows, checkpointing",
        options={"model": "mistral-7b-v0.1", "gpus": 2, "seq_len": 2048},
        documented={"micro_batch": 16, "gradient_accumulation": 1, "checkpointing": "full"},
        deepspeed={"stage": 3},
        runners=("plan", "fsdp2"),
    ),
    Job(
        name="qwen3-4b.qlora.1gpu",
        source=f"{_FACTORY}, examples/train_qlora/qwen3_lora_sft_otfq.yaml",
        words="no engine, 4 bits; 1 × 8 rows, reentrant checkpointing, rank 8",
        options={
            "model": "qwen3-4b", "gpus": 1, "seq_len": 2048, "trainer": "llamafactory", **_LORA_8, **_ALONE,
            "method": "qlora",
        },
        documented={**_FACTORYS_LOOP, "gradient_accumulation": 8},
    ),
    Job(
        name="qwen2.5-0.5b.lora.1gpu",
        source=f"{_TRL}, trl/scripts/sft.py",
        words="no engine, weights in fp32 under autocast; 2 × 8 rows, checkpointing, rank 32 on q and v",
        options={
            "model": "qwen2.5-0.5b", "gpus": 1, "seq_len": 1024, "trainer": "trl", **_ALONE, "method": "lora",
            "lora_rank": 32, "lora_targets": "q_proj,v_proj", "lora_dropout": 0.05,
        },
        documented={"micro_batch": 2, "gradient_accumulation": 8, "checkpointing": "full"},
    ),
    Job(
        name="qwen3-4b.dpo.1gpu",
        source=f"{_FACTORY}, examples/train_lora/qwen3_lora_dpo.yaml",
        words="no engine; 1 × 8 pairs, checkpointing, rank 8",
        options={
            "model": "qwen3-4b", "gpus": 1, "seq_len": 2048, "trainer": "trl-dpo", "load_dtype": "bf16",
            **_LORA_8, **_ALONE,
        },
        documented={"micro_batch": 1, "gradient_accumulation": 8, "checkpointing": "full"},
    ),
    Job(
        name="smollm2-360m.full",
        source=f"{_HANDBOOK}, recipes/smollm2/sft/config_smol.yaml and accelerate_configs/zero3.yaml",
        words="ZeRO-3 of Accelerate; 4 × 4 rows, checkpointing",
        options={"model": "smollm2-360m", "gpus": 2, "seq_len": 8192},
        documented={"micro_batch": 4, "gradient_accumulation": 4, "checkpointing": "full"},
        deepspeed={"stage": 3},
    ),
)  # fmt: skip
"""TRL's pages name Qwen2-0.5B, which has the shape of Qwen2.5-0.5B."""


def runs(job: Job) -> Iterator[tuple[str, PlannedStrategy, dict[str, Any] | None]]:
    """(runner, how it trains, its DeepSpeed file)."""
    asked = {**job.options, "gpu": "h200", "no_calibration": True}
    if job.deepspeed is None:
        found = zerokit.estimate(**asked, **job.documented)
    else:
        batch = {
            "train_micro_batch_size_per_gpu": job.documented["micro_batch"],
            "gradient_accumulation_steps": job.documented["gradient_accumulation"],
        }
        config = {"bf16": {"enabled": True}, "zero_optimization": dict(job.deepspeed)}
        rest = {key: value for key, value in job.documented.items() if key in ("checkpointing", "reentrant")}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({**config, **batch, "gradient_clipping": 1.0}, file)
            file.flush()
            found = zerokit.estimate(**asked, **rest, deepspeed=Path(file.name))
    documented = found.planned
    yield "documented", documented, config if job.deepspeed else None
    for runner in job.runners:
        engine = {"engine": "fsdp2"} if runner == "fsdp2" else {}
        plan = zerokit.plan(**asked, global_batch=documented.strategy.global_batch, **engine)
        yield runner, plan.chosen, plan.to_dict()["chosen"].get("deepspeed_config")


def case_of(
    job: Job, runner: str, planned: PlannedStrategy, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What ``series`` measures."""
    strategy, own = planned.strategy, planned.job
    settings = strategy.settings
    engine = {"ddp": "none"}.get(planned.engine, planned.engine)
    adapters = own.lora if own.method != "full" else None
    wide = (engine == "none" and settings.weight_bytes == 4) or (engine == "fsdp2" and adapters is None)
    found = {
        "id": f"{job.name}.{runner}",
        "hf_config": models.load(job.options["model"]).hf_config,
        "world_size": strategy.world_size,
        "micro_batch": settings.micro_batch,
        "gradient_accumulation": settings.gradient_accumulation,
        "seq_len": own.seq_len,
        "activation_checkpointing": strategy.checkpointing == "full",
        "use_reentrant": own.is_reentrant(settings),
        "lora": adapters and {
            "r": adapters.rank, "task_type": "CAUSAL_LM", "lora_dropout": adapters.dropout,
            "target_modules": "all-linear" if "all-linear" in adapters.targets else list(adapters.targets),
        },
        "quantized": own.method == "qlora",
        "weights_loaded_as": "fp32" if wide else "model",
        "engine": engine,
        "pairs": own.defaults.sequences == 2,
        "deepspeed_config": config or {"bf16": {"enabled": True}},
    }  # fmt: skip
    if engine == "fsdp2":
        found["fsdp2"] = {
            "reshard_after_forward": settings.reshard_after_forward, "cpu_offload": settings.offload
        }  # fmt: skip
    return found


def said_of(case: Mapping[str, Any], job: Job, planned: PlannedStrategy) -> dict[str, Any]:
    """Seconds of a step by the host's factor, and the peak."""
    request = resolve({**job.options, "gpu": "h200", "no_calibration": True}).request
    by_factor = {}
    for factor in FACTORS:
        space = make_space(replace(request, job=planned.job, calibration=Calibration(host_factor=factor)))[0]
        by_factor[str(factor)] = round(space.timing.estimate(planned.strategy).step_seconds, 5)
    return {
        "id": case["id"],
        "seconds_by_host_factor": by_factor,
        "peak_allocated_bytes": planned.estimate.peak_allocated_bytes,
        "strategy": strategy_words(planned.strategy),
    }


def write() -> None:
    """Plan every job; write the cases and what is said of them."""
    found, said = [], []
    for job in JOBS:
        for runner, planned, config in runs(job):
            case = case_of(job, runner, planned, config)
            found.append(case)
            said.append(said_of(case, job, planned))
    CASES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    SAID.write_text("".join(json.dumps(row) + "\n" for row in said), encoding="utf-8")


@frozen_dataclass
class Run:
    """A measured row beside what was said of it. Seconds of a step."""

    job: Job
    runner: str
    row: Mapping[str, Any]
    said: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        """The median."""
        return float(self.row["step_seconds_median"])

    @property
    def expected(self) -> float:
        """As said, at the host's factor."""
        return at_factor(self.row["host_factor"], self.said["seconds_by_host_factor"])

    @property
    def between(self) -> tuple[float, float]:
        """The same at the ends of the probe's rounds."""
        low, high = (
            at_factor(max(min(FACTORS), min(max(FACTORS), end)), self.said["seconds_by_host_factor"])
            for end in self.row["host_factor_range"]
        )
        return low, high

    @property
    def error(self) -> float:
        """Said over measured, less one."""
        return self.expected / self.seconds - 1

    @property
    def peak_error(self) -> float | None:
        """The same of the peak; None: it was not measured."""
        peaks = self.row["peak_allocated_bytes"]
        return self.said["peak_allocated_bytes"] / peaks[0] - 1 if peaks else None

    @property
    def tokens_per_second(self) -> float:
        """On all GPUs."""
        row = self.row
        rows = row["micro_batch"] * row["gradient_accumulation"] * row["world_size"] * (1 + row["pairs"])
        return float(rows * row["seq_len"] / self.seconds)


Runs = Mapping[str, Run]


def measured() -> list[Runs]:
    """The runs of each job, by runner."""
    rows = {row["id"]: row for row in cases.read(ROWS)}
    said = {row["id"]: row for row in cases.read(SAID)}
    return [
        {
            runner: Run(job=job, runner=runner, row=rows[name], said=said[name])
            for runner in ("documented", *job.runners)
            if (name := f"{job.name}.{runner}") in rows
        }
        for job in JOBS
    ]


def gains(found: Runs, runner: str = "plan", beside: str = "documented") -> tuple[float, float]:
    """How many times as fast one runner is as another: measured and said."""
    one, other = found[runner], found[beside]
    return other.seconds / one.seconds, other.expected / one.expected


def _table(*rows: Sequence[object], numbers_from: int = 1) -> str:
    head, *body = ("| " + " | ".join(map(str, row)) + " |" for row in rows)
    rule = "|".join(" ---: " if at >= numbers_from else " --- " for at in range(len(rows[0])))
    return "\n".join([head, f"|{rule}|", *body])


def _gib(run: Run) -> str:
    peaks = run.row["peak_allocated_bytes"]
    return f"{peaks[0] / 2**30:.1f}" if peaks else "–"


def _race(every: Sequence[Runs]) -> str:
    rows = [("job", "GPUs", "documented, tokens/s", "GiB", "plan, tokens/s", "GiB", "times as fast", "said")]
    for found in every:
        documented, plan = found["documented"], found["plan"]
        gain, said = gains(found)
        rows.append(
            (
                f"`{documented.job.name}`", str(documented.row["world_size"]),
                f"{documented.tokens_per_second:,.0f}", _gib(documented), f"{plan.tokens_per_second:,.0f}",
                _gib(plan), f"**{gain:.1f}**", f"{said:.1f}",
            )
        )  # fmt: skip
    return _table(*rows)


def _fsdp2(every: Sequence[Runs]) -> str:
    """A sentence for each job that has both."""
    said = []
    for found in every:
        if "fsdp2" in found:
            gain, expected = gains(found, "fsdp2", "plan")
            run = found["fsdp2"]
            said.append(
                f"`{run.job.name}`: {gain:.2f} times as fast as DeepSpeed's plan ({expected:.2f} said), "
                f"{run.tokens_per_second:,.0f} tokens/s, {_gib(run)} GiB"
            )
    return "; ".join(said) + "."


def _every(every: Sequence[Runs]) -> str:
    rows = [("run", "host", "measured, s", "said, s", "error", "peak, GiB", "error", "strategy")]
    for run in (run for found in every for run in found.values()):
        steps, (low, high), peak = run.row["step_seconds"], run.between, run.peak_error
        rows.append(
            (
                f"`{run.row['id']}`", f"{run.row['host_factor']:.2f}",
                f"{run.seconds:.3f} ({min(steps):.3f} to {max(steps):.3f})",
                f"{run.expected:.3f} ({low:.3f} to {high:.3f})", f"{run.error:+.1%}", _gib(run),
                "–" if peak is None else f"{peak:+.2%}", run.said["strategy"],
            )
        )  # fmt: skip
    return _table(*rows)


def _mean(runs: Iterable[Run]) -> str:
    return f"{statistics.mean(abs(run.error) for run in runs):.1%}"


def figures() -> dict[str, Any]:
    """What the page says, by name."""
    every = measured()
    runs = [run for found in every for run in found.values()]
    both = [gains(found) for found in every]
    ours, said = zip(*both, strict=True)
    peaks = [(run, error) for run in runs if (error := run.peak_error) is not None]
    far = [(run, error) for run, error in peaks if abs(error) >= _EXACT]
    names = [found["plan"].job.name for found in every]
    none = [run for run in runs if run.row["engine"] == "none"]
    today = [abs(loop.error) for loop in loops(run.row for run in runs if not run.row["pairs"])]
    return {
        "jobs": len(every), "table": _race(every), "fsdp2": _fsdp2(every), "every": _every(every),
        "least": f"{min(ours):.1f}", "most": f"{max(ours):.1f}", "median": f"{statistics.median(ours):.1f}",
        "said_least": f"{min(said):.1f}", "said_most": f"{max(said):.1f}",
        "said_median": f"{statistics.median(said):.1f}",
        "slower": _listed(f"`{name}`" for name, gain in zip(names, ours, strict=True) if gain < 1),
        "sources": _table(("job", "page", "what it gives"), *(
            (f"`{job.name}`", job.source, job.words) for job in JOBS), numbers_from=3),
        "mean": _mean(runs), "worst": f"{max(abs(run.error) for run in runs):.1%}", "runs": len(runs),
        "inside": sum(run.between[0] <= run.seconds <= run.between[1] for run in runs),
        "mean_engine": _mean(run for run in runs if run not in none), "mean_none": _mean(none),
        "steps": min(len(run.row["step_seconds"]) for run in runs),
        "today": f"{statistics.mean(today):.1%}", "worst_today": f"{max(today):.1%}",
        "rows_today": len(today),
        "exact": len(peaks) - len(far), "peaks": len(peaks), "words": _FAR,
        "far": _listed(f"`{run.row['id']}` ({error:+.1%})" for run, error in far),
        "mispredicted": _listed(
            f"`{name}` ({gain:.1f}, {expected:.1f} said)"
            for name, (gain, expected) in zip(names, both, strict=True)
            if abs(expected / gain - 1) > _FAR_OFF
        ) or "none",
    }  # fmt: skip


def _listed(names: Iterable[str]) -> str:
    *first, last = [*names] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def write_text() -> str:
    """The page."""
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    text: str = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(figures())
    return text


def main() -> None:
    """Write the cases and predictions, or the page."""
    parser = options_of(__doc__)
    parser.add_argument("--write", action="store_true", help="plan the jobs anew")
    options = parser.parse_args()
    if options.write:
        write()
    else:
        PAGE.write_text(write_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
