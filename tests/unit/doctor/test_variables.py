"""Environment variables that change a run."""

from __future__ import annotations

import pytest

from tests.support.laid_out_machine import Machine
from zerokit.doctor.variables import ODDITIES

EXAMPLES = {
    "NCCL_P2P_LEVEL": "LOC", "NCCL_NET_GDR_LEVEL": "LOC", "NCCL_DEBUG": "INFO",
    "CUDA_VISIBLE_DEVICES": "GPU-0aaa,GPU-1aaa", "TORCH_CUDA_ARCH_LIST": "8.0 9.0a",
}  # fmt: skip


@pytest.mark.parametrize("oddity", ODDITIES, ids=lambda oddity: oddity.name)
def test_each_odd_variable_is_remarked_on(machine: Machine, oddity: object) -> None:
    name = oddity.name  # type: ignore[attr-defined]
    assert f"environment.{name}" not in machine.findings()
    machine.variables[name] = EXAMPLES.get(name, "1")
    found = machine.findings()[f"environment.{name}"]
    assert found.what.startswith(f"{name}={EXAMPLES.get(name, '1')}: ") and found.fix


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_DEBUG", "WARN"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("CUDA_LAUNCH_BLOCKING", ""),
        ("TORCH_CUDA_ARCH_LIST", "8.0;9.0+PTX"),
    ],
)
def test_a_harmless_value_is_not(machine: Machine, name: str, value: str) -> None:
    machine.variables[name] = value
    assert f"environment.{name}" not in machine.findings()


@pytest.mark.parametrize(
    ("value", "remarked"),
    [("eth0", False), ("eth", False), ("=eth0", False), ("=eth", True), ("ib0", True), ("^lo", False),
     ("^eth,lo", True), ("ens,eth", False)],
)  # fmt: skip
def test_a_network_interface_must_exist(machine: Machine, value: str, remarked: bool) -> None:
    for name in ("eth0", "lo"):
        (machine.root / "sys/class/net" / name).mkdir(parents=True)
    machine.variables["NCCL_SOCKET_IFNAME"] = value
    assert ("environment.NCCL_SOCKET_IFNAME" in machine.findings()) is remarked
