"""A catalogued model traced again for the Transformers that is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit.cli import run
from zerokit.planner import models


@pytest.mark.slow
def test_an_estimate_traces_anew_where_another_transformers_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(models, "installed", lambda name: "5.17.0" if name == "transformers" else None)
    asked = ["estimate", "--model", "gpt2", "--gpus", "1", "--gpu", "h200", "--seq-len", "512", "--json"]
    assert run(asked) == 0
    out, err = capsys.readouterr()
    assert "tracing gpt2 (training, sdpa attention, 16 bits), which takes seconds for a small" in err
    assert any("traced again" in line for line in json.loads(out)["assumptions"])
