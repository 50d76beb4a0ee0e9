"""A rehearsal on a terminal of 80 columns: nothing wider, nothing lost; in a pipe a row is a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from zerokit.cli import run
from zerokit.rehearsal.result import Change, GuessedValue, HeldAtPeak, RankMemory, Rehearsal, Stop
from zerokit.timing.recorded_step import PlayedRank, StepTime

GIB = 1 << 30
MODULE = "base_model.model.model.layers.31.self_attn.q_proj.lora_A.default"
FILE = "site-packages/transformers/models/llama/modeling_llama.py:1234"
RANK = RankMemory(
    rank=0, peak_allocated_bytes=123 * GIB, peak_phase="backward", peak_reserved_bytes=130 * GIB,
    smallest_reserved_bytes=125 * GIB, host_bytes=1234 * GIB, written_bytes=3 << 20,
    phases={"load": GIB, "init": 2 * GIB, "forward": 100 * GIB, "backward": 123 * GIB, "step": 90 * GIB},
    at_peak=(
        HeldAtPeak(what="saved for backward", module=MODULE, location=FILE, bytes=50 * GIB),
        HeldAtPeak(what="weights", module="", location="", bytes=300),
    ),
    lower_bounds={"forward": ("convolution_backward of one-dimensional inputs", "batch_norm run by cuDNN")},
)  # fmt: skip
DONE = Rehearsal(
    complete=True, fits=False, min_vram_bytes=140 * GIB, gpu="h100-sxm-80gb", vram_bytes=80 * GIB, gpus=8,
    steps=5, repeats=False, ranks=(RANK,),
    guesses=(GuessedValue(location=FILE, what="item of bool", value=False, times=2, decides_sizes=True),),
    stubbed=("kernels of Triton that a package compiled for another architecture than the one named here",),
    warnings=("the script reads the free memory of the device, which is what the card has without others",),
    notes=("train.py is taken as a Hugging Face Trainer script: it uses a Hugging Face Trainer, and parses",),
    versions={"torch": "2.13.0", "transformers": "5.23.0", "deepspeed": "0.19.8", "trl": "1.16.0"},
    step=StepTime(
        seconds=1.2, low=1.0, high=2.5, paced_by="host", parts={"host": 1.2, "matrix products": 0.4},
        host_factor=None,
        note="of a step in its steady state, on the usual host: `zerokit doctor --measure` measures this one",
        together=(
            PlayedRank(rank=0, waiting_seconds=0.3, paced_by="host", parts={"host": 0.9}),
            PlayedRank(rank=4, waiting_seconds=0.06, paced_by="host", parts={"host": 1.2}),
        ),
    ),
    changes=(Change(what="activation checkpointing of every layer: model.gradient_checkpointing_enable(), "
                         "or --checkpointing full", saves_bytes=40 * GIB),),
)  # fmt: skip
STOPPED = Rehearsal(
    complete=False, fits=None, min_vram_bytes=None, gpu="h200", gpus=1, steps=0, repeats=True, ranks=(),
    stopped=Stop(location=FILE, operator="aten::_local_scalar_dense", reason="a value decides a size " * 4),
)  # fmt: skip


def _shown(done: Rehearsal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr("zerokit.rehearsal.request.rehearse", lambda *_, **__: done)
    assert run(["rehearse", "train.py"]) == done.exit_code
    return capsys.readouterr().out


def test_where_no_card_was_named_those_that_hold_it_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unnamed = replace(DONE, fits=None, vram_bytes=None, min_vram_bytes=100 * GIB)
    said = " ".join(_shown(unnamed, monkeypatch, capsys).split())
    holding = said.partition("the smallest that hold this: ")[2]
    assert "add --gpu NAME or --vram SIZE" in said and "h200 (140.4 GiB)" in holding and "80gb" not in holding
    assert "no card of `zerokit gpus`" in " ".join(
        _shown(replace(unnamed, min_vram_bytes=9000 * GIB), monkeypatch, capsys).split()
    )
    assert "add --gpu" not in _shown(replace(DONE, fits=True), monkeypatch, capsys)


def test_a_script_in_bf16_is_offered_cards_that_have_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unnamed = replace(DONE, fits=None, vram_bytes=None, min_vram_bytes=9 * GIB)
    said = " ".join(_shown(unnamed, monkeypatch, capsys).split())
    assert "the smallest that hold this: t4 (15.0 GiB), v100-16gb" in said
    said = " ".join(_shown(replace(unnamed, bf16=True), monkeypatch, capsys).split())
    assert "the smallest with bf16 that hold this: a10" in said and "t4" not in said and "v100" not in said


@pytest.mark.parametrize("done", [DONE, STOPPED], ids=["whole", "stopped"])
def test_a_terminal_and_a_pipe_get_the_same_words(
    done: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = (
        "from transformers import Trainer, TrainingArguments\nTrainer(args=TrainingArguments('out')).train()"
    )
    (tmp_path / "train.py").write_text(trainer)
    monkeypatch.chdir(tmp_path)
    command = ["rehearse", "train.py"]
    monkeypatch.setattr("zerokit.rehearsal.request.rehearse", lambda *_, **__: done)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(command) == done.exit_code
    whole = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    assert run(command) == done.exit_code
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 80
    joined = "\\\n"  # a command goes on in the next line
    assert narrow.replace(joined, "").split() == whole.replace(joined, "").split()
    lines = whole.splitlines()
    if done is DONE:
        assert "\nNext" not in _shown(replace(DONE, fully_sharded=True), monkeypatch, capsys)
        (tmp_path / "train.py").write_text("import torch\ntorch.nn.Linear(2, 2)")  # no plan reaches it
        assert "\nNext" not in _shown(DONE, monkeypatch, capsys)
        assert any(MODULE in line and FILE in line and "50.00 GiB" in line for line in lines)
        required = "does not fit: at least 140.00 GiB required of the 80.00 GiB of h100-sxm-80gb"
        assert f"{required}, 60.00 GiB too much" in lines
        command = " ".join(whole.replace(joined, "").partition("\nNext\n")[2].split()[-6:])
        assert command == "zerokit plan --gpus 1 -- train.py"
        assert (
            "    waiting for other ranks: rank 0 300 ms (25%), rank 4 60 ms (5%); rank 4, which waits least:"
            in lines
        )
        assert "  reserved      130.00 GiB  on a card with memory enough, where caches stay" in lines
        assert any(
            line.startswith("  smallest      125.00 GiB  reserved on the smallest card") for line in lines
        )
        assert "  fragmented      2.00 GiB  of that, reserved and not allocated at the peak" in lines
        assert "  backward      123.00 GiB  ← peak" in lines and "  step           90.00 GiB" in lines
    else:
        assert lines[-1].startswith(f"incomplete: stopped at {FILE} (aten::_local_scalar_dense): ")


def test_a_range_that_prints_as_one_time_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    assert DONE.step is not None
    for high, said in ((1.54, "a step takes 1.2 s, paced"), (1.7, "a step takes 1.2 s, 1.5 s to 1.7 s on")):
        done = replace(DONE, step=replace(DONE.step, low=1.51, high=high))
        monkeypatch.setattr("zerokit.rehearsal.request.rehearse", lambda *_, done=done, **__: done)
        run(["rehearse", str(tmp_path / "train.py")])
        assert said in capsys.readouterr().out
