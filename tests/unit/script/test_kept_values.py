"""What a Trainer's class makes of arguments is asked once."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from zerokit.script.kept_values import kept_values

TOKEN = "hf_" + "a1B2" * 8


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "zerokit" / "arguments"


def asked(times: list[int], *arguments: str, **environment: str) -> dict[str, object]:
    def ask() -> dict[str, object]:
        times.append(1)
        return {"hub_token": TOKEN, "batch": 4, "bf16": True, "seed": None, "optim": "adamw",
                "output_dir": "an-output-folder", "logging_dir": "an-output-folder/runs"}  # fmt: skip

    order: dict[str, Any] = {"classes": ["trl.SFTConfig"], "trl": True, "arguments": list(arguments)}
    return kept_values(order, environment, ask)


def test_it_is_asked_again_only_where_something_changed(cache: Path) -> None:
    times: list[int] = []
    words = ("--hub_token", TOKEN, "--output_dir=an-output-folder", "--deepspeed", "zero.json")
    Path("zero.json").write_text("{}")
    first = asked(times, *words)
    assert first["batch"] == 4 and first["output_dir"] == "an-output-folder" and "logging_dir" not in first
    assert asked(times, *words) == first and len(times) == 1
    (path,) = cache.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert TOKEN not in path.read_text() and "an-output" not in path.read_text()
    path.write_text("{")  # damaged
    assert asked(times, *words) == first and len(times) == 2
    Path("zero.json").write_text('{"bf16": {}}')
    assert asked(times, *words) == first and len(times) == 3
    assert asked(times, *words, "--bf16") and asked(times, *words, ACCELERATE="1")
    assert len(times) == 5


def test_what_a_file_of_arguments_says_is_not_written(cache: Path) -> None:
    times: list[int] = []
    for _ in range(2):
        asked(times, "--config", "run.yaml")
    assert len(times) == 2 and not cache.exists()
