"""Detection against real processes that stand in for the drivers' tools, and laid-out /proc and /sys."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.machine import detect as detection
from zerokit.machine.detect import detect
from zerokit.units import MIB

H200 = "NVIDIA H200, 143771, 4, 570.133.20"
LINES = [f"{index}, GPU-{index}a2b3c4d-0000-1111-2222-333344445555, {H200}" for index in range(8)]


def _tool(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


def _prints(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.out").write_text(text, encoding="utf-8")
    _tool(folder, name, f'/bin/cat "{folder}/{name}.out"')


def _environment(folder: Path, **variables: str) -> dict[str, str]:
    return {"PATH": str(folder), **variables}


def test_a_machine_without_tools_is_described_not_an_error(tmp_path: Path) -> None:
    found = detect(_environment(tmp_path))
    assert found.gpus == ()
    assert found.gpu_reason == "no GPU found: nvidia-smi, rocm-smi and amd-smi are not on the PATH"
    gpu, reason = found.catalog_gpu()
    assert gpu is None and reason == found.gpu_reason


def test_eight_gpus_are_listed_and_known(tmp_path: Path) -> None:
    _prints(tmp_path, "nvidia-smi", "\n".join(LINES) + "\n")
    found = detect(_environment(tmp_path))
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    assert {gpu.driver_vram_bytes for gpu in found.gpus} == {143771 * MIB}
    assert (found.vendor, found.driver_version, found.hidden_gpus) == ("nvidia", "570.133.20", 0)
    gpu, reason = found.catalog_gpu()
    assert gpu is not None and gpu.name == "h200"
    assert "NVIDIA H200" in reason


def test_the_tool_is_asked_for_what_is_parsed(tmp_path: Path) -> None:
    _tool(tmp_path, "nvidia-smi", f'echo "$@" > {tmp_path}/asked; exit 1')
    detect(_environment(tmp_path))
    asked = (tmp_path / "asked").read_text()
    assert asked == (
        "--query-gpu=index,uuid,name,memory.total,memory.used,driver_version --format=csv,noheader,nounits\n"
    )


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        ("0,1", [0, 1]),
        ("3, 1", [3, 1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,99,1", [0]),
        ("0,-1,1", [0]),
        ("2,2", []),
        ("GPU-3a2b3c4d-0000-1111-2222-333344445555", [3]),
        ("GPU-5a,GPU-1a2b", [5, 1]),
        ("GPU-", []),
        ("GPU-ffff", []),
    ],
)
def test_cuda_visible_devices_is_honoured(tmp_path: Path, value: str, indices: list[int]) -> None:
    _prints(tmp_path, "nvidia-smi", "\n".join(LINES))
    found = detect(_environment(tmp_path, CUDA_VISIBLE_DEVICES=value))
    assert [gpu.index for gpu in found.gpus] == indices
    assert found.hidden_gpus == 8 - len(indices)
    assert f"CUDA_VISIBLE_DEVICES={value} leaves {len(indices)}" in found.gpu_reason


def test_mig_slices_are_not_guessed(tmp_path: Path) -> None:
    _prints(tmp_path, "nvidia-smi", "\n".join(LINES))
    found = detect(_environment(tmp_path, CUDA_VISIBLE_DEVICES="MIG-41b2"))
    assert found.gpus == ()
    assert "MIG" in found.gpu_reason and "⟨vram⟩" in found.gpu_reason


def test_unlike_gpus_are_planned_for_the_smallest(tmp_path: Path) -> None:
    _prints(
        tmp_path,
        "nvidia-smi",
        "0, GPU-a, NVIDIA A100-SXM4-80GB, 81920, 0, 550.1\n1, GPU-b, Tesla T4, 15360, 0, 550.1\n",
    )
    gpu, reason = detect(_environment(tmp_path)).catalog_gpu()
    assert gpu is not None and gpu.name == "t4"
    assert "unlike GPUs" in reason


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0, GPU-a, NVIDIA GB10, [N/A], [N/A], 580.1", "does not say how much memory"),
        ("0, GPU-a, Quadro K420, 2048, 0, 470.1", "not in the catalogue"),
    ],
)
def test_a_gpu_that_cannot_be_planned_for_says_what_to_give(tmp_path: Path, line: str, words: str) -> None:
    _prints(tmp_path, "nvidia-smi", line)
    found = detect(_environment(tmp_path))
    assert len(found.gpus) == 1
    gpu, reason = found.catalog_gpu()
    assert gpu is None
    assert words in reason and "⟨vram⟩" in reason


def test_a_failing_tool_is_quoted(tmp_path: Path) -> None:
    _tool(
        tmp_path, "nvidia-smi", 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18'
    )
    reason = detect(_environment(tmp_path)).gpu_reason
    assert "exit code 18" in reason and "version mismatch" in reason


def test_a_hanging_tool_is_given_up_with_its_children(tmp_path: Path) -> None:
    # the child keeps the pipe open: killing the tool alone would still hang the reader
    _tool(tmp_path, "nvidia-smi", f"/bin/sleep 300 & echo $! > {tmp_path}/child; wait")
    started = time.monotonic()
    found = detect(_environment(tmp_path), timeout_seconds=0.5)
    assert "did not answer within 0.5 s" in found.gpu_reason
    assert time.monotonic() - started < 60
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_tool_that_prints_rubbish_finds_nothing(tmp_path: Path) -> None:
    _tool(tmp_path, "nvidia-smi", r"printf 'No devices were found\n\377\376,,,,,\n1,2,3,4,5,6,7\n'")
    found = detect(_environment(tmp_path))
    assert found.gpus == ()
    assert "lists no GPU" in found.gpu_reason


def test_a_driver_without_its_tool_is_pointed_out(tmp_path: Path) -> None:
    for card in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "root/proc/driver/nvidia/gpus" / card).mkdir(parents=True)
    found = detect(_environment(tmp_path / "empty"), root=tmp_path / "root")
    assert "lists 2: put nvidia-smi on the PATH" in found.gpu_reason


ROCM = {
    "card0": {"Card Series": "AMD Instinct MI300X", "Card Model": "0x74a1", "Unique ID": "0xabc123",
              "VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297000000"},
    "card1": {"Card series": "AMD Instinct MI300X", "Unique ID": "0xdef456",
              "VRAM Total Memory (B)": "206141652992"},
    "system": {"Driver version": "6.10.5"},
}  # fmt: skip


def test_rocm_smi_is_read(tmp_path: Path) -> None:
    _prints(tmp_path, "rocm-smi", "WARNING: something\n" + json.dumps(ROCM))
    found = detect(_environment(tmp_path))
    assert [gpu.name for gpu in found.gpus] == ["AMD Instinct MI300X"] * 2
    assert (found.vendor, found.driver_version) == ("amd", "6.10.5")
    gpu, _ = found.catalog_gpu()
    assert gpu is not None and gpu.name == "mi300x"
    hidden = detect(_environment(tmp_path, HIP_VISIBLE_DEVICES="1"))
    assert [gpu.uuid for gpu in hidden.gpus] == ["0xdef456"]
    by_uuid = detect(_environment(tmp_path, ROCR_VISIBLE_DEVICES="GPU-def456"))
    assert [gpu.index for gpu in by_uuid.gpus] == [1]


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_smi_is_read_where_rocm_smi_is_missing(tmp_path: Path, wrapped: bool) -> None:
    card = {
        "gpu": 0,
        "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0xabc"},
        "vram": {"type": "HBM", "size": {"value": 196592, "unit": "MB"}},
        "driver": {"name": "amdgpu", "version": "6.10.5"},
    }
    _prints(tmp_path, "amd-smi", json.dumps({"gpu_data": [card]} if wrapped else [card]))
    found = detect(_environment(tmp_path))
    assert found.gpus[0].driver_vram_bytes == 196592 * MIB
    gpu, _ = found.catalog_gpu()
    assert gpu is not None and gpu.name == "mi300x"


@given(st.text(max_size=300))
def test_no_output_of_a_tool_breaks_the_parsers(text: str) -> None:
    for parse in (detection.parse_nvidia, detection.parse_rocm_smi, detection.parse_amd_smi):
        found, driver = parse(text)
        assert isinstance(found, tuple) and (driver is None or isinstance(driver, str))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["card0", "gpu", "asic", "vram", "size", "value", "gpu_data"]), inner
        )
    ),
    max_leaves=12,
)


@given(_JSON)
def test_no_json_of_a_tool_breaks_the_parsers(value: object) -> None:
    for parse in (detection.parse_rocm_smi, detection.parse_amd_smi):
        assert isinstance(parse(json.dumps(value))[0], tuple)
