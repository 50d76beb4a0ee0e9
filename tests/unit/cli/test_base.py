"""What a slip on the command line is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import call, move_elsewhere
from zerokit.cli import run


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpt2",), "a model is named with --model gpt2, a script after --"),
        (("--model", "gpt2", "--method", "lora", "--lora-targets", "c_attn,", "c_proj"),
         "without a space: --lora-targets c_attn,c_proj"),
        (("--model", "gpt2", "--gpu", "l40s", "train.py"), "zerokit plan … -- train.py ARGS"),
        (("--model", "gpt2", "--gpu", "l40s,h200"), "`zerokit size --gpu l40s,h200`"),
        (("--model", "gpt2", "--gpu", "1", "--gpus", "rtx-4090"),
         "rtx-4090 is a kind of GPU: write --gpus 1 --gpu rtx-4090"),
        (("--model", "gpt2", "--gpu", "h10"),
         "did you mean a10, h100-nvl-94gb, h100-pcie-80gb, h100-sxm-80gb or h20-96gb?"),
        (("--model", "gpt2", "--gpus", "0"), "--gpus: '0' must be at least 1"),
        (("--model", "gpt2", "--seq-len", "2000000000"), "must be at most 100,000,000"),
        (("--model", "gpt2", "--gpus", "many"), "--gpus: cannot read 'many'"),
    ],
)  # fmt: skip
def test_a_slip_in_the_words_is_answered_with_what_was_meant(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "plan", *words)
    assert code == 2 and said in err


def test_a_log_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory\n")
    code, _, err = call(capsys, "estimate", str(log))
    assert code == 2 and "a model is named with --model NAME or --model PATH (its config.json)" in err
    code, _, err = call(capsys, "report", str(log))
    words = "other logs are not read; of a run that zerokit did not launch, `zerokit rehearse SCRIPT ARGS`"
    assert code == 2 and words in err


@pytest.mark.parametrize("command", ["launch --dry-run --device cuda", "emit sbatch --out job.sh"])
def test_quiet_leaves_warnings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what will end the run: a job that is written in silence dies in its queue."""
    assert run(["plan", "--model", "gpt2", "--gpus", "1", "--gpu", "t4", "-q"]) == 0
    assert not capsys.readouterr().err
    script = str(Path(__file__).parents[3] / "examples" / "train_causal_lm.py")
    assert run([*command.split(), "-q", script, "--stps", "10"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith("zerokit: warning: ") for line in said)
    refused = "has no option --stps, and ends where it gets one: did you mean --steps?"
    assert any(line.endswith(refused) for line in said)


@pytest.mark.parametrize(
    ("command", "groups"),
    [
        ("launch", {
            "Plan": "--plan --no-plan --deepspeed --recipe --accept-mismatch",
            "Script": "--module --style --no-arguments --no-trackers",
            "Ranks": "--gpus --num-ranks --device --nodes --hostfile --master-port --launcher",
            "Failures": "--heartbeat --grace --max-restarts --resume-option --retry-smaller",
            "Prediction": "--rehearsal-seconds --unconfined --no-host-probe",
            "Output": "--run-dir --show --dry-run --quiet --help",
        }),
        ("rehearse", {
            "Hardware": "--gpus --gpu --vram --host-speed",
            "Plan": "--plan --no-arguments --accept-mismatch",
            "Rehearsal": "--module --rank --ranks --steps --launcher --versions --unconfined",
            "Output": "--out --html --json --quiet --help",
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("emit", "--plan", "x"), "it stands after a subcommand: `zerokit emit accelerate --plan …`"),
        (("recipes", "--json"), "`zerokit recipes check --json …` (check, list, show)"),
        (("--plan", "x"), "`zerokit --help` lists them"),
    ],
)
def test_an_option_of_the_subcommands_is_placed(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, *words)
    assert code == 2 and said in " ".join(err.split())
