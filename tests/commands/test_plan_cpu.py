"""Planning for CPU ranks: the precision that this machine's CPUs are fit for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from zerokit.cli import run
from zerokit.machine.host import bf16_in_hardware


@pytest.mark.parametrize(
    ("cpuinfo", "has"),
    [
        ("processor\t: 0\nflags\t\t: fpu sse2 avx2 f16c\n", False),
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16\n", True),
        ("processor\t: 0\nflags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 sve\n", True),
        ("processor\t: 0\nmodel name\t: bf16\n", False),
        (None, False),
    ],
)
def test_bf16_is_read_from_the_cpus_flags(tmp_path: Path, cpuinfo: str | None, has: bool) -> None:
    (tmp_path / "proc").mkdir()
    if cpuinfo is not None:
        (tmp_path / "proc" / "cpuinfo").write_text(cpuinfo)
    assert bf16_in_hardware(tmp_path) == has


def test_a_laptop_is_told_to_name_the_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["plan", "--model", "meta-llama/Llama-3.1-8B", "--device", "cpu", "--host-ram", "16GiB"])
    assert code == 3 and "--gpus N --gpu NAME" in capsys.readouterr().err
    code = run(["plan", "--model", "llama-3.1-70b"])
    assert code == 3 and "name yours, --gpus N --gpu NAME" in capsys.readouterr().err


@pytest.mark.parametrize("gpus", [(), ("--gpus", "8")])
def test_without_a_gpu_the_same_one_is_assumed_whatever_their_number(
    capsys: pytest.CaptureFixture[str], gpus: tuple[str, ...]
) -> None:
    asked = ("--model", "meta-llama/Llama-3.1-8B", *gpus, "--json")
    assert run(["plan", *asked]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["chosen"]["estimate"]["fits"] is True
    notes = [note for note in plan["assumptions"] if "assumed NVIDIA H100 SXM 80 GB" in note]
    assert len(notes) == 1 and "name yours: --gpus N --gpu NAME" in notes[0] and "--device cpu" in notes[0]
    assert run(["estimate", *asked]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is None


def test_host_memory_is_what_nodes_with_such_gpus_have(capsys: pytest.CaptureFixture[str]) -> None:
    """AWS p5.48xlarge: 2,048 GiB for 8 H100 (aws.amazon.com/ec2/instance-types/p5)."""
    asked = ("plan", "--model", "llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--json")
    assert run([*asked, "--gpus", "8"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["chosen"]["offload_optimizer"] == "cpu"
    assert 1 << 40 < plan["chosen"]["estimate"]["host_bytes_per_node"] < 2048 << 30
    assert any("2,048 GiB per node" in note and "p5.48xlarge" in note for note in plan["assumptions"])
    assert run([*asked, "--gpus", "2"]) == 3
    said = capsys.readouterr().err
    assert "where 512.0 GiB are assumed" in said and "p5.48xlarge" in said
    enough = re.search(r"--host-ram (\d+GiB)", said)
    assert enough, said
    assert run([*asked, "--gpus", "2", "--host-ram", enough[1]]) == 0
    assert "p5.48xlarge" not in capsys.readouterr().out


def test_an_estimate_warns_of_more_host_memory_than_nodes_have(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("estimate", "--model", "llama-3.1-8b", "--gpus", "1", "--gpu", "rtx-4090", "--zero", "3",
             "--offload-optimizer", "cpu", "--offload-param", "cpu", "--checkpointing", "full")  # fmt: skip
    assert run([*asked, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["fits"] is True and any("48 GiB per node" in note for note in body["assumptions"])
    assert run([*asked, "--host-ram", "48GiB", "--json"]) == 3


@pytest.mark.slow
def test_no_phase_of_a_cpu_rank_holds_more_than_its_peak(capsys: pytest.CaptureFixture[str]) -> None:
    typed = "estimate --model gpt2 --method lora --device cpu --gpus 2 --seq-len 64 --micro-batch 1 --json -q"
    assert run(typed.split()) in (0, 3)
    for rank in json.loads(capsys.readouterr().out)["per_rank"]:
        assert max(rank["phases"].values()) == rank["peak_allocated_bytes"]
