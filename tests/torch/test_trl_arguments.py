"""TRL's own defaults and configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import (
    PLANNED,
    joined,
)
from zerokit.script.arguments import ScriptOptions
from zerokit.script.reader import read_script


def test_trls_own_defaults_and_configuration_file_count(tmp_path: Path) -> None:
    """bf16 and checkpointing are on in TRL's classes; its parser reads ``--config``."""
    trl = pytest.importorskip("trl")
    facts = read_script(Path(trl.__file__).parent / "scripts" / "sft.py", None)
    assert facts.style == "trainer"
    (tmp_path / "x.yaml").write_text("gradient_accumulation_steps: 4\nmax_length: 512\n")
    found = ScriptOptions.read(
        facts, facts.style, ("--dataset_name", "d", "--config", str(tmp_path / "x.yaml"))
    )
    assert found.defaults["max_length"] == 512
    assert joined(found) == "--per_device_train_batch_size 4 --max_grad_norm 0.5"
    assert joined(found, precision="fp32", checkpointing="none") == (
        "--per_device_train_batch_size 4 --max_grad_norm 0.5 --bf16 False --gradient_checkpointing False"
    )
    (conflict,) = found.conflicts(PLANNED, added=True)
    assert (
        "x.yaml: gradient_accumulation_steps: 4, but the plan has gradient_accumulation_steps 2" in conflict
    )
    assert {one.setting.name: one.value for one in found.fixed()} == {"gradient_accumulation": 4}
