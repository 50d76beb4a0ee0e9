"""Every option of plan, estimate and size changes the answer, or is refused: none is swallowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import move_elsewhere
from zerokit.cli import run
from zerokit.cli.estimate import command as estimate
from zerokit.cli.plan import command as plan
from zerokit.cli.size import command as size
from zerokit.planner.options import OPTIONS

MODEL = ("--model", "llama-3.2-1b")
ONE = (*MODEL, "--gpus", "8", "--gpu", "h200", "--seq-len", "2048")
LORA = (*ONE, "--method", "lora")
SERVED = (*MODEL, "--gpu", "h200", "--seq-len", "2048", "--inference")
NODES = (*MODEL, "--gpus", "16", "--nodes", "2", "--gpu", "h200", "--seq-len", "2048")
# gradients of 30 B parameters between two nodes for 64 sequences: 8 of the GPUs are faster
LINKED = ("--model", "opt-30b", "--gpus", "16", "--gpu", "b300", "--global-batch", "64", "--network", "50GB")
# option -> what it stands beside, and its value; of each command where they differ
EFFECTS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "--params": (("--gpus", "8", "--gpu", "h200", "--params", "1b"), "8b"),
    "--model": (("--gpus", "8", "--gpu", "h200", "--model", "gpt2"), "llama-3.2-1b"),
    "--gpus": (ONE, "4"),
    "--nodes": (NODES, "4"),
    "--gpu": (ONE, "a100-80gb"),
    "--vram": (ONE, "100GiB"),
    "--host-ram": ((*ONE, "--zero", "2", "--offload-optimizer", "cpu"), "4GiB"),
    "--nvme": ((*ONE, "--zero", "3", "--offload-optimizer", "nvme"), "/nvme"),
    "--network": (NODES, "5GB"),
    "--seq-len": (ONE, "4096"),
    "--global-batch": (ONE, "16"),
    "--micro-batch": (ONE, "2"),
    "--gradient-accumulation": (ONE, "4"),
    "--eval-batch": (ONE, "64"),
    "--method": (ONE, "lora"),
    "--lora-rank": (LORA, "64"),
    "--lora-targets": (LORA, "q_proj"),
    "--lora-dropout": (LORA, "0"),
    "--trainer": (LORA, "llamafactory"),
    "--precision": (ONE, "fp32"),
    "--optimizer": ((*ONE, "--zero", "1"), "Lion"),
    "--attention": (ONE, "eager"),
    "--loss": (ONE, "chunked"),
    # refused in closed form; tests/torch/test_offloaded_activations.py has its effect
    "--offload-activations": (("--params", "1b", "--gpus", "8", "--gpu", "h200"), None),
    "--padding": (ONE, None),
    "--quant": (SERVED, "int4"),
    "--new-tokens": (SERVED, "2000"),
    # refused for a model of text; tests/torch/test_trace_images.py has their effects
    "--images": (ONE, "1"),
    "--image-size": (ONE, "640x480"),
    "--vision-tower": (ONE, "frozen"),
    "--engine": (ONE, "fsdp2"),
    "--load-dtype": ((*ONE, "--engine", "ddp"), "fp32"),
    "--zero": (ONE, "3"),
    "--offload-optimizer": ((*ONE, "--zero", "2"), "cpu"),
    "--offload-param": ((*ONE, "--zero", "3"), "cpu"),
    "--tp": (ONE, "2"),
    "--pp": (ONE, "2"),
    "--sp": (ONE, "2"),
    "--cp": ((*ONE, "--engine", "fsdp2"), "2"),
    "--checkpointing": (ONE, "full"),
    "--reentrant": ((*ONE, "--zero", "2", "--checkpointing", "full"), "on"),
    "--reduce-bucket": ((*ONE, "--zero", "2"), "30m"),
    "--prefetch-bucket": ((*ONE, "--zero", "3"), "300m"),
    "--persistence": ((*ONE, "--zero", "3"), "1000000000"),
    "--set": ((*ONE, "--zero", "2"), "grad_accum_dtype=fp32"),
    "--sub-group": ((*ONE, "--zero", "3"), "20m"),
    "--overlap-comm": ((*ONE, "--zero", "1", "--micro-batch", "4"), "off"),
    "--inference": (ONE, None),
    "--no-calibration": (ONE, None),
    "--all-gpus": (LINKED, None),
    "--margin": (ONE, "60%"),
    "--pipeline-module": ((*ONE, "--pp", "2"), None),
    "--device": ((*MODEL, "--gpus", "2", "--host-ram", "512GiB"), "cpu"),
}
# with their effect in tests/torch/test_plan_traced.py
TRACED = {("estimate", "--lora-targets")}
WITHOUT_MEASUREMENTS = {"--no-calibration"}  # nothing was measured on the machine that runs the tests
ON_MANY = ("--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--method", "full", "--seq-len", "2048")
ON_A100 = ("--model", "llama-3.1-8b", "--gpu", "a100-80gb", "--method", "full", "--seq-len", "2048")
# of one command, where the same would show nothing: size tells how many GPUs and how long
SPECIAL: dict[tuple[str, str], tuple[tuple[str, ...], str | None]] = {
    ("estimate", "--overlap-comm"): ((*ONE, "--zero", "1"), "on"),
    # in closed form: what is not in the catalogue's profiles is traced for seconds
    ("estimate", "--all-gpus"): (("--params", "30b", "--gpus", "16", "--gpu", "b300"), None),
    ("estimate", "--attention"): (("--params", "1b", "--gpus", "8", "--gpu", "h200"), "eager"),
    ("size", "--gpus"): (ON_MANY, "2"),
    ("size", "--network"): (("--params", "70b", "--gpu", "a100-40gb", "--method", "full"), "1GB"),
    ("size", "--persistence"): ((*ON_MANY, "--zero", "3"), "1000000000"),
    ("size", "--prefetch-bucket"): ((*ON_MANY, "--zero", "3"), "3000000000"),
    ("size", "--reduce-bucket"): ((*ON_A100, "--zero", "2"), "9000000000"),
    ("size", "--overlap-comm"): ((*ON_A100, "--zero", "2", "--micro-batch", "1"), "off"),
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


_OF_COMMANDS = {
    "--json", "--recipe", "--against", "--from", "--out", "--top", "--price", "--explain", "--quiet",
    "--tokens", "--cheapest", "--html", "--rehearsal-seconds", "--unconfined", "--no-cache", "--dry-run",
}  # fmt: skip


def answer(capsys: pytest.CaptureFixture[str], command: str, *arguments: str) -> tuple[int, Any, str]:
    """The exit code, what the answer says of strategy, memory and time, and the error."""
    code = run([command, *arguments, "--json"])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    body = json.loads(out) if out else {}
    for name in ("request", "search", "files"):
        body.pop(name, None)
    return code, body, err


_BEFORE: dict[tuple[str, ...], tuple[int, Any, str]] = {}


def answer_before(capsys: pytest.CaptureFixture[str], command: str, *beside: str) -> tuple[int, Any, str]:
    """What is answered without the option; many options stand beside the same."""
    if (command, *beside) not in _BEFORE:
        _BEFORE[(command, *beside)] = answer(capsys, command, *beside)
    return _BEFORE[(command, *beside)]


def test_every_option_is_here() -> None:
    of_all = {f"--{name.replace('_', '-')}" for name in (p.name or "" for p in estimate.params)}
    assert (
        of_all - {"--deepspeed", "--accelerate", "--file", "--kind", "--as-json", "--explain", "--quiet"}
        == EFFECTS.keys()
    )
    shared = {option.option for option in OPTIONS}
    for command in (plan, size):
        names = {opt for p in command.params for opt in p.opts if opt.startswith("--")}
        assert names - shared - {"--device"} <= _OF_COMMANDS


@pytest.mark.parametrize(
    ("command", "option"),
    [
        pytest.param(
            command, option, marks=pytest.mark.slow if command == "size" and option != "--gpu" else ()
        )
        for command in ("plan", "estimate", "size")
        for option in sorted(EFFECTS.keys() - WITHOUT_MEASUREMENTS)
        if (command, option) not in TRACED
    ],
)
def test_an_option_changes_the_answer_or_is_refused(
    capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    beside, value = SPECIAL.get((command, option)) or EFFECTS[option]
    if command == "size":  # it counts GPUs, and finds the nodes
        pairs = [beside[at : at + 2] for at in range(0, len(beside), 2)]
        beside = tuple(word for pair in pairs if pair[0] not in ("--gpus", "--nodes") for word in pair)
        if not {"--inference", "--method"} & {*beside, option}:
            beside = (*beside, "--method", "full")
    before = answer_before(capsys, command, *beside)
    after = answer(capsys, command, *beside, option, *(() if value is None else (value,)))
    if after[0] == 2:
        assert option in after[2], f"refused, but {option} is not named: {after[2]}"
    else:
        assert after != before, f"{command} {option} {value} changes nothing"


def test_a_size_means_the_same_as_an_option_and_in_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sizes = {
        "reduce_bucket_size": 20_000_000, "stage3_prefetch_bucket_size": 7_000_000,
        "sub_group_size": 90_000_000, "stage3_param_persistence_threshold": 1_000_000_000,
        "allgather_bucket_size": 20_000_000,
        "overlap_comm": False, "offload_param": {"device": "none"},
    }  # fmt: skip
    config = {
        "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, **sizes}, "optimizer": {"type": "AdamW"},
    }  # fmt: skip
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    _, by_file, _ = answer(capsys, "estimate", *ONE, "--deepspeed", str(path))
    _, by_option, _ = answer(
        capsys, "estimate", *ONE, "--zero", "3", "--reduce-bucket", "20m", "--prefetch-bucket", "7m",
        "--persistence", "1e9", "--sub-group", "90m", "--overlap-comm", "off",
    )  # fmt: skip
    assert by_option["per_rank"] == by_file["per_rank"]
    assert by_option["peak_allocated_bytes"] == by_file["peak_allocated_bytes"]


def test_the_closed_form_keeps_what_is_within_the_threshold(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--params", "3b", "--gpus", "4", "--gpu", "h200", "--zero", "3", "--seq-len", "512")
    _, plain, _ = answer(capsys, "estimate", *asked)
    _, kept, _ = answer(capsys, "estimate", *asked, "--persistence", "1e9")
    assert plain["basis"] == kept["basis"] == "analytic"
    assert kept["per_rank"][0]["phases"]["forward"] > plain["per_rank"][0]["phases"]["forward"]
    gathered = kept["per_rank"][0]["components"]["gathered_parameters"]
    assert gathered == pytest.approx(2 * 3e9, rel=0.01)  # every weight, in 16 bits


def test_the_closed_form_knows_how_many_tokens_are_generated(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--params", "1b", "--gpus", "4", "--gpu", "h200", "--inference", "--seq-len", "512")
    _, prompt, _ = answer(capsys, "estimate", *asked)
    _, most, _ = answer(capsys, "estimate", *asked, "--new-tokens", "500")
    assert most["peak_allocated_bytes"] < prompt["peak_allocated_bytes"]


def test_a_network_that_one_node_does_not_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Not refused: a recipe for several nodes is asked for fewer GPUs."""
    _, body, _ = answer(capsys, "estimate", *ONE, "--network", "5GB")
    assert "--network 5GB: not used, one node sends nothing over it" in body["assumptions"]
