"""Files that change a run: .deepspeed_env and DeepSpeed's default hostfile."""

from __future__ import annotations

import json

import pytest

from tests.support.laid_out_machine import Machine
from zerokit.doctor import examine
from zerokit.doctor.environment import ODDITIES


def test_a_deepspeed_env_that_would_crash_is_named_with_its_line(machine: Machine) -> None:
    (machine.home / ".deepspeed_env").write_text("NCCL_DEBUG=WARN\n\n# remark\n", encoding="utf-8")
    found = machine.findings()["files.deepspeed-env"]
    assert found.state == "warning" and f"{machine.home}/.deepspeed_env:2" in found.what


def test_a_secret_in_deepspeed_env_is_named_but_never_shown(machine: Machine) -> None:
    (machine.cwd / ".deepspeed_env").write_text("HF_TOKEN=hf_verysecret\n", encoding="utf-8")
    examination = examine(machine.variables, cwd=machine.cwd, home=machine.home, root=machine.root)
    text = json.dumps(examination.as_dict())
    assert "HF_TOKEN" in text and "hf_verysecret" not in text


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [("node1 slots=8\nnode2 slots=8\n", "note", "lists 2 hosts"), ("node1 slots=0\n", "warning", ":1")],
)
def test_the_default_hostfile_is_pointed_out(machine: Machine, text: str, state: str, words: str) -> None:
    path = machine.root / "job/hostfile"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    found = machine.findings()["files.hostfile"]
    assert (found.state, words in found.what) == (state, True), found


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
