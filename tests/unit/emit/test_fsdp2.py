"""FSDP2 strategies as files, read back as the same settings; DeepSpeed's own beside them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.emitted import verify
from tests.support.fsdp2_strategies import fsdp2_strategies
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.fsdp2_config import from_accelerate, from_trainer
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate, MemoryEstimate, RankEstimate, Strategy, TimeEstimate
from zerokit.emit import fsdp2, plan_file
from zerokit.emit.accelerate import parallelism_environment
from zerokit.emit.deepspeed import trainer_arguments
from zerokit.emit.files import NAMES, plan_files
from zerokit.errors import InputError
from zerokit.linter.files import check_files, detect_kind
from zerokit.planner.documents import PlannedStrategy
from zerokit.planner.plan_result import write_plan
from zerokit.values import replace

JOB = Job()
MIXED = Fsdp2Settings(precision="bf16", micro_batch=2, gradient_accumulation=4)


def planned(strategy: Strategy, nodes: int = 1) -> PlannedStrategy:
    from zerokit.catalog import gpus

    rank = RankEstimate(
        first=0, last=strategy.world_size - 1, peak_allocated_bytes=1 << 30, peak_phase="backward",
        phases={"backward": 1 << 30}, components={"activations": 1 << 30},
    )  # fmt: skip
    memory = MemoryEstimate(ranks=(rank,), min_vram_bytes=2 << 30, host_bytes_per_node=1 << 30)
    time = TimeEstimate(step_seconds=1.0, tokens_per_second_per_gpu=1.0, parts={}, bound_by="compute")
    cluster = Cluster(gpu=gpus.lookup("h200"), gpus=strategy.world_size, nodes=nodes)
    candidate = Candidate(strategy=strategy, memory=memory, time=time)
    return PlannedStrategy(candidate=candidate, job=JOB, cluster=cluster)


@given(fsdp2_strategies(), st.sampled_from([1, 2]))
@hypothesis_settings(max_examples=60, deadline=None)
def test_the_yaml_reads_back_as_the_same_settings(strategy: Strategy, nodes: int) -> None:
    files = plan_files(strategy, JOB, nodes=nodes, folder=Path("plan"))
    verify(files.texts, ranks=strategy.world_size)
    found = from_accelerate(yaml.safe_load(files.texts[files.names["accelerate"]]))
    batch = {"micro_batch": strategy.settings.micro_batch,
             "gradient_accumulation": strategy.settings.gradient_accumulation}  # fmt: skip
    assert replace(found.settings, **batch) == strategy.settings
    assert found.checkpointing is (strategy.checkpointing == "full")
    assert (found.processes, found.nodes) == (strategy.world_size, nodes)
    # of the model's cache, and of who loads
    assert len(found.remarks) == found.checkpointing + found.settings.broadcasts
    for_trainer = from_trainer(json.loads(files.texts[files.names["trainer"]]), strategy.settings.precision)
    by_variables = {"replicas": found.settings.replicas, "rotation": found.settings.rotation}
    assert replace(for_trainer.settings, **by_variables) == found.settings
    assert found.shared == strategy.sequence_parallel
    assert {*files.texts} <= NAMES
    config = fsdp2.accelerate_config(strategy, nodes)
    blocks = {name: config[name] for name in ("fsdp_config", "parallelism_config") if name in config}
    decided = {f"{name}.{key}" for name, block in blocks.items() for key in block}
    assert {"mixed_precision", *decided} == {*files.reasons}
    if strategy.sequence_parallel == 1:
        ast.parse(files.texts[files.names["code"]])
    else:  # nothing but Accelerate shares sequences
        assert "code" not in files.names


@given(fsdp2_strategies())
@hypothesis_settings(max_examples=20, deadline=None)
def test_a_plans_file_reads_back_as_the_same_strategy(
    tmp_path_factory: pytest.TempPathFactory, strategy: Strategy
) -> None:
    folder = tmp_path_factory.mktemp("plan")
    clipped = replace(strategy, settings=replace(strategy.settings, gradient_clipping=0.5))
    files = write_plan(folder, planned(clipped), {"optimizer": "AdamW"}, assumptions=())
    assert {Path(path).name for path in files.values()} >= {"accelerate.yaml", "plan.yaml"}
    read = plan_file.read(folder)
    assert (read.engine, read.strategy()) == ("fsdp2", clipped)


def test_a_trainers_fsdp_config_is_checked_as_one(tmp_path: Path) -> None:
    """``activation_checkpointing`` is a key of DeepSpeed's, too."""
    config = fsdp2.trainer_config(Strategy(settings=MIXED, data_parallel=4))
    path = tmp_path / "fsdp_config.json"
    path.write_text(json.dumps(config))
    (file,) = check_files([str(path)])
    assert (file.kind, file.findings) == ("fsdp_config", [])
    path.write_text(json.dumps(config).replace("reshard_after", "reshrad_after"))
    (finding,) = check_files([str(path)])[0].findings
    assert (finding.rule, finding.location.line) == ("arguments-fsdp-ignored-key", 1)
    assert detect_kind("ds_config.json", json.dumps({**config, "zero_optimization": {}})) == "deepspeed"


def test_pure_16_bit_weights_are_said_without_mixed_precision() -> None:
    strategy = Strategy(settings=replace(MIXED, master_bytes=2), data_parallel=4)
    assert fsdp2.accelerate_config(strategy, 1)["mixed_precision"] == "no"
    assert "loads the weights in bf16" in fsdp2.accelerate_yaml(strategy, 1)


def test_replicas_are_sizes_in_the_yaml_and_variables_for_other_launchers() -> None:
    """accelerate 1.15, utils/launch.py, prepare_extend_env_parallelism_config."""
    strategy = Strategy(settings=replace(MIXED, replicas=2), data_parallel=8)
    sizes = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 4}
    assert fsdp2.accelerate_config(strategy, 1)["parallelism_config"] == sizes
    assert parallelism_environment(strategy) == {
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "2",
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": "4",
    }
    assert parallelism_environment(replace(strategy, settings=MIXED)) == {}
    shared = parallelism_environment(replace(strategy, data_parallel=4, sequence_parallel=2))
    told = {name.removeprefix("PARALLELISM_CONFIG_"): value for name, value in shared.items()}
    sizes = (told["DP_REPLICATE_SIZE"], told["DP_SHARD_SIZE"], told["CP_SIZE"], told["CP_COMM_STRATEGY"])
    assert sizes == ("2", "2", "2", "allgather")


@pytest.mark.parametrize("own", [{"wrapping": "layers"}, {"reduce_dtype": "fp32"}])
def test_what_accelerates_yaml_cannot_say_is_code_alone(own: dict[str, str]) -> None:
    strategy = Strategy(settings=replace(MIXED, **own), data_parallel=4)
    assert [*plan_files(strategy, JOB, nodes=1, folder=Path()).texts] == ["fully_shard.py"]
    with pytest.raises(InputError, match="only be given in the script's code"):
        fsdp2.accelerate_config(strategy, 1)
    with pytest.raises(InputError, match="Transformers does, as it loads"):
        fsdp2.accelerate_config(Strategy(settings=MIXED, data_parallel=4, tensor_parallel=2), 1)


def test_what_is_loaded_in_parts_has_the_file_that_loads_it() -> None:
    settings = replace(MIXED, tp_size=2, reduce_dtype="float32", replicas=2)
    parts = Strategy(settings=settings, data_parallel=8, tensor_parallel=2, checkpointing="full")
    texts = plan_files(parts, JOB, nodes=1, folder=Path()).texts
    assert json.loads(texts["distributed_config.json"]) == {
        "tp_size": 2, "fsdp_size": 4, "dp_replicate_size": 2, "fsdp_mixed_precision": True
    }  # fmt: skip
    said = yaml.safe_load(texts["accelerate.yaml"])
    assert (said["distributed_type"], said["num_processes"]) == ("MULTI_GPU", 16)
    assert "dtype=torch.float32, distributed_config=" in fsdp2.script_must(parts, JOB)[0]
    arguments = trainer_arguments(parts, JOB)
    assert "--gradient_checkpointing" in arguments and not {"--bf16", "--fsdp"} & {*arguments}


def test_the_trainer_checkpoints_by_its_fsdp_config() -> None:
    """transformers 5.23, training_args.py:2795: checkpointing of its own gathers weights twice."""
    strategy = Strategy(settings=MIXED, data_parallel=4, checkpointing="full")
    assert fsdp2.trainer_config(strategy)["activation_checkpointing"] is True
    arguments = trainer_arguments(strategy, JOB)
    assert "--gradient_checkpointing" not in arguments and "--bf16" in arguments


def test_packed_weights_are_stored_as_forward_computes() -> None:
    strategy = Strategy(settings=MIXED, data_parallel=2, checkpointing="none")
    (todo,) = fsdp2.script_must(strategy, Job(method="qlora"))
    assert "bnb_4bit_quant_storage=torch.bfloat16" in todo
    assert fsdp2.script_must(strategy, Job(method="lora")) == []


def test_a_strategy_says_its_engine() -> None:
    said = planned(Strategy(settings=replace(MIXED, replicas=2), data_parallel=8)).to_dict()
    own = ("engine", "zero_stage", "sharding", "replicas", "context_parallel", "reshard_after_forward")
    assert [said[name] for name in own] == ["fsdp2", None, 4, 2, 1, True]
    assert said["deepspeed_config"] is None
    assert said["accelerate_config"]["distributed_type"] == "FSDP"
    said = planned(Strategy(settings=DeepSpeedSettings(), data_parallel=2)).to_dict()
    assert (said["engine"], said["zero_stage"]) == ("deepspeed", 0)
    assert said["deepspeed_config"]["zero_optimization"] and "accelerate_config" not in said
    assert "sharding" not in said
