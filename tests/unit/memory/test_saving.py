"""What a save takes: gathering under ZeRO-3, disk, and what is said where there is no room."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.support.command import as_json, move_elsewhere
from tests.support.packages import needs
from tests.support.plans import write_plan
from tests.support.ranks import write_script
from tests.support.scripts_read import RAW, options
from tests.support.scripts_read import TRAINER as TRAINER_SCRIPT
from zerokit.cli import run
from zerokit.launcher.plan_agreement import of_disk_space

GIB = 1 << 30
WEIGHTS = 8_030_261_248  # llama-3.1-8b
ASKED = ("--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "a100-40gb", "--zero", "3", "--seq-len", "2048")

TRAINER = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


def test_a_zero3_plan_gathers_the_weights_and_counts_what_that_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = as_json(capsys, "plan", *ASKED)
    for name in ("ds_config.json", "ds_config.trainer.json", "ds_config.accelerate.json"):
        zero = json.loads((Path("zerokit-plan") / name).read_text())["zero_optimization"]
        assert zero["stage3_gather_16bit_weights_on_model_save"] is True
    assert yaml.safe_load(Path("zerokit-plan/accelerate.yaml").read_text()) is not None
    takes = body["chosen"]["estimate"]["saving"]
    assert takes["weights_bytes"] == takes["host_bytes"] == 2 * WEIGHTS
    assert takes["checkpoint_bytes"] == 12 * WEIGHTS  # fp32 weights and Adam's two moments
    assert 1 < takes["seconds"] < 30
    assert run(["plan", *ASKED, "-v"]) == 0
    assert "gathered on rank 0: 15.0 GiB of its host's RAM" in capsys.readouterr().out


def test_weights_that_the_host_cannot_hold_are_not_gathered_and_the_way_out_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = as_json(capsys, "plan", *ASKED, "--host-ram", "30GiB")
    assert body["chosen"]["deepspeed_config"]["zero_optimization"][
        "stage3_gather_16bit_weights_on_model_save"
    ] is False  # fmt: skip
    assert body["chosen"]["estimate"]["saving"]["weights_bytes"] == 0
    (said,) = (line for line in body["assumptions"] if "the whole weights" in line)
    assert any("zerokit weights" in line for line in body["assumptions"])
    assert "15 GiB on the first node's host, have no room there" in said
    roomy = as_json(capsys, "plan", *ASKED, "--host-ram", "48GiB")
    assert roomy["chosen"]["estimate"]["saving"]["host_bytes"] == 2 * WEIGHTS


def test_the_host_memory_that_is_assumed_limits_what_is_gathered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nodes of one A10G have 48 GiB: 70 B weights in 16 bits, 131 GiB, never stand on one of them."""
    asked = ("--model", "llama-3.1-70b", "--gpus", "64", "--nodes", "64", "--gpu", "a10g", "--zero", "3")
    body = as_json(capsys, "plan", *asked)
    zero = body["chosen"]["deepspeed_config"]["zero_optimization"]
    assert zero["stage3_gather_16bit_weights_on_model_save"] is False
    (said,) = (line for line in body["assumptions"] if "the whole weights" in line)
    assert any("zerokit weights" in line for line in body["assumptions"])
    assert "are taken to have 48 GiB, --host-ram not given" in said


def test_a_file_that_does_not_gather_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
    }
    asked = [word for word in ASKED if word not in ("--zero", "3")]
    path.write_text(json.dumps(config))
    body = as_json(capsys, "estimate", *asked, "--deepspeed", str(path))
    assert any("are not gathered (stage3_gather_16bit" in line for line in body["assumptions"])
    for host_ram in ("30GiB", "256GiB"):  # the file says so, whatever room there is
        body = as_json(capsys, "estimate", *asked, "--deepspeed", str(path), "--host-ram", host_ram)
        (said,) = (line for line in body["assumptions"] if "the whole weights" in line)
        assert said.endswith("are not gathered (stage3_gather_16bit_weights_on_model_save is false)")
    config["zero_optimization"]["gather_16bit_weights_on_model_save"] = True
    path.write_text(json.dumps(config))
    body = as_json(capsys, "estimate", *asked, "--deepspeed", str(path))
    assert body["saving"]["host_bytes"] == 2 * WEIGHTS
    assert not any("zerokit weights" in line for line in body["assumptions"])


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_launch_warns_where_a_save_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def usage(path: Path) -> _Usage:
        asked.append(path)
        return _Usage(100 * GIB, 80 * GIB, 20 * GIB)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    chosen = {"estimate": {"saving": {"weights_bytes": 15 * GIB, "checkpoint_bytes": 90 * GIB}}}
    (said,) = of_disk_space(
        chosen, options(tmp_path, RAW, "--lr", "1", "--output_dir", str(tmp_path / "not" / "yet"))
    )
    assert (
        f"{tmp_path / 'not' / 'yet'} has 20.0 GiB free on this machine: if the script saves the planned model"
        in said
    )
    assert "its weights take 15.0 GiB and each DeepSpeed checkpoint 90.0 GiB" in said
    assert asked == [tmp_path]
    chosen["estimate"]["saving"]["checkpoint_bytes"] = 4 * GIB
    assert of_disk_space(chosen, options(tmp_path, RAW)) == []
    chosen["estimate"]["saving"]["weights_bytes"] = 21 * GIB
    assert (
        "x has 20.0 GiB free on this machine: "
        in of_disk_space(chosen, options(tmp_path, RAW, "--output_dir=x"))[0]
    )
    assert of_disk_space({"estimate": {"saving": None}}, options(tmp_path, RAW)) == []
    assert of_disk_space({}, options(tmp_path, RAW)) == []


def test_a_trainer_leaves_the_frozen_weights_under_adapters_out_of_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("plan", "--model", "llama-3.1-8b", "--gpus", "1", "--gpu", "rtx-4090", "--seq-len", "2048")
    body = as_json(capsys, *asked, "--method", "qlora")
    takes = body["chosen"]["estimate"]["saving"]
    # QLoRA's paper: NF4 holds 4.127 bits a weight, quantised doubly; the two tables stay in 16
    tables = 2 * 128_256 * 4_096
    assert takes["frozen_bytes"] == pytest.approx((WEIGHTS - tables) * 4.127 / 8 + tables * 2, rel=1e-3)
    adapters = 41_943_040  # rank 16 on the seven linear layers of 32 blocks, each weight + 3 of Adam
    assert takes["checkpoint_bytes"] - takes["frozen_bytes"] == pytest.approx(adapters * 14, rel=0.2)
    assert run([*asked, "--method", "qlora", "--explain"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "each checkpoint of a Trainer 0.5 GiB of disk; of a script that calls save_checkpoint itself 5."
        in said
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(GIB, 0, GIB))
    assert of_disk_space(body["chosen"], options(tmp_path, TRAINER_SCRIPT)) == []
    assert "each DeepSpeed checkpoint 5." in of_disk_space(body["chosen"], options(tmp_path, RAW))[0]


def test_adapters_that_are_not_gathered_are_saved_and_converted_as_such(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = as_json(capsys, "plan", *ASKED, "--method", "lora", "--host-ram", "24GiB")
    saving = body["chosen"]["estimate"]["saving"]
    assert saving["host_bytes"] == 0 and saving["weights_bytes"] == pytest.approx(41_943_040 * 4)
    (said,) = (line for line in body["assumptions"] if "save_model writes no adapters that load" in line)
    assert "before Transformers 5.0" in said and "load_state_dict_from_zero_checkpoint(peft_model" in said
    assert not any("zerokit weights" in line for line in body["assumptions"])


def test_a_folder_that_the_scripts_file_names_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the free space of real file systems: no disk holds an exbibyte."""
    needs("deepspeed")
    plan = write_plan(tmp_path / "zerokit-plan") / "plan.yaml"
    takes = "  estimate:\n    saving: {weights_bytes: 1, checkpoint_bytes: 1152921504606846976}\n"
    assert "  estimate:\n" in plan.read_text()
    plan.write_text(plan.read_text().replace("  estimate:\n", takes))
    write_script(tmp_path, TRAINER, "train.py")
    Path("x.yaml").write_text(f"output_dir: {tmp_path / 'far'}\n")
    for words in (["--config", "x.yaml"], ["--config", "x.yaml", "--output_dir", "near"], []):
        run(["launch", "--dry-run", "--device", "cpu", "--accept-mismatch", "train.py", *words])
        named = {0: tmp_path, 2: tmp_path / "far", 4: tmp_path / "near"}[len(words)]
        assert f"warning: {named} has " in capsys.readouterr().err.replace("\n  ", " ")
