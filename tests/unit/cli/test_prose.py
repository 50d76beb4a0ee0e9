"""Where lines of the terminal break."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.command import call, move_elsewhere


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


@pytest.mark.parametrize("columns", [40, 79])
def test_a_number_keeps_its_per_cent_sign(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    words = ("plan", "--params", "1b", "--gpu", "v100-32gb", "--explain")
    _, out, _ = call(capsys, *words)
    assert "25 %" in out and not any(line.lstrip().startswith("%") for line in out.splitlines())


@pytest.mark.parametrize("columns", ["40", "80"])
def test_a_command_in_lines_is_the_same_command_to_a_shell(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    file = tmp_path / "it's a --new  day.json"
    file.write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}')
    job = ("--model", "llama-3.1-8b", "--method", "lora", "--gpus", "4", "--gpu", "h200")
    _, out, _ = call(capsys, "estimate", *job, "--deepspeed", str(file))
    shown = out.partition("\nNext\n")[2].partition("  runs the script")[0]
    shell = f"zerokit() {{ printf '%s\\n' \"$@\"; }}\n{shown}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["launch", "--deepspeed", str(file), "--gpus", "4", "train.py"]
    assert "# train.py: your script" in shown
