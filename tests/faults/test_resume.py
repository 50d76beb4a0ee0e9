"""``--resume``: a run goes on with another number of ranks as if it had never been interrupted.

Real DeepSpeed and FSDP2 on CPU ranks in fp32, a Trainer with a schedule: four
ranks train to the end, and two, then four, go on from what they wrote on the way.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Run
from tests.support.checkpoints import write_run_with_checkpoint
from tests.support.command import called
from tests.support.packages import needs
from tests.support.resumed_runs import ARGUMENTS, BAR, EVERY, SCRIPTS, STEPS, Trained, close, plan
from zerokit.checkpoints import converting
from zerokit.checkpoints.files import ZeroFiles, zero_files
from zerokit.errors import InputError

needs("deepspeed")
needs("transformers")
torch = pytest.importorskip("torch")
AutoModelForCausalLM = pytest.importorskip("transformers").AutoModelForCausalLM
load_file = pytest.importorskip("safetensors.torch").load_file


def test_two_ranks_go_on_where_four_were(tmp_path: Path) -> None:
    trained = Trained(tmp_path, 3, own=True)
    whole = trained.losses("first", 4)
    assert whole[STEPS] < whole[1] - 0.1
    trained.interrupted_at(EVERY)
    (tmp_path / "out" / f"checkpoint-{EVERY}" / "rng_state_7.pth").touch()  # an earlier run's, of more ranks
    assert close(trained.losses("second", 2, "--resume", "first"), whole)
    converted = Path("out") / f"checkpoint-{EVERY}" / f"global_step{EVERY}_universal" / "zero"
    assert trained.weights(f"out/checkpoint-{EVERY}") == {
        path.parent.name: torch.load(path).flatten().tolist()
        for path in (tmp_path / converted).glob("*/fp32.pt")
    }


def test_a_converter_that_fails_leaves_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "global_step5"
    folder.mkdir()
    files = ZeroFiles(folder=folder, ranks=4, states=(1,), models=())
    with pytest.raises(InputError, match=r"to_universal failed: .*; resume it on 4, or take DeepSpeed 0"):
        converting.make_universal(files, 1)
    assert list(tmp_path.iterdir()) == [folder]


class Hostile:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_reading_a_checkpoints_facts_runs_nothing_of_it(tmp_path: Path) -> None:
    run, checkpoint, ran = tmp_path / "run", tmp_path / "checkpoint-200", tmp_path / "ran"
    write_run_with_checkpoint(run, checkpoint, ranks=2)
    (first, *_), (model,) = (sorted(checkpoint.rglob(f"*_{kind}_states.pt")) for kind in ("optim", "model"))
    for path in (first, model):
        kept = torch.load(path) | {"loss_scaler": Hostile(str(ran)), "own": Trained}
        torch.save(kept, path)
        with pytest.raises(pickle.UnpicklingError):
            torch.load(path, weights_only=True)
    files = zero_files(checkpoint)
    assert files is not None
    facts = converting.zero_facts(files)
    assert (facts["ranks"], facts["weights"], facts["is_adam"]) == (2, 64, True)
    code, out, err = called("weights", str(checkpoint), "--out", "model", "--dry-run", folder=tmp_path)
    assert code == 0, out + err
    assert not ran.exists()


class Program(torch.nn.Module):
    """What runs, compiled, as torch loads it, and writes where torch.load is called."""

    def __init__(self) -> None:
        super().__init__()
        self.held = torch.zeros(1)

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return self.held, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.training = state[1]
        self.held = torch.from_file("ran", shared=True, size=1, dtype=torch.uint8).fill_(65)


def test_a_program_in_a_checkpoints_place_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-200"
    write_run_with_checkpoint(tmp_path / "run", checkpoint, ranks=2)
    torch.jit.script(Program()).save(str(next(checkpoint.rglob("*_model_states.pt"))))
    code, _, err = called("weights", str(checkpoint), "--out", "model", "--dry-run", folder=tmp_path)
    assert code == 2 and "TorchScript" in err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["zero_pp_rank_1_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"])
def test_a_pipe_in_a_checkpoint_files_place_is_refused(tmp_path: Path, name: str) -> None:
    checkpoint = tmp_path / "checkpoint-200"
    write_run_with_checkpoint(tmp_path / "run", checkpoint, ranks=2)
    path = checkpoint / "global_step200" / name
    path.unlink()
    os.mkfifo(path)
    code, _, err = called("weights", str(checkpoint), "--out", "model", "--dry-run", folder=tmp_path)
    assert code == 2 and f"{name}: is not a regular file" in err


@pytest.mark.parametrize("shape", [torch.Size((-8, 8)), (1.5, 8)])
def test_a_weight_of_no_size_is_refused(tmp_path: Path, shape: tuple[float, ...]) -> None:
    checkpoint = tmp_path / "checkpoint-200"
    write_run_with_checkpoint(tmp_path / "run", checkpoint, ranks=2)
    path = checkpoint / "global_step200" / "mp_rank_00_model_states.pt"
    torch.save(torch.load(path) | {"param_shapes": [{"weight": shape}]}, path)
    code, _, err = called("weights", str(checkpoint), "--out", "model", "--dry-run", folder=tmp_path)
    assert code == 2 and "shape" in err


@pytest.mark.slow
def test_weights_that_fsdp2_sharded_are_those_that_it_saves_whole(tmp_path: Path) -> None:
    trained = Trained(tmp_path, None)
    trained.losses("whole", 4)
    saved = load_file(tmp_path / "out" / f"checkpoint-{EVERY}" / "model.safetensors")
    file = tmp_path / "plan" / "accelerate.yaml"
    file.write_text(file.read_text().replace("FULL_STATE_DICT", "SHARDED_STATE_DICT"))
    trained.losses("sharded", 4, "--accept-mismatch")
    assert trained.weights(f"out/checkpoint-{EVERY}") == {
        name: weight.flatten().tolist() for name, weight in saved.items()
    }


@pytest.mark.slow
def test_fsdp2_divides_anew_what_it_sharded(tmp_path: Path) -> None:
    """By plans whose file was edited, which are not made again: each number of ranks has its own."""
    trained = Trained(tmp_path, None)
    for ranks in (2, 4):
        plan(tmp_path, None, ranks, f"plan-{ranks}")
        file = tmp_path / f"plan-{ranks}" / "accelerate.yaml"
        file.write_text(file.read_text().replace("FULL_STATE_DICT", "SHARDED_STATE_DICT"))
    whole = trained.losses("first", 4, "--plan", "plan-4")
    assert any((tmp_path / "out" / f"checkpoint-{EVERY}").glob("pytorch_model_fsdp_0/*"))
    trained.interrupted_at(EVERY)
    assert close(trained.losses("second", 2, "--plan", "plan-2", "--resume", "first"), whole)
    trained.interrupted_at(2 * EVERY)
    assert close(trained.losses("third", 4, "--plan", "plan-4", "--resume", "second"), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "own"), [(1, False), (2, False), (3, False), (1, True), (2, True), (3, True), (None, False)]
)
def test_four_two_four(tmp_path: Path, stage: int | None, own: bool) -> None:
    trained = Trained(tmp_path, stage, own=own)
    whole = trained.losses("first", 4)
    trained.interrupted_at(EVERY)
    assert close(trained.losses("second", 2, "--resume", "first"), whole)
    trained.interrupted_at(2 * EVERY)
    assert close(trained.losses("third", 4, "--resume", "second"), whole)


@pytest.mark.slow
@pytest.mark.parametrize("config", [True, False], ids=["ZeRO", "DDP"])
def test_accelerates_own_loop_goes_on(tmp_path: Path, config: bool) -> None:
    file = {"zero_optimization": {"stage": 2}, "train_batch_size": 4, "zero_allow_untested_optimizer": True}
    (tmp_path / "ds.json").write_text(json.dumps(file))

    def launch(name: str, ranks: int, *options: str) -> tuple[int, str, str]:
        engine = ["--deepspeed", "ds.json"] if config else ["--no-plan"]
        words = ["--run-dir", name, "--num-ranks", str(ranks), *engine, *options]
        script = [str(SCRIPTS / "resumes_accelerated.py")]
        run = Run(Path(sys.executable), tmp_path, [*words, *script], {})
        try:
            return run.end(300)
        finally:
            run.clean_up()

    def losses(out: str) -> list[float]:
        line = next(line for line in out.splitlines() if line.startswith("losses "))
        return [float(word) for word in line.split()[1:]]

    code, out, err = launch("first", 2)
    assert code == 0, err
    whole = losses(out)
    for later in (4, 6):
        shutil.rmtree(tmp_path / f"state-{later}")
    code, out, err = launch("second", 1, "--resume", "first", "--resume-option=--load")
    assert code == 0, err
    assert losses(out) == pytest.approx(whole[2:], abs=BAR)
    code, _, err = launch("third", 1, "--resume", "first", "--resume-option=--other")
    assert code == 10 and "the script did not load" in " ".join(err.split()), err


@pytest.mark.slow
def test_a_script_of_its_own_goes_on(tmp_path: Path) -> None:
    (tmp_path / "died").touch()

    def launch(name: str, ranks: int, *options: str) -> tuple[int, str, str]:
        words = ["--run-dir", name, "--num-ranks", str(ranks), "--style", "none", *options]
        run = Run(Path(sys.executable), tmp_path, [*words, str(SCRIPTS / "comes_back.py")], {})
        try:
            return run.end(300)
        finally:
            run.clean_up()

    assert launch("first", 2)[0] == 0
    for later in (6, 8):
        shutil.rmtree(tmp_path / "ckpt" / f"global_step{later}")
    (tmp_path / "ckpt" / "latest").write_text("global_step4")
    code, out, err = launch("second", 1, "--resume", "first", "--resume-option=--load")
    assert code == 0 and "resumed at 4" in out, err
    shutil.rmtree(tmp_path / "ckpt" / "global_step4_universal")
    code, _, err = launch("third", 1, "--resume", "first", "--resume-option=--error")
    assert code == 10 and "the script did not load" in err, err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "more", "said"),
    [
        (
            "--no-plan",
            ("--deepspeed", "plan/ds_config.json", "--per_device_train_batch_size", "2"),
            "the global batch is 4, and the checkpoint's was 8",
        ),
        ("--plan=plan", ("--output_dir", "other"), "would train from the beginning"),
        (
            "--plan=plan",
            ("--resume_from_checkpoint", "out/checkpoint-3"),
            "would train from out/checkpoint-3",
        ),
    ],
)
def test_what_would_train_otherwise_ends(tmp_path: Path, plan: str, more: tuple[str, ...], said: str) -> None:
    trained = Trained(tmp_path, 2)
    trained.losses("first", 4)
    code, _, err = trained.launch(
        "--run-dir", "second", plan, "--resume", "first", "--num-ranks", "2", arguments=(*ARGUMENTS, *more)
    )
    assert code == 10 and said in " ".join(err.split()), err
