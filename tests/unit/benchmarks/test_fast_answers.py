"""Estimates without a script beside rehearsals of the scripts, for a part of the matrix, from traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.fast_answers import section
from zerokit.catalog import gpus
from zerokit.domain.deepspeed_settings import DEFAULT_ZERO, DeepSpeedSettings
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.profile import ModelProfile
from zerokit.domain.profile_json import from_json
from zerokit.domain.strategy import Strategy
from zerokit.domain.trainers import TRAINERS
from zerokit.memory.estimate import estimate_traced
from zerokit.values import replace

ROOT = Path(__file__).resolve().parents[3]
REHEARSED = {
    row["id"]: row
    for line in (ROOT / "benchmarks/fast_answers/rehearsed.jsonl").read_text().splitlines()
    for row in [json.loads(line)]
}
CELLS = (
    "raw.lora.dense.ck.z2",
    "transformers.full.dense.no.z0",
    "trl-sft.lora.dense.no.z3",
    "trl-sft.lora.dense.ck.z3",
    "trl-dpo.lora.dense.no.z0",
    "trl-dpo.lora.dense.ck.z3",
    "trl-reward.lora.dense.no.z2",
    "trl-reward.full.dense.ck.z3",
)


@pytest.fixture(scope="module")
def profile() -> ModelProfile:
    with gzip.open(ROOT / "tests/data/matrix-dense.json.gz") as file:
        return from_json(json.load(file))


@pytest.mark.parametrize("name", CELLS)
def test_the_fast_answer_is_the_rehearsed_one(name: str, profile: ModelProfile) -> None:
    cell = REHEARSED[name]
    trainer = cell["trainer"].removesuffix("-sft")
    row = TRAINERS[trainer]
    job = Job(
        seq_len=512, method=cell["method"], trainer=trainer, loss=row.loss,
        lora=None if cell["method"] == "full" else Lora(dropout=0 if row.disables_dropout else 0.05),
    )  # fmt: skip
    strategy = Strategy(
        settings=DeepSpeedSettings(
            precision="bf16",
            micro_batch=4, gradient_clipping=1.0, zero=replace(DEFAULT_ZERO, stage=cell["stage"])
        ),
        data_parallel=2, checkpointing="full" if cell["checkpointing"] else "none",
    )  # fmt: skip
    memory = estimate_traced(profile, job, strategy, Cluster(gpu=gpus.load("h200"), gpus=2))
    assert max(one.peak_allocated_bytes for one in memory.ranks) == pytest.approx(cell["peak"], rel=0.02)
    assert memory.min_vram_bytes > cell["peak"]  # it fits no card that the rehearsal does not


def test_the_page_has_every_compared_cell() -> None:
    found = section.rows()
    assert section.section() in (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    assert {row["id"]: row["peak"] for row in found} == {
        name: row["peak"] for name, row in REHEARSED.items() if "problem" not in row
    }
    assert len(found) >= 150
    outside = {row["id"] for row in found if abs(section.error(row)) > 0.02}  # the page names them
    assert outside == {"trl-dpo.lora.moe.ck.z3", "axolotl.lora.dense.no.z0", "axolotl.lora.dense.ck.z2"}
