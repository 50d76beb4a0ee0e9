"""Each function of the library called twice, with every room imported in between."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

import zerokit
from tests.support.api_calls import DEEPSPEED, JOB, as_json
from tests.support.packages import needs


def test_no_room_hides_a_function() -> None:
    """Importing a package ``zerokit.plan`` would put the module in the function's place."""
    first = zerokit.estimate(**JOB, zero=3).to_dict()
    planned = zerokit.plan(**JOB).to_dict()
    sized = zerokit.size(params="7b", gpu="h200", method="qlora").to_dict()
    for name in zerokit.__all__:
        getattr(zerokit, name)
    for module in pkgutil.iter_modules(zerokit.__path__):
        if module.name != "__main__":
            importlib.import_module(f"zerokit.{module.name}")
    for name in set(zerokit.__all__) - {"__version__"}:
        assert callable(getattr(zerokit, name)), name
    assert zerokit.estimate(**JOB, zero=3).to_dict() == first
    assert as_json(zerokit.plan(**JOB).to_dict()) == as_json(planned)
    assert zerokit.size(params="7b", gpu="h200", method="qlora").to_dict() == sized


def test_check_and_launch_and_tune_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("deepspeed")
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(json.dumps(DEEPSPEED))
    Path("train.py").write_text("import deepspeed\ndeepspeed.initialize()\n")
    for _ in range(2):
        assert zerokit.check("ds.json").ok
        dry = zerokit.launch("train.py", ["--x"], device="cpu", num_ranks=1, style="raw", dry_run=True)
        assert isinstance(dry, importlib.import_module("zerokit.launcher.attempts").DryRun)
        assert "train.py" in dry.argv and dry.environment["ZEROKIT_DEVICE"] == "cpu"
        tuned = zerokit.tune("train.py", params="100k", gpus=2, device="cpu", style="raw", dry_run=True)
        assert tuned.to_dict()["schema"] == "zerokit.tune/1" and tuned.error is None
