"""Every recipe plans to what it says it plans to, and what is written passes every tier of validation.

The real ``deepspeed.initialize`` for up to eight ranks of each: ``./launch.sh test -m slow -k recipe``.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import zerokit
from tests.support.deep import ask as ask_engine
from zerokit.emit import plan_file
from zerokit.linter.deepspeed.deep import DeepCase, DeepResult
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.files import check_files
from zerokit.planner import recipes

NAMES = recipes.names()
QUICK = NAMES[::5]
ROWS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
)


@dataclass(frozen=True)
class Planned:
    """What one recipe gave."""

    folder: Path
    chosen: dict[str, Any]
    plan: plan_file.PlanFile

    @property
    def configs(self) -> list[Path]:
        """The DeepSpeed file of each consumer."""
        return sorted(self.folder.glob("ds_config*.json"))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Planned]:
    """Every recipe that is tested, planned once."""
    found = {}
    for name in NAMES if "slow" in request.config.option.markexpr else QUICK:
        folder = tmp_path_factory.mktemp(name)
        chosen = zerokit.plan(recipe=name, out=folder, top=1).chosen.to_dict()
        found[name] = Planned(folder, chosen, plan_file.read(folder))
    return found


@pytest.mark.parametrize("name", ROWS)
def test_recipe_plans_to_what_it_says(name: str, planned: dict[str, Planned]) -> None:
    recipe, chosen = recipes.load(name), planned[name].chosen
    assert chosen["estimate"]["fits"] is True
    assert set(recipe.expect["strategy"]) == set(recipes.EXPECTED_STRATEGY)
    assert set(recipe.expect["prediction"]) == set(recipes.EXPECTED_PREDICTION)
    assert recipes.differences(recipe, chosen) == [], "run: zerokit recipes check --write"


@pytest.mark.parametrize("name", ROWS)
def test_what_a_recipe_writes_passes_our_own_rules(name: str, planned: dict[str, Planned]) -> None:
    it = planned[name]
    written = [str(path) for path in it.folder.iterdir()]
    assert {path.name for path in it.configs} == {
        "ds_config.json", "ds_config.trainer.json", "ds_config.accelerate.json",
    }  # fmt: skip
    assert {Path(path).name for path in written} >= {"accelerate.yaml", "plan.yaml"}
    for file in check_files(written, Context(world_size=it.plan.world_size)):
        alarms = [finding for finding in file.findings if finding.severity != "note"]
        assert not alarms, alarms
    assert json.loads((it.folder / "ds_config.json").read_text()) == it.chosen["deepspeed_config"]


def cases_of(it: Planned, mode: str) -> list[DeepCase]:
    """What one recipe wrote, as one of the two reads it."""
    if mode == "accelerate":
        return [DeepCase(mode=mode, path=str(it.folder / "accelerate.yaml"))]
    strategy = it.plan.strategy()
    paths: Sequence[Path] = it.configs if mode == "classes" else [it.folder / "ds_config.json"]
    return [
        DeepCase(
            config=json.loads(path.read_text()),
            mode=mode,
            world_size=strategy.world_size,
            tensor_parallel=strategy.tensor_parallel,
            pipeline_parallel=strategy.pipeline_parallel,
            sequence_parallel=strategy.sequence_parallel,
        )
        for path in paths
    ]


def ask(planned: dict[str, Planned], *modes: str) -> dict[str, list[DeepResult]]:
    """What DeepSpeed and Accelerate say to each file of each recipe, asked in one process."""
    cases = [(name, case) for name, it in planned.items() for mode in modes for case in cases_of(it, mode)]
    answers: dict[str, list[DeepResult]] = {name: [] for name in planned}
    for (name, _), result in zip(cases, ask_engine([case for _, case in cases]), strict=True):
        answers[name].append(result)
    return answers


@pytest.fixture(scope="module")
def read(planned: dict[str, Planned]) -> dict[str, list[DeepResult]]:
    return ask(planned, "classes", "accelerate")


@pytest.fixture(scope="module")
def built(planned: dict[str, Planned]) -> dict[str, list[DeepResult]]:
    return ask(planned, "initialize")


@needs_deepspeed
@pytest.mark.parametrize("name", ROWS)
def test_recipe_passes_deepspeeds_and_accelerates_classes(
    name: str, read: dict[str, list[DeepResult]]
) -> None:
    assert len(read[name]) == 3 + 1
    for result in read[name]:
        assert result.ok, result.error


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_recipe_builds_the_real_engine(
    name: str, planned: dict[str, Planned], built: dict[str, list[DeepResult]]
) -> None:
    (result,) = built[name]
    assert result.ok, result.error
    assert result.built["zero_stage"] == planned[name].chosen["zero_stage"]
    assert result.built["micro_batch"] == planned[name].chosen["micro_batch"]
