"""Where lines of the terminal break."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import call, move_elsewhere


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


@pytest.mark.parametrize("columns", range(40, 100, 3))
def test_a_number_keeps_its_per_cent_sign(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    words = ("plan", "--params", "1b", "--gpu", "v100-32gb", "--explain")
    _, out, _ = call(capsys, *words)
    assert "25 %" in out and not any(line.lstrip().startswith("%") for line in out.splitlines())
