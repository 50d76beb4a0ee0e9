"""Every recipe plans, to what it says it plans to, and what is written passes our own checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit import recipes
from zerokit.check.deepspeed_file import Context
from zerokit.check.files import check_files
from zerokit.cli.inprocess import json_of


@pytest.mark.parametrize("name", recipes.names())
def test_recipe_plans_and_what_is_written_is_valid(name: str, tmp_path: Path) -> None:
    recipe = recipes.load(name)
    answer: dict[str, Any] = json_of("plan", ["--recipe", name, "--out", str(tmp_path)])
    chosen = answer["chosen"]
    assert chosen["estimate"]["fits"] is True
    if recipe.expect:
        assert recipes.differences(recipe, chosen) == [], "run: zerokit recipes check --write"
    ranks = chosen["data_parallel"] * chosen["tensor_parallel"] * chosen["sequence_parallel"]
    written = [str(path) for path in tmp_path.iterdir() if path.suffix in (".json", ".yaml")]
    assert {Path(path).name for path in written} >= {"ds_config.json", "accelerate.yaml", "plan.yaml"}
    for file in check_files(written, Context(world_size=ranks)):
        alarms = [finding for finding in file.findings if finding.severity != "note"]
        assert not alarms, alarms
    config = json.loads((tmp_path / "ds_config.json").read_text())
    assert config == chosen["deepspeed_config"]
