"""Cases whose plans ``zerokit plan`` made, and cases given to ``zerokit estimate``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import options_of, rows
from benchmarks.measure.host import Case
from zerokit import planner
from zerokit.catalog import gpus, models, profiles
from zerokit.domain.deepspeed_settings import from_config
from zerokit.domain.hardware import Gpu
from zerokit.domain.strategy import Strategy
from zerokit.errors import NothingFits
from zerokit.memory.card import outside_allocator_bytes

MIB = 2**20
Options = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model of the catalogue as the planner and the training script are told about it. ``argument``: of
    ``--model``: its name, or a file with its configuration where no traced profile is committed, so that it
    is traced."""

    name: str
    argument: str
    head: str
    hf_config: Mapping[str, Any] = field(repr=False)


def subject(name: str, folder: Path) -> Subject:
    """The catalogue's model ``name``. Raises InputError: there is none."""
    entry = models.load(name)
    argument = name
    if name not in profiles.names():
        path = folder / "configs" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(entry.hf_config)), encoding="utf-8")
        argument = str(path)
    return Subject(name=name, argument=argument, head=entry.head, hf_config=entry.hf_config)


def argv(options: Options) -> list[str]:
    """Long options as a command takes them."""
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]


def named(options: Options) -> dict[str, str]:
    """Long options as the planner takes them."""
    return {name.replace("-", "_"): str(value) for name, value in options.items()}


def ask_plan(options: Options, folder: Path) -> dict[str, Any] | None:
    """What ``zerokit plan --json`` prints; ``None``: nothing fits."""
    try:
        return planner.plan(named(options), out=folder).to_dict()
    except NothingFits:
        return None


def write_plan(options: Options, folder: Path) -> dict[str, Any]:
    """Write the plan into ``folder``; what ``zerokit plan --json`` prints. Raises NothingFits: no strategy
    fits."""
    return planner.plan(named(options), out=folder).to_dict()


def ask_estimate(options: Options, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """``zerokit estimate --json`` of a DeepSpeed configuration."""
    path = folder / "ds_config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config), encoding="utf-8")
    return planner.estimate(named(options), deepspeed=path).to_dict()


def expected(estimate: Mapping[str, Any]) -> dict[str, Any]:
    """What of an estimate is kept beside a case, as in ``predict``; ``step_seconds`` too."""
    ranks = estimate["per_rank"]
    return {
        "peak_allocated_bytes": [rank["peak_allocated_bytes"] for rank in ranks],
        "phases": ranks[0]["phases"],
        "peak_phase": ranks[0]["peak_phase"],
        "host_bytes_per_node": estimate["host_bytes_per_node"],
        "min_vram_bytes": estimate["min_vram_bytes"],
        "step_seconds": estimate["step_seconds"],
        "basis": estimate["basis"],
    }


def lora_of(options: Options) -> dict[str, Any] | None:
    """peft's settings for the planner's ``--lora-`` options."""
    if options.get("method") != "lora":
        return None
    rank, targets = int(str(options.get("lora-rank", 16))), str(options.get("lora-targets", "all-linear"))
    modules: str | list[str] = targets if targets == "all-linear" else targets.split(",")
    return {"r": rank, "lora_alpha": 2 * rank, "target_modules": modules}


def case_of(
    name: str,
    model: Subject,
    options: Options,
    config: Mapping[str, Any],
    *,
    checkpointing: str,
    estimate: Mapping[str, Any],
    **more: Any,
) -> Case:
    """A case with every column; ``more``: those that the options do not say."""
    case: Case = {
        "id": name,
        "hf_config": dict(model.hf_config),
        "head": model.head,
        "deepspeed_config": dict(config),
        "world_size": int(str(options["gpus"])),
        "tensor_parallel": config.get("tensor_parallel", {}).get("autotp_size", 1),
        "micro_batch": config["train_micro_batch_size_per_gpu"],
        "gradient_accumulation": config["gradient_accumulation_steps"],
        "seq_len": int(str(options["seq-len"])),
        "activation_checkpointing": checkpointing == "full",
        "attention": options.get("attention", "sdpa"),
        "lora": lora_of(options),
        "expected": expected(estimate),
    }
    return case | more


def card(driver_mib: int, like: str = "h200") -> Gpu:
    """A GPU like another with so much memory by nvidia-smi: what ``--gpu LIKE --vram SIZE`` plans for."""
    return gpus.load(like).with_total_memory(driver_mib * MIB)


def allocator_limit(gpu: Gpu, config: Mapping[str, Any], world_size: int) -> int:
    """What context, libraries and NCCL leave the allocator of a rank on a card. Bytes."""
    tensor = config.get("tensor_parallel", {}).get("autotp_size", 1)
    strategy = Strategy(
        settings=from_config(config), data_parallel=world_size // tensor, tensor_parallel=tensor
    )
    return gpu.vram_bytes - outside_allocator_bytes(gpu, strategy)


def write_cases(cases: Iterable[Case], path: Path) -> None:
    """The file that ``launch`` reads."""
    path.write_text(json.dumps(list(cases), indent=1) + "\n", encoding="utf-8")


def command_line(description: str | None, what: str) -> argparse.ArgumentParser:
    """``prepare FOLDER [--only TEXT]``, ``list`` and ``table ROWS…``; ``what``: plural of what is listed."""
    parser = options_of(description)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prepare", help="make the plans and the file of cases")
    making.add_argument("folder", type=Path)
    making.add_argument("--only", metavar="TEXT", default="", help=f"{what} whose name holds it")
    commands.add_parser("list", help=f"the {what}")
    shown = commands.add_parser("table", help="what came of it")
    shown.add_argument("rows", type=Path, nargs="+")
    return parser


def rows_of(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows of JSONL files."""
    return [row for path in paths for row in rows(path)]
