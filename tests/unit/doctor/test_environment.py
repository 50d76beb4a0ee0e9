"""Files that change a run: .deepspeed_env and DeepSpeed's default hostfile."""

from __future__ import annotations

import json

import pytest

from tests.support.laid_out_machine import Machine
from zerokit.doctor import examine


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
