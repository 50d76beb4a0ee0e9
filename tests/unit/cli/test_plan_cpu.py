"""Planning for CPU ranks: the precision that this machine's CPUs are fit for."""

from __future__ import annotations

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
