"""Estimates of trainers' files beside rehearsals: ``python -m benchmarks.trainer_files.compared``.

``rehearsed.jsonl`` has the examples of TRL, alignment-handbook, LLaMA-Factory, ms-swift and axolotl with a
model of few layers, and what their trainers allocate by phase (rank 0, expandable segments, Triton installed,
each trainer with its own pins; in ``forward`` the pass of a reference model, too). Prints every phase that is
further off than 1 %, what the answer names as not modelled there, and the spread by trainer.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

import zerokit
from zerokit.errors import ZerokitError
from zerokit.trainer_files import NOT_MODELLED

REHEARSED = Path(__file__).with_name("rehearsed.jsonl")
PHASES = ("init", "forward", "backward", "step")
Row = Mapping[str, Any]


def rows(path: Path = REHEARSED) -> list[Row]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rehearsed(row: Row) -> Mapping[str, int]:
    """What a row's trainer allocates by phase, as an estimate has it: under ZeRO-3 ``init`` begins with the
    weights, which are divided on the GPU while they are loaded (``deepspeed.zero.Init``)."""
    phases: Mapping[str, int] = row["phases"]
    divides = re.search(r'"stage": 3|zero3', json.dumps([row["beside"], row["file"].get("deepspeed")]))
    return {**phases, "init": max(phases["init"], phases.get("load", 0) if divides else 0)}


@contextmanager
def laid(row: Row, config: Mapping[str, Any]) -> Iterator[str]:
    """A working folder with a row's file, the model's configuration and what lies beside; the file's name."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            model = Path(row["file"].get("model_name_or_path") or row["file"].get("base_model") or "model")
            model.mkdir(parents=True)
            (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
            for name, content in row["beside"].items():
                Path(name).write_text(json.dumps(content), encoding="utf-8")
            Path("job.yaml").write_text(yaml.safe_dump(row["file"]), encoding="utf-8")
            yield "job.yaml"
        finally:
            os.chdir(before)


def estimated(row: Row, config: Mapping[str, Any]) -> tuple[dict[str, int], str]:
    """Peaks of rank 0 by phase in bytes, and what is named as not modelled. Raises ZerokitError: the file is
    refused."""
    with laid(row, config) as file:
        length = {"seq_len": row["seq_len"]} if "seq_len" in row else {}  # where rows are shorter than it
        found = zerokit.estimate(file=file, kind=row["trainer"], gpus=row["gpus"], gpu="h200", **length)
    named = "; ".join(str(note) for note in found.notes if note.id == NOT_MODELLED)
    return found.to_dict()["per_rank"][0]["phases"], named


def main() -> int:
    """Compare the rows whose name has one of the words."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows():
        if sys.argv[1:] and not any(word in row["name"] for word in sys.argv[1:]):
            continue
        try:
            phases, named = estimated(row, row["config"])
        except ZerokitError as error:
            print(f"{row['name']:<28} refused: {error}")
            errors[f"{row['trainer']}, refused"].append(0.0)
            continue
        off = {phase: phases[phase] / size - 1 for phase, size in rehearsed(row).items() if phase in phases}
        worst = max(abs(value) for phase, value in off.items() if phase != "init")
        errors[row["trainer"] + (", named" if named else "")].append(worst)
        if worst > 0.01:
            cells = "  ".join(f"{phase} {100 * value:+.2f} %" for phase, value in off.items())
            print(f"{row['name']:<28} {cells}  {named}")
    for trainer, found in sorted(errors.items()):
        within = sum(error <= 0.001 for error in found), sum(error <= 0.01 for error in found)
        print(f"{trainer}: {len(found)} files, {within[0]} within 0.1 %, {within[1]} within 1 %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
