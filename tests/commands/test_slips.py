"""What a slip on the command line of ``plan``, ``estimate`` and the commands of a script is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import move_elsewhere
from zerokit.cli import run


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


def test_a_script_without_its_dashes_is_named_before_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--gpus", "1", "--gpu", "rtx-4090", "train.py", "--lr", "1e-4"]) == 2
    assert "train.py: a script stands after --: zerokit plan … -- train.py ARGS" in capsys.readouterr().err
    assert run(["plan", "--gpus", "1", "--lr", "1e-4"]) == 2
    assert "there is no option --lr" in capsys.readouterr().err


def test_an_option_without_effect_is_answered_in_options(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("--params", "7b", "--gpus", "2", "--gpu", "h200", "--zero", "2", "--offload-param", "cpu")
    assert run(["estimate", *job]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "offload_param works at stage 3 only" in said
    assert "give --zero 3, or leave --offload-param out" in said
    assert "zero_optimization" not in said and '"stage"' not in said


def test_a_bucket_is_a_number_of_elements(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("--params", "7b", "--gpus", "2", "--gpu", "h200", "--zero", "2")
    for text in ("200MB", "190MiB"):
        assert run(["estimate", *job, "--reduce-bucket", text]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "--reduce-bucket" in said
        assert "a number of elements, not of bytes (2 bytes each in bf16 and fp16)" in said
    assert run(["estimate", *job, "--reduce-bucket", "200m"]) == 0


def test_a_file_that_fits_is_launched_next(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ds.json").write_text('{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, '
                               '"zero_optimization": {"stage": 2}}')  # fmt: skip
    job = ("--params", "1b", "--gpus", "2", "--gpu", "h200", "--deepspeed", "ds.json")
    assert run(["estimate", *job]) == 0
    assert "launch --deepspeed ds.json --gpus 2 train.py" in capsys.readouterr().out.partition("Next")[2]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["plan", "--global-batchsize", "64"], "use --global-batch N"),
        (["estimate", "--ds-config", "ds.json"], "use --deepspeed FILE"),
    ],
)
def test_an_option_that_is_called_otherwise_is_named(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("launch --resume_from_checkpoint a x.py", "zerokit launch … SCRIPT --resume_from_checkpoint …"),
        ("rehearse --learning_rate 1 x.py", "the script's own options stand after its name"),
        ("emit sbatch --learning_rate 1 x.py", "the script's own options stand after its name"),
        ("launch --platn z x.py", "did you mean --plan?"),
    ],
)
def test_a_script_s_own_option_before_its_name(
    capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    assert run(line.split()) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("line", "way_on"),
    [
        (
            "launch --config a.yaml",
            "or give a DeepSpeed JSON with --deepspeed FILE; a --config of the script's",
        ),
        ("launch --config_file a.yaml", "or give a DeepSpeed JSON with --deepspeed FILE\n"),
        ("rehearse --accelerate-config a.yaml", "then `zerokit rehearse --plan DIR SCRIPT`)\n"),
        ("emit sbatch --config-file a.yaml", "then `zerokit emit sbatch --plan DIR SCRIPT`)\n"),
    ],
)
def test_an_accelerate_yaml_before_a_script_is_answered_with_a_plan(
    capsys: pytest.CaptureFixture[str], line: str, way_on: str
) -> None:
    """After the script's name it would be the script's, and the files of ``estimate`` are others."""
    assert run([*line.split(), "x.py"]) == 2
    said = " ".join(capsys.readouterr().err.split()) + "\n"
    command = line.partition(" --")[0]
    assert (
        f"{command} takes no accelerate YAML: plan in its place (`zerokit plan --gpus N --gpu GPU -- " in said
    )
    assert way_on in said and "zerokit estimate" not in said


def test_an_accelerate_yaml_of_estimate_is_answered_with_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--config_file", "a.yaml"]) == 2
    assert "for it or an accelerate YAML `zerokit check FILE`" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("option", ["--deepspeed", "--ds-config", "--deepspeed_config"])
def test_a_deepspeed_file_is_not_planned_but_estimated(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--model", "gpt2", "--gpus", "2", "--gpu", "l4", option, "ds_config.json"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"there is no option {option}; `zerokit estimate --deepspeed FILE` predicts" in said
