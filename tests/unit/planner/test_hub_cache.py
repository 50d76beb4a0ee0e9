"""Models of the Hugging Face cache are taken by name; those that are not there come with a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hub_cache import put
from zerokit.cli import run
from zerokit.planner.hub_cache import cached_config, is_repository

JOB = ("--gpus", "1", "--gpu", "h200", "--json")


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
