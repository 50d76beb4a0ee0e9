"""A catalogued model traced again for the Transformers that is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit.cli import run

ARGUMENTS = ["estimate", "--model", "llama-3.2-1b", "--gpus", "1", "--gpu", "h200", "--json"]


def assumptions(capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert run(ARGUMENTS) == 0
    found: list[str] = json.loads(capsys.readouterr().out)["assumptions"]
    return [line for line in found if line.startswith("DeepSpeed ")]


def with_transformers(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from zerokit.planner import models

    monkeypatch.setattr(models, "installed", lambda name: number if name == "transformers" else None)


@pytest.mark.slow
def test_an_estimate_traces_anew_where_another_transformers_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with_transformers("5.17.0", monkeypatch)
    asked = ["estimate", "--model", "gpt2", "--gpus", "1", "--gpu", "h200", "--seq-len", "512", "--json"]
    assert run(asked) == 0
    out, err = capsys.readouterr()
    assert "tracing gpt2 (training, sdpa attention, 16 bits), which takes seconds for a small" in err
    assert any("traced again" in line for line in json.loads(out)["assumptions"])
