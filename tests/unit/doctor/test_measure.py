"""Measuring for real, and keeping what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from zerokit.cli.doctor import command
from zerokit.doctor import measure
from zerokit.errors import RankFailed, RunHung
from zerokit.machine import measured
from zerokit.machine.detect import detect
from zerokit.machine.measured import Collective, Measured
from zerokit.planner.calibration import of_measured

EXAMPLE = Measured(
    host="node1", device="cuda", device_name="NVIDIA H200", ranks=8, torch_version="2.13.0",
    measured_at="2026-01-01T00:00:00+00:00", matmul_flops=790e12, matmul_precision="bf16",
    memory_copy_bytes_per_second=4.24e12, host_to_device_bytes_per_second=18.7e9,
    device_to_host_bytes_per_second=10.9e9, cpu_adam_parameters_per_second=4e9, cpu_adam_kind="deepspeed",
    collectives=(Collective(operation="all_reduce", message_bytes=1 << 20, bus_bytes_per_second=31e9),),
)  # fmt: skip


def test_a_rank_that_fails_is_quoted_and_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torch.py").write_text("raise ImportError('no torch for you')\n")
    with pytest.raises(RankFailed, match="no torch for you"):
        measure.measure(detect({"PATH": ""}))


def test_ranks_that_hang_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torch.py").write_text(
        f"import os, time\nopen(f'{tmp_path}/{{os.getpid()}}.pid', 'w').close()\nprint('here', flush=True)\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(RunHung, match="here"):
        measure.measure(detect({"PATH": ""}), limit_seconds=3)
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(pids) == measure.CPU_RANKS
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


def test_a_part_that_hangs_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has measured three parts and hangs in the fourth, holding the lock of an operator's build."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lock = tmp_path / "lock"
    (tmp_path / "torch.py").write_text(
        "import json, os, signal, sys, time\n"
        "order = json.loads(sys.argv[-1])\n"
        "values = dict(device_name='CPU', torch_version='2', matmul_flops=1e12, matmul_precision='fp32')\n"
        "def end(*_):\n    raise SystemExit\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "if order['rank'] == 0:\n"
        f"    open({str(lock)!r}, 'w').close()\n"
        "    with open(order['result'] + '.new', 'w') as file:\n"
        "        json.dump({'done': order['parts'][:3], 'values': values}, file)\n"
        "    os.replace(order['result'] + '.new', order['result'])\n"
        "try:\n    time.sleep(600)\n"
        f"finally:\n    os.path.exists({str(lock)!r}) and os.unlink({str(lock)!r})\n"
    )
    found = measure.measure(detect({"PATH": ""}), budgets={measure.PARTS[3]: 0.5})
    assert found.matmul_flops == 1e12 and found.cpu_adam_parameters_per_second is None
    assert tuple(found.not_measured) == measure.PARTS[3:]
    assert found.not_measured[measure.PARTS[3]].startswith("host speed did not end within 0.5 s")
    assert not lock.exists()
    assert measured.from_dict(json.loads(json.dumps(found.as_dict()))) == found
    # what is missing is said, and predictions count without it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured.save(found, measured.path())
    said = " ".join(CliRunner().invoke(command, []).output.split())
    assert f"not measured: {measure.PARTS[-1]}: no time was left for it" in said
    assert of_measured(found, "doctor").cpu_adam_parameters_per_second is None


def test_measurements_round_trip(tmp_path: Path) -> None:
    path = measured.path({"XDG_CACHE_HOME": str(tmp_path)}, "node1")
    assert path == tmp_path / "zerokit/measured/node1.json"
    measured.save(EXAMPLE, path)
    assert measured.load(path)[0] == EXAMPLE


@pytest.mark.parametrize("host", ["../../etc/passwd", "a/b", "", ".", "x" * 500, "né\n"])
def test_a_host_name_never_leaves_the_folder(tmp_path: Path, host: str) -> None:
    path = measured.path({"XDG_CACHE_HOME": str(tmp_path)}, host or None)
    assert path.parent == tmp_path / "zerokit/measured"
    assert len(path.name) < 120


@pytest.mark.parametrize(
    "change",
    [
        {"matmul_flops": 0}, {"matmul_flops": float("nan")}, {"matmul_flops": "fast"}, {"ranks": True},
        {"collectives": [{"operation": "all_reduce"}]}, {"collectives": 3}, {"schema": "zerokit.measured/0"},
        {"host_to_device_bytes_per_second": -1.0}, {"colour": "green"},
    ],
)  # fmt: skip
def test_a_damaged_file_is_a_reason_not_an_error(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps({**EXAMPLE.as_dict(), **change}), encoding="utf-8")
    found, reason = measured.load(path)
    assert found is None and "measure again" in reason


@given(st.binary(max_size=200))
def test_no_bytes_break_the_loader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("m") / "m.json"
    path.write_bytes(data)
    assert measured.load(path)[0] is None


def test_a_missing_file_says_how_to_measure(tmp_path: Path) -> None:
    assert "doctor --measure" in measured.load(tmp_path / "none.json")[1]
