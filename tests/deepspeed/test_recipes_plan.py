"""Every recipe plans to what it says it plans to, and what is written passes every tier of validation.

The real ``deepspeed.initialize`` for up to eight ranks of each; under FSDP2 steps of real ranks, over which
Accelerate divides a small model of the same class: ``./launch.sh test -m slow -k recipe``.
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
from tests.support.fsdp2_files import SCRIPT, run
from tests.support.packages import needs
from zerokit.catalog import models
from zerokit.emit import plan_file
from zerokit.linter.deepspeed.deep import DeepCase, DeepResult
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.files import check_files
from zerokit.planner import recipes
from zerokit.strictload import parse_yaml
from zerokit.strictload.yamltext import dump_yaml

NAMES = recipes.names()
QUICK = NAMES[::5]


def rows(names: Sequence[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


ROWS = rows(NAMES)
FSDP2 = [name for name in NAMES if recipes.load(name).expect["strategy"]["engine"] == "fsdp2"]
DEEPSPEED = rows([name for name in NAMES if name not in FSDP2])
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
    assert set(recipe.expect["strategy"]) == set(recipes.EXPECTED_STRATEGY) & set(chosen)
    assert set(recipe.expect["prediction"]) == set(recipes.EXPECTED_PREDICTION)
    assert recipes.differences(recipe, chosen) == [], "run: zerokit recipes check --write"


@pytest.mark.parametrize("name", ROWS)
def test_what_a_recipe_writes_passes_our_own_rules(name: str, planned: dict[str, Planned]) -> None:
    it = planned[name]
    written = [str(path) for path in it.folder.iterdir()]
    of_deepspeed = {"ds_config.json", "ds_config.trainer.json", "ds_config.accelerate.json"}
    own = {"fsdp_config.json", "fully_shard.py"} if name in FSDP2 else of_deepspeed
    assert {Path(path).name for path in written} == {"accelerate.yaml", "plan.yaml", *own}
    written = [path for path in written if not path.endswith(("fsdp_config.json", ".py"))]
    for file in check_files(written, Context(world_size=it.plan.world_size)):
        alarms = [finding for finding in file.findings if finding.severity != "note"]
        assert not alarms, alarms
    if name not in FSDP2:
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
    of_deepspeed = {name: it for name, it in planned.items() if name not in FSDP2}
    cases = [
        (name, case) for name, it in of_deepspeed.items() for mode in modes for case in cases_of(it, mode)
    ]
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
@pytest.mark.parametrize("name", DEEPSPEED)
def test_recipe_passes_deepspeeds_and_accelerates_classes(
    name: str, read: dict[str, list[DeepResult]]
) -> None:
    assert len(read[name]) == 3 + 1
    for result in read[name]:
        assert result.ok, result.error


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("name", DEEPSPEED)
def test_recipe_builds_the_real_engine(
    name: str, planned: dict[str, Planned], built: dict[str, list[DeepResult]]
) -> None:
    (result,) = built[name]
    assert result.ok, result.error
    assert result.built["zero_stage"] == planned[name].chosen["zero_stage"]
    assert result.built["micro_batch"] == planned[name].chosen["micro_batch"]


@pytest.mark.parametrize("name", rows(FSDP2))
def test_recipe_divides_a_small_model_of_its_class(
    name: str, planned: dict[str, Planned], tmp_path: Path
) -> None:
    """By ``accelerate launch`` with the recipe's YAML, but for the number of ranks: two for each replica."""
    needs("accelerate")
    needs("transformers")
    chosen, request = planned[name].chosen, recipes.load(name).request
    body = parse_yaml((planned[name].folder / "accelerate.yaml").read_text()).value
    ranks = 2 * chosen["replicas"]
    body |= {"num_machines": 1, "num_processes": ranks}
    if chosen["replicas"] > 1:
        body["parallelism_config"]["parallelism_config_dp_shard_size"] = 2
    (tmp_path / "accelerate.yaml").write_text(dump_yaml(body))
    kind = models.lookup(request["model"]).hf_config["model_type"]
    options = ["--lora"] if request["method"] == "lora" else []
    launch = ["accelerate.commands.launch", "--config_file", "accelerate.yaml", "--main_process_port", "0"]
    seen = run([*launch, str(SCRIPT), "--model", kind, *options], tmp_path)
    assert seen["distributed_type"].endswith("FSDP") and seen["losses"][1] < seen["losses"][0]
    assert (seen["checkpointed"] == 2) == (chosen["activation_checkpointing"] == "full")
    groups = [json.loads(group) for group in seen["groups"]]
    layers = [one for one in groups if ".layers." in one["parameters"][0]]
    assert {one["reshards"] for one in layers} == {chosen["reshard_after_forward"]}
    assert {one["offload"] == "CPUOffloadPolicy" for one in groups} == {chosen["offload_param"] == "cpu"}
    assert {tuple(one["mesh"]) for one in groups} == {(2, 2) if chosen["replicas"] > 1 else (2,)}
    assert {one["dtypes"][0] for one in groups} == {"torch.bfloat16"}
