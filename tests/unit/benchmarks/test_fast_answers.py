"""Estimates without a script beside rehearsals of the scripts, for a part of the matrix, from traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.fast_answers import section
from zerokit.catalog import gpus
from zerokit.domain.deepspeed_settings import DEFAULT_ZERO, DeepSpeedSettings
from zerokit.domain.hardware import DEFAULT_MARGIN, Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.profile import ModelProfile
from zerokit.domain.profile_json import from_json
from zerokit.domain.strategy import Strategy
from zerokit.domain.trainers import TRAINERS
from zerokit.memory import card
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


def test_zero_3_keeps_frozen_weights_gathered_after_a_pass_of_the_base(profile: ModelProfile) -> None:
    """Under TRL's DPO alone (rehearsed: 12 layers of this model end backward with 258 MiB gathered)."""
    zero = replace(DEFAULT_ZERO, stage=3, max_reuse_distance=0, prefetch_bucket_size=0)
    settings = DeepSpeedSettings(precision="bf16", micro_batch=1, gradient_clipping=1.0, zero=zero)
    strategy = Strategy(settings=settings, data_parallel=2, checkpointing="full")

    def gathered(trainer: str) -> int:
        job = Job(seq_len=16, method="lora", trainer=trainer, loss="chunked", lora=Lora(dropout=0.0))
        memory = estimate_traced(profile, job, strategy, Cluster(gpu=gpus.load("h200"), gpus=2))
        return memory.ranks[0].phase_components["backward"]["gathered_parameters"]

    layers = 2 * 2 * (2 * 1024 * 1024 + 2 * 1024 * 256 + 3 * 1024 * 2816)  # elements of two layers, in bf16
    assert gathered("trl-dpo") - gathered("trl") == layers


def test_the_page_has_every_compared_cell() -> None:
    found = section.rows()
    assert section.section() in (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    assert {row["id"]: row["peak"] for row in found} == {
        name: row["peak"] for name, row in REHEARSED.items() if "problem" not in row
    }
    assert len(found) >= 170


def test_each_is_within_the_limit_or_says_what_it_does_not_count() -> None:
    for row in section.rows():
        outside = abs(section.error(row)) > 0.02
        assert not outside or (section.error(row) > 0 and section.said(row)), row["id"]


def test_none_fits_where_the_rehearsal_does_not() -> None:
    """The card that an estimate requires is that of the rehearsed peak, within the margin of a plan: of the
    peak alone, since with two layers a card holds more beside it."""
    gpu = gpus.load("h200")
    for row in section.rows():
        zero = replace(DEFAULT_ZERO, stage=REHEARSED[row["id"]]["stage"])
        strategy = Strategy(settings=DeepSpeedSettings(zero=zero), data_parallel=2)
        trainer = TRAINERS[row["trainer"].removesuffix("-sft")]
        required = card.min_vram_bytes(gpu, strategy, row["peak"], trainer)
        assert required - row["required"] <= DEFAULT_MARGIN * row["peak"], row["id"]
