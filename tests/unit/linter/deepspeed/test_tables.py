"""Tables of keys and ranges of rules for each DeepSpeed and Accelerate that people run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit.cli import run
from zerokit.errors import InputError
from zerokit.linter.accelerate import keys
from zerokit.linter.deepspeed import tables
from zerokit.linter.files import check_files

GOOD = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}


@pytest.fixture(autouse=True)
def newest() -> object:
    """What a test chooses does not last."""
    with tables.TABLES.chosen("0.19.8"), keys.TABLES.chosen("1.15.0"):
        yield


def rules(config: dict[str, object], version: str, folder: Path) -> set[str]:
    path = folder / "ds.json"
    path.write_text(json.dumps(config))
    with tables.TABLES.chosen(version):
        return {f.rule for f in check_files([str(path)])[0].findings if f.severity != "note"}


def test_there_are_tables_of_four_minor_versions_of_each() -> None:
    assert {(0, 16), (0, 17), (0, 18), (0, 19)} <= set(tables.TABLES.versions)
    assert {(1, 12), (1, 13), (1, 14), (1, 15)} <= set(keys.TABLES.versions)


def test_the_minor_version_decides_and_a_newer_one_gets_the_newest() -> None:
    known = {(0, 18): "0.18.9", (0, 19): "0.19.8"}
    assert tables.nearest_table("0.18.2", known) == "0.18.9"
    assert tables.nearest_table("0.21.0", known) == "0.19.8"
    for wrong in ("0.9.5", "new"):
        with pytest.raises(InputError):
            tables.nearest_table(wrong, known)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({**GOOD, "elasticity": {"enabled": False}}, "removed-elasticity"),
        ({**GOOD, "amp": {"enabled": False}}, "removed-amp"),
        ({**GOOD, "zero_optimization": {"stage": 3, "mics_shard_size": 2}}, "removed-mics-shard-size"),
        (
            {**GOOD, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
            "warmup-not-positive",
        ),
        (
            {**GOOD, "fp16": {"enabled": True, "loss_scale_window": 0}},
            "loss-scale-limit",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_0_19_refuses_0_18_takes(config: dict[str, object], rule: str, tmp_path: Path) -> None:
    assert rules(config, "0.19.8", tmp_path) == {rule}
    for version in ("0.18.9", "0.17.6"):
        assert rules(config, version, tmp_path) == set()


def test_a_key_that_came_later_is_unknown_before(tmp_path: Path) -> None:
    config = {**GOOD, "gradient_allreduce_op": "mean"}
    assert rules(config, "0.19.8", tmp_path) == set()
    assert rules(config, "0.18.9", tmp_path) == {"unknown-key"}


def test_the_version_is_named_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**GOOD, "elasticity": {"enabled": False}}))
    assert run(["check", str(path), "--deepspeed-version", "0.18.4"]) == 0
    assert run(["check", str(path), "--deepspeed-version", "0.19.2"]) == 2
    assert run(["check", str(path), "--deepspeed-version", "0.3.0"]) == 2
    assert "there is no table of keys for 0.3.0" in capsys.readouterr().err
    assert run(["check", "--schema", "deepspeed", "--deepspeed-version", "0.17"]) == 0
    assert "DeepSpeed 0.17.6" in capsys.readouterr().out
