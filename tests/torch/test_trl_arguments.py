"""TRL's configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import (
    PLANNED,
    joined,
)
from zerokit.launcher.plan_agreement import contradictions
from zerokit.script.arguments import ScriptOptions
from zerokit.script.reader import read_script


def test_trls_configuration_file_counts(tmp_path: Path) -> None:
    """Its parser reads ``--config``; what else the plan has is given, whatever TRL's default."""
    trl = pytest.importorskip("trl")
    facts = read_script(Path(trl.__file__).parent / "scripts" / "sft.py", None)
    assert facts.style == "trainer"
    (tmp_path / "x.yaml").write_text("gradient_accumulation_steps: 4\nmax_length: 512\n")
    found = ScriptOptions.read(
        facts, facts.style, ("--dataset_name", "d", "--config", str(tmp_path / "x.yaml"))
    )
    assert joined(found) == (
        "--per_device_train_batch_size 4 --max_grad_norm 0.5 --bf16 True --fp16 False"
        " --gradient_checkpointing True"
    )
    (conflict,) = contradictions(found, PLANNED, added=True)
    assert (
        "x.yaml: gradient_accumulation_steps: 4, but the plan has gradient_accumulation_steps 2" in conflict
    )
    assert {one.setting.name: one.value for one in found.fixed()} == {"gradient_accumulation": 4}
