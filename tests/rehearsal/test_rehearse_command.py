"""``zerokit rehearse`` on small scripts: what it says, its exit codes, and that it leaves no trace."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

import zerokit
from tests.support.rehearsals import SCRIPTS, rehearse, without_namespaces
from zerokit.cli import run
from zerokit.domain.phases import PHASES

WORKSPACES = 2 * (32 << 20) + (1 << 20)
"""cuBLAS's in the main and in autograd's thread, cublasLt's for the products with a bias. Bytes."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_plain_loop_is_rehearsed_and_leaves_no_trace(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home, work):
        folder.mkdir()
        (folder / "before.txt").write_text("here before")
    before = contents(tmp_path)
    code, said, _ = rehearse(work, "--gpu", "h200", str(SCRIPTS / "plain_loop.py"), "2", home=home)
    assert contents(tmp_path) == before
    assert (code, said["complete"], said["fits"], said["stopped"]) == (0, True, True, None)
    (rank,) = said["ranks"]
    # 8,393,728 weights in fp32, their gradients, Adam's two moments and a temporary of its foreach kernels
    weights = 4 * (1024 * 4096 + 4096 + 4096 * 1024 + 1024)
    assert rank["peak_phase"] == "step"
    assert 5 * weights <= rank["phases"]["step"] - WORKSPACES <= 5 * weights + 1024
    assert rank["peak_allocated_bytes"] == max(rank["phases"].values())
    assert set(rank["phases"]) <= set(PHASES) and said["bf16"] is False
    assert "save" in rank["phases"]
    assert rank["written_bytes"] == weights
    assert "offload_optimizer" in said["changes"][0]["what"]  # two moments and the temporary of their step
    assert 0 <= said["changes"][0]["saves_bytes"] - 3 * weights <= 1 << 20
    assert sum(part["bytes"] for part in rank["at_peak"]) == rank["peak_allocated_bytes"]
    assert any(part["location"].endswith("plain_loop.py:9") for part in rank["at_peak"])
    assert [guess["location"].endswith("plain_loop.py:18") for guess in said["guesses"]] == [True]
    assert said["guesses"][0]["what"] == "item of float32"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["nope.py"], "script nope.py: there is no such file"),
        (["-m", "no.such"], "-m no.such: no such module "),
    ],
)
def test_no_rehearsal_is_announced_of_a_script_that_is_not_there(
    typed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rehearse", *typed]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith(f"zerokit: {said}") and len(err.splitlines()) == 1


def test_without_namespaces_it_is_said_before(tmp_path: Path) -> None:
    words = ("--gpu", "h200", str(SCRIPTS / "writes_everywhere.py"))
    code, said, err = rehearse(tmp_path, *words, before=without_namespaces)
    assert (code, said) == (2, {})
    assert "no namespaces can be made here (unshare: Operation not permitted)" in err
    assert err.strip().endswith("or accept that with --unconfined")


@pytest.mark.slow
def test_an_unconfined_rehearsal_says_so_and_python_writes_nothing(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home, work):
        folder.mkdir()
    (work / "model.safetensors").write_bytes(b"weights of yesterday")
    before = contents(tmp_path)
    words = ("--unconfined", "--gpu", "h200", str(SCRIPTS / "writes_everywhere.py"))
    code, said, err = rehearse(work, *words, home=home, before=without_namespaces)
    assert contents(tmp_path) == before
    assert (code, said["complete"], said["stopped"]) == (0, True, None)
    assert said["sandboxed"] is False
    assert "no namespaces here" in " ".join(said["notes"])
    assert err.index("what native code writes remains") < err.index("optimizer step 1")


def test_what_stands_behind_long_loops_is_reached(tmp_path: Path) -> None:
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "long_loop.py"))
    assert (code, said["complete"], said["stubbed"]) == (
        0, True,
        ["rounds of training loops after those that were rehearsed", "writing of weights and checkpoints"],
    )  # fmt: skip
    assert said["steps"] < 8
    (rank,) = said["ranks"]
    kept = (part["bytes"] for part in rank["at_peak"] if part["what"] == "cuBLAS workspace")
    assert sum(kept) == WORKSPACES
    weights = 8 * 4 * (1024 * 1024 + 1024)
    # AdamW's foreach kernels: weights, gradients, two moments and one temporary of all weights at once
    assert 5 * weights <= rank["phases"]["step"] - WORKSPACES < 5 * weights + (1 << 20)
    assert rank["written_bytes"] == 2 * weights  # the first loop saves after two thousand rounds
    assert rank["peak_phase"] == "other"  # eight blocks of 64 MiB behind the last loop
    assert rank["phases"]["other"] > 3 * weights + 8 * (64 << 20)


def test_gradients_of_activations_are_not_what_zero_divides(tmp_path: Path) -> None:
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", "--gpus", "2", str(SCRIPTS / "wide_batch.py"))
    (rank,) = said["ranks"]
    assert (code, rank["peak_phase"]) == (0, "backward")
    held: Counter[str] = Counter()
    for row in rank["at_peak"]:
        held[row["what"]] += row["bytes"]
    weights, batch = 4 * 4 * 512 * 512, 4 * 65536 * 512
    assert held["gradients"] <= weights and held["backward temporaries"] >= batch
    saved = {change["what"]: change["saves_bytes"] for change in said["changes"]}
    assert not any(what.startswith("ZeRO-2") for what in saved)  # a share of the peak too small to name
    (checkpointing,) = (size for what, size in saved.items() if what.startswith("activation checkpointing"))
    assert checkpointing >= 4 * batch


def test_rounds_with_another_optimizer_are_seen_and_means_after_a_warm_up_work(
    tmp_path: Path,
) -> None:
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "by_layer.py"))
    assert (code, said["complete"], said["stopped"]) == (0, True, None)
    (rank,) = said["ranks"]
    small, middle, large = (4 * size**2 for size in (512, 1024, 2048))
    weights = small + middle + large
    before = 3 * small + 3 * middle  # gradients and moments of the layers before stay
    workspaces = 2 * (32 << 20)
    # of the last layer: moments and, until they are set to none, gradients are beside its second forward
    forward = weights + before + 3 * large + workspaces
    assert 0 <= rank["phases"]["forward"] - forward < 1 << 20
    step = weights + before + 4 * large + workspaces  # a temporary of the foreach kernels
    assert 0 <= rank["phases"]["step"] - step < 1 << 20
    assert rank["written_bytes"] == weights
    # weights, gradients and two moments of all layers, and the weights that were read
    assert 0 <= rank["phases"]["other"] - (5 * weights + workspaces) < 1 << 20


def test_values_that_come_from_data_are_known(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.4.0\n")
    page = tmp_path / "page.html"
    code, said, _ = rehearse(
        tmp_path, "--gpu", "h200", "--versions", "requirements.txt", "--html", str(page),
        str(SCRIPTS / "known_values.py"),
    )  # fmt: skip
    assert said["stopped"] is None
    assert code == 0
    assert "2.4.0 in requirements.txt" in said["warnings"][0]
    shown = page.read_text()
    assert "<title>known_values.py on 1 × " in shown
    assert f"zerokit rehearse --json --gpu h200 --versions requirements.txt --html {page}" in shown
    assert "Fits: " in shown
    assert "of that, reserved and not allocated at the peak" in shown
    assert said["warnings"][0] in shown


def test_a_sparse_tensor_takes_what_its_coordinates_and_values_take(tmp_path: Path) -> None:
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "sparse.py"))
    assert (code, said["stopped"]) == (0, None)
    assert [guess["what"] for guess in said["guesses"] if guess.get("decides_sizes")] == ["size of nonzero"]


def test_a_product_that_cusparse_makes_is_at_least_what_is_counted(tmp_path: Path) -> None:
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "sparse.py"), "product")
    assert (code, said["stopped"], said["fits"]) == (0, None, None)
    assert said["ranks"][0]["lower_bounds"] == {"load": ["workspaces of cuSPARSE"]}


def test_a_card_that_is_too_small_ends_with_3_and_the_library_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", os.environ["XDG_CACHE_HOME"])  # as the command's: they share their imports
    done = zerokit.rehearse(SCRIPTS / "plain_loop.py", ["1"], vram="1GiB")
    code, said, _ = rehearse(tmp_path, "--vram", "1GiB", str(SCRIPTS / "plain_loop.py"), "1")
    assert (done.exit_code, done.to_dict()["schema"]) == (code, said["schema"]) == (3, "zerokit.rehearsal/1")
    assert done.ranks[0].phases == said["ranks"][0]["phases"]
    assert said["fits"] is False
    assert said["min_vram_bytes"] > 1 << 30


def test_an_operator_without_a_stand_in_ends_with_14_and_its_line(tmp_path: Path) -> None:
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "unknown_operator.py"))
    assert (code, said["complete"]) == (14, False)
    assert said["stopped"]["location"].endswith("unknown_operator.py:8")
    assert said["stopped"]["operator"] == "mylib::mystery"
    assert said["stopped"]["cause"] == "rehearsal"


def test_barriers_keep_a_block_and_bf16_gradients_have_no_scaler(tmp_path: Path) -> None:
    code, said, _ = rehearse(
        tmp_path, "--gpu", "h200", "--gpus", "2", "--launcher", "torchrun", str(SCRIPTS / "bf16_scaler.py")
    )
    assert (code, said["complete"]) == (14, False)
    assert said["stopped"]["location"].endswith("bf16_scaler.py:40")
    assert "not implemented for 'BFloat16'" in said["stopped"]["reason"]
    assert "nobody waits" in " ".join(said["warnings"])  # for the hook's all-reduce
    assert said["bf16"] is True


def test_what_cudnn_chooses_is_said_not_to_be_modelled(tmp_path: Path) -> None:
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "cudnn.py"))
    assert (code, said["complete"]) == (14, False)
    assert said["stopped"]["location"].endswith("cudnn.py:9")
    assert said["stopped"]["operator"] == "torch.lstm"
    assert said["lower_bound"] is True and said["fits"] is None
    missing = said["ranks"][0]["lower_bounds"]["forward"]
    assert any("convolution" in what for what in missing)
    assert any("batch norm" in what for what in missing)
    assert "cuDNN" in " ".join(said["warnings"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--gpu", "h200", "missing.py"), "missing.py"),
        (("--gpu", "mi300x", str(SCRIPTS / "plain_loop.py")), "mi300x cannot be rehearsed"),
        (("--gpus", "2", "--rank", "2", str(SCRIPTS / "plain_loop.py")), "--rank 2"),
        ((), "name a script"),
        (("--deepspeed", "ds.json", "train.py"), "ACCELERATE_DEEPSPEED_CONFIG_FILE=FILE"),
    ],
)
def test_bad_input_ends_with_2_and_names_it(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    code, _, errors = rehearse(tmp_path, *arguments)
    assert code == 2
    assert named in errors


def test_secrets_reach_neither_the_result_nor_the_kept_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, token = "mysecretvalue99", "hf_abcdefghijklmnop1234"
    monkeypatch.setenv("HF_TOKEN", token)
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nprint('seen', sys.argv[2], os.environ['HF_TOKEN'])\n"
        "raise RuntimeError(f\"refused: {sys.argv[2]} {os.environ['HF_TOKEN']}\")\n"
    )
    options = ("--gpu", "h200", "--out", "kept", "--html", "page.html")
    code, said, error = rehearse(tmp_path, *options, str(script), "--hub_token", given)
    assert code == 14 and "refused: <redacted> <HF_TOKEN>" in said["stopped"]["reason"]
    kept = tmp_path / "kept" / "output.txt"
    assert "seen <redacted> <HF_TOKEN>" in kept.read_text() and kept.stat().st_mode & 0o777 == 0o600
    script.unlink()
    texts = [error, str(said), *(text.decode() for text in contents(tmp_path).values())]
    assert not any(secret in text for text in texts for secret in (given, token))


def test_without_triton_compiled_code_runs_uncompiled_and_that_is_said(tmp_path: Path) -> None:
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "compiled_without_triton.py"))
    assert (code, said["complete"], said["stopped"]) == (0, True, None)
    assert [text for text in said["stubbed"] if "Triton is not installed here" in text]


def test_code_that_asks_pytorch_for_triton_is_named_where_it_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text((SCRIPTS / "chooses_by_triton.py").read_text())
    losses = "def loss_of(outputs):\n    return outputs.square().mean()\n"
    asks = "from torch.utils._triton import has_triton\n"
    for text, named in ((losses, 0), (asks + losses, 1)):
        (tmp_path / "losses.py").write_text(text)
        code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(script))
        warnings = [line for line in said["warnings"] if "Triton" in line]
        assert code == 0 and len(warnings) == named
        assert all("losses may have run other code" in line for line in warnings)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("argparse.ArgumentParser().parse_args()", "error: unrecognized arguments: --modle big"),
        ("print('no data in here'); sys.exit(3)", "code 3, after printing: no data in here"),
        ("sys.exit('no data in there')", "the script ended: no data in there"),
    ],
)
def test_a_script_that_ends_itself_has_its_last_message_shown(
    tmp_path: Path, line: str, reason: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(f"import argparse, sys\nprint('begun')\n{line}\n")
    monkeypatch.chdir(tmp_path)
    assert run(["rehearse", "--gpu", "h200", "train.py", "--modle", "big"]) == 14
    shown = capfd.readouterr().out
    assert "train.py:3" in shown.splitlines()[-1] and shown.rstrip().endswith(reason)
    assert not any(word in shown for word in ("reserved", "optimizer step", "no step time"))


def test_what_is_said_of_steps_whose_peaks_differ_is_what_was_seen(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nweights = torch.zeros(1 << 20, device='cuda', requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weights])\n"
        "for step in range(100):\n"
        "    extra = torch.zeros((step % 2) << 20, device='cuda')\n"
        "    (weights * 2).sum().backward()\n    optimizer.step()\n"
        "    if step % 2 == 0: print(step)\n"
    )
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(script))
    assert (code, said["steps"], said["repeats"]) == (0, 6, False)  # five, and one for what comes every other
    assert 0.1 < said["last_steps_differ_by"] < 0.5  # 4 MiB of the 12 to 20 that a step takes


@pytest.mark.slow
def test_an_accelerate_script_is_told_whether_deepspeed_ran_and_from_which_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script, file = SCRIPTS / "accelerate_loop.py", tmp_path / "ds.json"
    file.write_text(
        '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}'
    )
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", "ds.json")
    without = zerokit.rehearse(script, gpu="h200", gpus=2)
    assert (without.stopped, without.engine, without.trained_by) == (
        None,
        None,
        "no DeepSpeed: PyTorch's DDP",
    )
    assert any("only with ACCELERATE_USE_DEEPSPEED=true" in note for note in without.notes)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with_file = zerokit.rehearse(script, gpu="h200", gpus=2)
    assert (with_file.stopped, with_file.trained_by) == (None, "DeepSpeed ZeRO-1, from ds.json")
    assert not any("ACCELERATE_" in note for note in with_file.notes)


@pytest.mark.parametrize(
    ("switches", "code", "fits"),
    [
        ([], 14, None),
        (["--do_train"], 0, True),
        pytest.param(["--do_eval"], 0, True, marks=pytest.mark.slow),
    ],
)
def test_a_script_that_was_not_asked_to_train_gets_no_verdict(
    switches: list[str], code: int, fits: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = SCRIPTS / "trains_if_asked.py"
    done = zerokit.rehearse(script, ["--output_dir", "out", "--report_to", "none", *switches], gpu="h200")
    assert (done.stopped, done.fits, done.exit_code) == (None, fits, code)
    if fits is None:
        assert done.verdict.startswith("not known whether it fits on h200: nothing was trained: ")
        assert "--do_train" in done.verdict
