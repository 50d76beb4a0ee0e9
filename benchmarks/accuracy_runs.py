"""The committed runs, each with what is predicted of it now and was predicted before it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import accuracy
from benchmarks.common import rows

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "measure" / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of rows; ``status`` of its runs to the model: ``seen``, ``corrected`` or ``blind``."""

    path: Path
    status: str
    words: str


_NAMED = (
    Source(path=accuracy.DATA, status="seen", words="known while the model was written"),
    Source(path=DATA / "held-out-1gpu.jsonl", status="corrected",
           words="families that no figure of the model had seen; errors found here were corrected by "
           "mechanism"),
    Source(path=DATA / "held-out-1gpu-second.jsonl", status="corrected",
           words="run after that, mostly other families again; what it showed was corrected too"),
    Source(path=DATA / "held-out-third.jsonl", status="corrected",
           words="adapters and offloaded parameters under ZeRO-3, run blind; what they showed was corrected"),
    Source(path=DATA / "held-out-2gpu.jsonl", status="blind", words="two GPUs, run after that"),
    Source(path=DATA / "fits.jsonl", status="blind",
           words="plans of `zerokit plan`, run by `zerokit launch`; predicted before the run"),
    Source(path=DATA / "quality.jsonl", status="blind",
           words="strategies of one job on 4 GPUs, run by `zerokit launch`; predicted before the run; what "
           "the one with tensor parallel showed (tied heads, -4.0 %) was corrected, and it counts as that"),
    Source(path=DATA / "quality-2gpu.jsonl", status="blind",
           words="strategies of four jobs on 2 GPUs, run by `zerokit launch`; predicted before the run. The "
           "one with tied heads and tensor parallel was then estimated in closed form (+3.5 %) and is in "
           "the catalogue's profile now; it counts as corrected"),
    Source(path=DATA / "quality-2gpu-second.jsonl", status="blind",
           words="strategies of four other jobs on 2 GPUs, run by `zerokit launch`; predicted before"),
    Source(path=DATA / "quality-2gpu-again.jsonl", status="blind",
           words="some of these again, on another host"),
)  # fmt: skip
SOURCES = (
    *_NAMED,
    *(
        Source(path=path, status="blind", words="predicted, then run, with the model as it then was")
        for path in sorted(DATA.glob("blind-*.jsonl"))
    ),
)
SHOWED_AN_ERROR = 0.001
"""Of the peak: a blind run off by so much then, and by less than half of it now, counts as corrected."""
STATUSES = {
    "seen": "in view while the model was written",
    "corrected": "predicted blind, then used to correct the model",
    "blind": "run only after the model was frozen, and not corrected for it since",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run with what was predicted of it. Bytes of the rank that is furthest off."""

    name: str
    status: str
    source: str
    row: Mapping[str, Any]
    judged: accuracy.Judged
    predicted: int
    measured: int
    before: tuple[int, int] | None

    @property
    def error(self) -> float:
        """Signed, of the peak."""
        return accuracy.error((self.predicted, self.measured))

    @property
    def error_before(self) -> float | None:
        """As predicted before the run; ``None``: not recorded."""
        return None if self.before is None else accuracy.error(self.before)


def rows_of(source: Source) -> list[dict[str, Any]]:
    """The rows of runs that succeeded; none where the file is not there."""
    if not source.path.exists():
        return []
    return [row for row in rows(source.path) if row["ok"]]


def runs() -> list[Run]:
    """Every run, predicted now: models are traced one after the other on each core."""
    numbered_rows = [(source, number) for source in SOURCES for number in range(len(rows_of(source)))]
    found = []
    with ProcessPoolExecutor() as pool:
        for run in pool.map(_run, *zip(*numbered_rows, strict=True), chunksize=4):
            found.append(run)
            print(f"{len(found)} {run.name}: {run.error:+.2%}", file=sys.stderr, flush=True)
    return found


def _run(source: Source, number: int) -> Run:
    row = rows_of(source)[number]
    case = accuracy.read_case(row)
    judged = accuracy.judge(case, accuracy.profile_of(case))
    predicted, measured = max(judged.peaks, key=lambda pair: abs(accuracy.error(pair)))
    status = status_of(row, source, accuracy.error((predicted, measured)))
    return Run(
        name=row["id"], status=status, source=source.path.name, row=row, judged=judged,
        predicted=predicted, measured=measured, before=_before(row),
    )  # fmt: skip


def status_of(row: Mapping[str, Any], source: Source, error: float) -> str:
    """How a run stands to the model: as its file does, but for a blind one that the model was corrected for.

    Args:
        row: The measured run.
        source: Its file.
        error: Of the peak as it is predicted now; a share of it.
    """
    before = _before(row)
    if source.status != "blind" or before is None:
        return source.status
    then = abs(accuracy.error(before))
    return "corrected" if then >= SHOWED_AN_ERROR and abs(error) < then / 2 else "blind"


def _before(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """(predicted, measured) of the rank furthest off, by the prediction that the row brought with it."""
    if not row.get("expected"):
        return None
    measured = row["peak_allocated_bytes"]
    said = row["expected"]["peak_allocated_bytes"]
    said = said * len(measured) if len(said) == 1 else said  # ranks alike are listed once
    return max(zip(said, measured, strict=True), key=lambda pair: abs(accuracy.error(pair)))


# ------------------------------------------------------------------ groups


def _zero(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = row["deepspeed_config"].get("zero_optimization", {})
    return found


def _offload(row: Mapping[str, Any]) -> str:
    kinds = [name for name, key in (("optimizer", "offload_optimizer"), ("weights", "offload_param"))
             if (_zero(row).get(key) or {}).get("device", "none") != "none"]  # fmt: skip
    return " and ".join(kinds) or "none"


def _precision(row: Mapping[str, Any]) -> str:
    config = row["deepspeed_config"]
    if config.get("torch_autocast", {}).get("enabled"):
        return f"fp32, torch_autocast to {config['torch_autocast']['dtype']}"
    return next((p for p in ("bf16", "fp16") if config.get(p, {}).get("enabled")), "fp32")


def _checkpointing(row: Mapping[str, Any]) -> str:
    if not row["activation_checkpointing"]:
        return "none"
    if row["activation_checkpointing"] == "selective":
        return "selective"
    return "full, reentrant" if row["use_reentrant"] else "full"


def _sequence(row: Mapping[str, Any]) -> str:
    for bound in (1024, 2048, 4096, 8192):
        if row["seq_len"] <= bound:
            return f"to {bound:,} tokens"
    return "over 8,192 tokens"


def _experts(row: Mapping[str, Any]) -> str:
    keys = ("num_experts", "num_local_experts", "n_routed_experts")
    return "mixture of experts" if any(row["hf_config"].get(key) for key in keys) else "dense"


GROUPS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "ZeRO stage": lambda row: f"stage {_zero(row).get('stage', 0)}",
    "CPU offload": _offload,
    "GPUs": lambda row: str(row["world_size"]),
    "Tensor parallel": lambda row: str(row["tensor_parallel"]),
    "Trained": lambda row: "QLoRA" if row.get("quantized") else "LoRA" if row["lora"] else "all weights",
    "Precision": _precision,
    "Checkpointing": _checkpointing,
    "Accumulation": lambda row: "1" if row["gradient_accumulation"] == 1 else "2 and more",
    "Attention": lambda row: str(row["attention"]),
    "Sequence": _sequence,
    "Layers": _experts,
    "Family": lambda row: str(row["hf_config"]["model_type"]),
}


def grouped(found: Sequence[Run]) -> dict[str, dict[str, list[Run]]]:
    """Group -> value -> runs."""
    result: dict[str, dict[str, list[Run]]] = {}
    for group, key in GROUPS.items():
        inside: dict[str, list[Run]] = {}
        for run in found:
            inside.setdefault(key(run.row), []).append(run)
        result[group] = dict(sorted(inside.items(), key=lambda item: _order(item[0])))
    return result


def _order(name: str) -> tuple[int, str]:
    digits = "".join(c for c in name if c.isdigit())
    counted = name.startswith("to ") or name[0].isdigit()
    return (int(digits) if counted else 10**6, name)
