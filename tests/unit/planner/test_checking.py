"""Whether a DeepSpeed file or an accelerate YAML fits: as ``zerokit estimate`` says of the same strategy."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import zerokit
from tests.support.command import as_json, call
from zerokit.cli import run
from zerokit.units import GIB

ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
deepspeed_config:
  zero_stage: {stage}
  gradient_accumulation_steps: 4
  offload_optimizer_device: {offload}
  offload_param_device: none
  zero3_init_flag: false
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
JOB = ["--model", "llama-3.1-8b", "--gpu", "a100-40gb"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.mark.parametrize(
    ("stage", "offload", "fits"), [(2, "none", False), (2, "cpu", True), (3, "none", True)]
)
def test_an_accelerate_config_fits_as_its_strategy_does(
    stage: int, offload: str, fits: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("config.yaml").write_text(ACCELERATE.format(kind="DEEPSPEED", stage=stage, offload=offload))
    strategy = ["--zero", str(stage), "--offload-optimizer", offload, "--gradient-accumulation", "4",
                "--checkpointing", "none"]  # fmt: skip
    assert run(["estimate", *JOB, "--gpus", "8", *strategy, "--json"]) == (0 if fits else 3)
    required = json.loads(capsys.readouterr().out)["min_vram_bytes"]
    assert run(["check", "config.yaml", *JOB, "--checkpointing", "none"]) == (0 if fits else 2)
    said = capsys.readouterr()
    figure = f"{required / 2**30:.2f} GiB"
    if fits:
        assert f"fits: {figure} required of 40.00 GiB per GPU" in said.err
        assert "batch size per GPU 1" in said.err and "no problems" in said.out
    else:
        assert (
            f"does not fit: {figure} required on the worst GPU" in said.out and "[does-not-fit]" in said.out
        )


def test_a_deepspeed_file_that_fits_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ds.json").write_text(json.dumps(
        {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    ))  # fmt: skip
    job = ["--model", "llama-3.1-8b", "--gpu", "a100-80gb", "--gpus", "8"]
    assert run(["check", "ds.json", *job]) == 0
    said = capsys.readouterr().err
    assert (
        "ds.json: fits: " in said and "batch size per GPU 2, 2,048 tokens each: --seq-len not given)" in said
    )
    assert run(["check", "ds.json", *job, "--seq-len", "1024"]) == 0
    assert "1,024 tokens each)" in capsys.readouterr().err
    assert run(["check", "ds.json", *job, "--seq-len", "131072"]) == 2
    assert "131,072 tokens each)" in capsys.readouterr().out
    assert run(["check", "ds.json", *job, "--json"]) == 0
    body, said = capsys.readouterr()
    fit = json.loads(body)["files"][0]["fit"]
    assert fit["fits"] is True and f"ds.json: {fit['message']}" in said
    assert run(["check", "ds.json", "--model", "llama-3.1-8b", "--gpus", "1", "--gpu", "a10", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["files"][0]["fit"]["fits"] is False
    assert run(["check", "ds.json", "--json"]) == 0
    assert "fit" not in json.loads(capsys.readouterr().out)["files"][0]
    assert run(["check", "ds.json", "--model", "llama-3.1-8b", "--gpus", "8"]) == 0
    assert "--gpu or --vram tells whether it fits" in capsys.readouterr().err
    assert run(["check", "ds.json", *job, "-q"]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize("style", ["text", "json", "github", "sarif", "junit"])
def test_what_does_not_fit_names_options_on_the_command_line_and_arguments_in_python(
    style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("config.yaml").write_text(ACCELERATE.format(kind="DEEPSPEED", stage=2, offload="none"))
    code, out, _ = call(capsys, "check", "config.yaml", *JOB, "--format", style)
    assert code == 0 and "tokens each: --seq-len not given" in out and "--checkpointing full" in out
    result = zerokit.check("config.yaml", model="llama-3.1-8b", gpu="a100-40gb")
    (finding,) = (finding for finding in result.findings if finding.rule == "does-not-fit")
    (fit,) = result.fits.values()
    assert "tokens each: seq_len not given" in finding.message and fit.message == finding.message
    assert finding.fix.endswith("with checkpointing full")


def test_the_estimate_that_takes_other_values_is_of_the_same_job(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my ds.json").write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    code, _, err = call(capsys, "check", "my ds.json", *JOB, "--world-size", "8", "--lora-rank", "8",
                        "--method", "lora")  # fmt: skip
    said = re.search(r"left to the script, .* \(`zerokit (estimate .*)` takes other values\)", err)
    assert code == 0 and said is not None
    required = as_json(capsys, *shlex.split(said[1]))["min_vram_bytes"]
    assert f"fits: {required / GIB:.2f} GiB required" in err


def test_a_batch_that_the_file_leaves_open_is_taken_from_the_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("config.yaml").write_text(ACCELERATE.format(kind="DEEPSPEED", stage=3, offload="none"))
    open_file = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    Path("open.json").write_text(json.dumps(open_file))
    Path("auto.json").write_text(json.dumps(open_file | {"train_micro_batch_size_per_gpu": "auto"}))
    Path("fixed.json").write_text(json.dumps(open_file | {"train_micro_batch_size_per_gpu": 2}))
    job = (*JOB, "--gpus", "8", "--checkpointing", "full")
    _, _, assumed = call(capsys, "check", "config.yaml", *job)
    assert "tokens each: --seq-len not given); left to the script" in assumed and "micro-batch 1 (" in assumed
    for name in ("config.yaml", "open.json", "auto.json"):
        code, _, err = call(capsys, "check", name, *job, "--micro-batch", "2")
        assert code == 0 and "batch size per GPU 2, 2,048 tokens each: --seq-len not given)" in err, err
        assert "micro-batch" not in err.partition("left to the script")[2].partition("`")[0]
    zero_3 = ("--zero", "3", "--gradient-accumulation", "4", "--micro-batch", "2")
    required = as_json(capsys, "estimate", *job, *zero_3)["min_vram_bytes"]
    fit = zerokit.check("config.yaml", model="llama-3.1-8b", gpu="a100-40gb", checkpointing="full",
                        micro_batch=2).fits["config.yaml"]  # fmt: skip
    assert f"fits: {required / GIB:.2f} GiB required" in fit.message
    code, _, err = call(capsys, "check", "fixed.json", *job, "--micro-batch", "4")
    assert (
        code == 2
        and "--micro-batch: fixed.json decides it: set train_micro_batch_size_per_gpu (2 now)" in err
    )
    code, _, err = call(capsys, "check", "fixed.json", "--micro-batch", "4")
    assert code == 2 and "--micro-batch: needed only to tell whether it fits" in err


def test_what_is_not_told_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n"
                                   "num_machines: 1\nnum_processes: 8\n")  # fmt: skip
    assert run(["check", "config.yaml", *JOB]) == 0
    said = capsys.readouterr().err
    assert (
        "it does not use DeepSpeed: `zerokit rehearse --launcher accelerate --gpus 8 --gpu GPU SCRIPT`"
        in said
    )


def test_a_file_with_errors_says_that_its_fit_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    config = ACCELERATE.format(kind="DEEPSPEED", stage=3, offload="nvme")
    Path("one.yaml").write_text(config)
    Path("two.yaml").write_text(config.replace("param_device: none", "param_device: nvme"))
    Path("broken.json").write_text('{"zero_optimization": {"stage": 3},')
    for name, why in (
        ("one.yaml", "1 error; fix it first"),
        ("two.yaml", "2 errors; fix them first"),
        ("broken.json", "1 error; fix it first"),
    ):
        assert run(["check", name, *JOB, "--kind", "accelerate" if "yaml" in name else "deepspeed"]) == 2
        assert f"{name}: fit not judged: {why}\n" in capsys.readouterr().err
        assert run(["check", name]) == 2
        assert "fit" not in capsys.readouterr().err  # nobody asked
    assert run(["check", "two.yaml", *JOB, "--json"]) == 2
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["fit"] == {"fits": None, "message": "fit not judged: 2 errors; fix them first"}


def test_a_yaml_with_an_error_is_judged_by_the_json_that_it_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("config.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\n"
        "deepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 3}\n"
    )
    assert run(["check", "config.yaml", *JOB]) == 2
    not_here = "config.yaml: fit not judged: the DeepSpeed JSON that it names is not here\n"
    assert not_here in capsys.readouterr().err
    Path("ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}'
    )
    assert run(["check", "config.yaml", *JOB, "--gpus", "8", "--checkpointing", "full"]) == 2
    said = capsys.readouterr().err
    assert "ds.json: fits: " in said and "not judged" not in said


def test_a_closed_form_that_may_be_off_by_more_than_is_left_may_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 0}}'
    )
    job = ("--params", "14b", "--method", "lora", "--lora-dropout", "0", "--gpus", "1", "--vram")
    estimated = call(capsys, "estimate", "--deepspeed", "ds.json", *job, "49GiB")[1]
    headroom = re.search(r"[\d.]+ ± [\d.]+ GiB headroom", estimated)
    assert headroom is not None
    said = call(capsys, "check", "ds.json", *job, "49GiB")[2]
    assert "may fit: " in said and f"49.00 GiB per GPU ({headroom[0]}; " in said
    said = call(capsys, "check", "ds.json", *job, "80GiB")[2]
    assert "may fit" not in said and "fits: " in said and "±" not in said
