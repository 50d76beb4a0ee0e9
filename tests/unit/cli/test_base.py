"""What a slip on the command line is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import call, move_elsewhere
from zerokit.cli import run


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


@pytest.mark.parametrize("command", ["launch --dry-run --device cuda", "emit sbatch --out job.sh"])
def test_quiet_leaves_warnings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what will end the run: a job that is written in silence dies in its queue."""
    assert run(["plan", "--model", "gpt2", "--gpus", "1", "--gpu", "t4", "-q"]) == 0
    assert not capsys.readouterr().err
    script = str(Path(__file__).parents[3] / "examples" / "train_causal_lm.py")
    assert run([*command.split(), "-q", script]) == 0
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith("zerokit: warning: ") for line in said)
    assert any("is another model than the plan's gpt2" in line for line in said)


@pytest.mark.parametrize(
    ("command", "groups"),
    [
        ("launch", {
            "Plan": "--plan --no-plan --deepspeed --recipe --accept-mismatch",
            "Script": "--module --style --no-arguments --no-trackers",
            "Ranks": "--gpus --num-ranks --device --nodes --hostfile --master-port --launcher",
            "Failures": "--heartbeat --grace --max-restarts --resume-option --resume --retry-smaller "
            "--snapshot",
            "Prediction": "--no-rehearsal --rehearsal-seconds --unconfined --no-cache --no-host-probe",
            "Output": "--run-dir --show --dry-run --quiet --help",
        }),
        ("rehearse", {
            "Hardware": "--gpus --gpu --vram --host-speed",
            "Plan": "--plan --accelerate --no-arguments --accept-mismatch",
            "Rehearsal": "--module --rank --ranks --steps --launcher --versions --whole --unconfined "
            "--no-cache",
            "Baseline": "--baseline --max-growth",
            "Output": "--out --html --markdown --json --quiet --help",
        }),
        ("report", {"Options": "--json --html --quiet --help"}),
    ],
)  # fmt: skip
def test_help_has_each_option_once_in_its_group(
    command: str, groups: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, command, "--help")
    assert code == 0
    found: dict[str, list[str]] = {}
    for line in out.splitlines():
        if line.endswith(":") and line[0] != " ":
            title = line.removesuffix(":")
        elif line.startswith("  -"):
            names = line.strip().partition("  ")[0].split(",")
            found.setdefault(title, []).append(
                next(word for word in " ".join(names).split() if word[:2] == "--")
            )
    assert {title: " ".join(names) for title, names in found.items()} == groups
