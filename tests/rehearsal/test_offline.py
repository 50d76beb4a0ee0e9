"""What is said of a script that asks the network, which a rehearsal has not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.packages import needs
from tests.support.rehearsals import rehearse
from zerokit.cli import run

needs("transformers")

LOADS = """
import argparse
from transformers import AutoConfig, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path")
args = parser.parse_args()
AutoConfig.from_pretrained(args.model_name_or_path)
Trainer(args=TrainingArguments("out")).train()
"""


@pytest.mark.slow  # test_whoever_asks_is_told… has the reasons
def test_a_misspelt_model_folder_is_named_before_and_after_the_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps({"model_type": "llama"}))
    Path("train.py").write_text(LOADS)
    code, done, said = rehearse(tmp_path, "--gpu", "h200", "train.py", "--model_name_or_path", "modle")
    words = " ".join(said.split())
    warning = "warning: train.py's --model_name_or_path modle: no such folder is here, but model is;"
    assert code == 14 and 0 < words.index(warning) < words.index("rehearsing train.py")
    reason = done["stopped"]["reason"]
    assert reason == (
        "OSError: no folder modle is here, and this machine's cache of the Hugging Face Hub lacks it; a "
        "rehearsal has no network by design: correct the name, or download it first"
    )
    plan = ["plan", "--gpu", "h200", "--out", "plan", "--", "train.py", "--model_name_or_path", "modle"]
    assert run(plan) == 2
    words = " ".join(capsys.readouterr().err.split())
    assert words.index(warning) < words.index("could not be rehearsed")
    assert "no folder modle is here" in words and "internet connection" not in words


@pytest.mark.slow
def test_a_recipe_whose_length_is_left_to_a_script_that_cannot_be_rehearsed_makes_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan of the defaults would take the place of the plan that it was made from."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(LOADS)
    job = ("--model", "llama-3.2-1b", "--gpus", "1", "--gpu", "h200", "--seq-len", "4096", "--method", "lora")
    assert run(["plan", *job, "--out", "plan"]) == 0
    before = Path("plan/plan.yaml").read_text()
    script = ("--", "train.py", "--model_name_or_path", "modle")
    left_out = ("method=", "seq_len=")
    assert run(["plan", "--recipe", "plan/plan.yaml", "--out", "plan", *left_out, *script]) == 2
    words = " ".join(capsys.readouterr().err.split())
    assert "nothing tells what method= seq_len= leaves to the script, and no plan was made" in words
    assert Path("plan/plan.yaml").read_text() == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            "import datasets\ndatasets.load_dataset('nobody/nothing')\n",
            "'nobody/nothing' on the Hub (OfflineModeIsEnabled); a rehearsal has no network by design",
            marks=pytest.mark.slow,
        ),
        (
            "import torch\nprint('begins as others do')\nimport datasets\ndatasets.load_dataset('./datta')\n",
            "there is no folder ./datta here; did you mean data?",
        ),
        pytest.param(
            "import huggingface_hub\nhuggingface_hub.snapshot_download('nobody/nothing')\n",
            "LocalEntryNotFoundError: no folder nobody/nothing is here",
            marks=pytest.mark.slow,
        ),
        (
            "import urllib.request\nurllib.request.urlopen('http://example.org')\n",
            "a rehearsal has no network by design: download first what the script loads",
        ),
    ],
)
def test_whoever_asks_is_told_that_there_is_no_network(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "data").mkdir()
    code, done, _ = rehearse(tmp_path, "--gpu", "h200", "train.py")
    assert code == 14 and says in done["stopped"]["reason"]


def test_an_error_of_the_scripts_own_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('absent.txt')\n")
    reason = rehearse(tmp_path, "--gpu", "h200", "train.py")[1]["stopped"]["reason"]
    assert reason == "FileNotFoundError: [Errno 2] No such file or directory: 'absent.txt'"
