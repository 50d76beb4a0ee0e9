"""Models of the Hugging Face cache are taken by name; those that are not there come with a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit.cli import run
from zerokit.planner.hub_cache import cached_config, is_repository

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2}  # fmt: skip
COMMIT = "0123456789abcdef0123456789abcdef01234567"
JOB = ("--gpus", "1", "--gpu", "h200", "--json")


def put(hub: Path, name: str) -> Path:
    folder = hub / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    path = folder / "snapshots" / COMMIT / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(CONFIG))
    return path


def test_a_model_of_the_cache_is_used_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    path = put(tmp_path, "somebody/tiny-llama-of-mine")
    assert run(["estimate", "--model", "somebody/tiny-llama-of-mine", *JOB]) == 0
    by_name = json.loads(capsys.readouterr().out)
    assert run(["estimate", "--model", str(path), *JOB]) == 0
    assert by_name["peak_allocated_bytes"] == json.loads(capsys.readouterr().out)["peak_allocated_bytes"]
    assert run(["estimate", "--model", "somebody/tiny-llama-of-mine", *JOB[:-1]]) == 0
    assert capsys.readouterr().out.startswith("somebody/tiny-llama-of-mine on ")


def test_a_repository_that_is_not_here_comes_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert run(["estimate", "--model", "somebody/there-is-none", *JOB]) == 2
    assert "hf download somebody/there-is-none config.json" in capsys.readouterr().err
    assert run(["estimate", "--model", "there-is-none", *JOB]) == 2
    assert "hf download" not in capsys.readouterr().err


def test_where_the_cache_is_and_what_is_no_repository(tmp_path: Path) -> None:
    path = put(tmp_path / "hub", "a/b")
    assert cached_config("a/b", {"HF_HOME": str(tmp_path)}) == path
    assert cached_config("a/c", {"HF_HOME": str(tmp_path)}) is None
    (path.parents[2] / "refs" / "main").write_text("../../elsewhere")
    assert cached_config("a/b", {"HF_HOME": str(tmp_path)}) is None
    assert not any(is_repository(name) for name in ("a", "../b", "a/b/c", "a/..", "/etc/passwd", "a/b;c"))
