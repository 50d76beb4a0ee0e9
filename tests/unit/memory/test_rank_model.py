"""Frozen weights under reentrant checkpoints and ZeRO-3, against the run that showed them to stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import zerokit
from zerokit.errors import NothingFits
from zerokit.machine import versions

ROWS = Path(__file__).parents[3] / "benchmarks" / "measure" / "data" / "race.jsonl"
RUN = "qwen3-4b.lora.documented"  # Transformers 5.17
ASKED: dict[str, Any] = {
    "model": "qwen3-4b", "gpus": 2, "gpu": "h200", "method": "lora", "lora_rank": 8, "lora_dropout": 0,
    "seq_len": 2048, "checkpointing": "full",
}  # fmt: skip


@pytest.fixture
def row() -> dict[str, Any]:
    rows = map(json.loads, ROWS.read_text(encoding="utf-8").splitlines())
    return next(row for row in rows if row["id"] == RUN)


def peak(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, row: dict[str, Any], installed: str, **more: Any
) -> tuple[int, set[str]]:
    """Of an estimate with these versions of Transformers and DeepSpeed, and the ids of its notes."""
    named = dict(zip(("transformers", "deepspeed"), installed.split(), strict=False))
    monkeypatch.setattr(versions, "installed", named.get)
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps(row["deepspeed_config"]))
    found = zerokit.estimate(**ASKED | {"deepspeed": str(file), "reentrant": "on"} | more).to_dict()
    return found["peak_allocated_bytes"], {note["id"] for note in found["notes"]}


@pytest.mark.parametrize(
    ("installed", "more"),
    [("5.17.0 0.19.8", {}), ("5.17.0 0.19.8", {"trainer": "llamafactory"}), ("5.17.0", {}), ("", {})],
)
def test_they_stay_until_backward_ends(
    installed: str, more: dict[str, str], row: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, notes = peak(monkeypatch, tmp_path, row, installed, **more)
    assert found == pytest.approx(row["peak_allocated_bytes"][0], rel=0.005)
    assert "recomputed-weights-stay" in notes


@pytest.mark.parametrize(
    ("installed", "more"),
    [
        ("5.23.0 0.19.8", {}),
        ("5.17.0 0.19.2", {}),
        ("5.17.0 0.19.8", {"reentrant": "off"}),
        ("", {"trainer": "llamafactory"}),  # which asks for an older DeepSpeed
    ],
)
def test_they_go_layer_by_layer(
    installed: str, more: dict[str, str], row: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, notes = peak(monkeypatch, tmp_path, row, installed, **more)
    assert found < 0.9 * row["peak_allocated_bytes"][0] and "recomputed-weights-stay" not in notes


def test_closed_form_counts_them_too(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a model of that size which nobody traced."""
    more = {"model": None, "params": "4.022b"}
    stays, _ = peak(monkeypatch, tmp_path, row, "5.17.0 0.19.8", **more)
    goes, _ = peak(monkeypatch, tmp_path, row, "5.23.0 0.19.8", **more)
    assert stays > goes and stays > 2 * 4.022e9 * 1.5  # all of them in 16 bits, and a rank's half


def test_letting_go_of_them_is_named_where_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", {}.get)
    job = {"model": "llama-3.1-70b", "gpus": 8, "gpu": "h100", "method": "lora", "zero": 3}
    with pytest.raises(NothingFits, match="reentrant off: ZeRO-3"):
        zerokit.plan(**job, checkpointing="full", reentrant="on")
    assert zerokit.plan(**job, checkpointing="full", reentrant="off").chosen.estimate.fits
