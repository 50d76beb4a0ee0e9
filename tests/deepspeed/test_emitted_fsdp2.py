"""What is written for FSDP2, read by Accelerate and the Trainer and trained with by real ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

from tests.corpus_scripts.environments import python_with
from tests.support.fsdp2_files import SCRIPT, launched, run, settings_of
from tests.support.fsdp2_strategies import fsdp2_strategies
from tests.support.packages import needs
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.strategy import Strategy
from zerokit.emit.accelerate import parallelism_environment
from zerokit.emit.fsdp2 import accelerate_yaml, fully_shard_code, trainer_config
from zerokit.emit.jobs import sbatch_script

needs("accelerate")


def expected(strategy: Strategy) -> dict[str, object]:
    settings = strategy.settings
    assert isinstance(settings, Fsdp2Settings)
    return {
        "reshard": settings.reshard_after_forward,
        "offload": "CPUOffloadPolicy" if settings.offload else "OffloadPolicy",
        "checkpointing": strategy.checkpointing == "full",
        "wraps": "transformer_auto_wrap_policy",
        "loading": settings.broadcasts,
        "precision": {"fp32": "no"}.get(settings.precision, settings.precision),
    }


@given(fsdp2_strategies())
@hypothesis_settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_accelerates_plugin_has_the_strategy(tmp_path: Path, strategy: Strategy) -> None:
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin

    path = tmp_path / "accelerate.yaml"
    path.write_text(accelerate_yaml(strategy, 1))
    environment = launched(path)
    assert parallelism_environment(strategy).items() <= environment.items()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("FSDP_", "PARALLELISM_CONFIG_"))]:
            patch.delenv(name)
        for name, value in environment.items():
            if name.startswith(("FSDP_", "PARALLELISM_CONFIG_")):
                patch.setenv(name, value)
        assert settings_of(FullyShardedDataParallelPlugin(), environment) == expected(strategy)
        shared = strategy.sequence_parallel
        if strategy.settings.replicas > 1 or shared > 1:
            sizes = ParallelismConfig()
            assert (sizes.dp_replicate_size, sizes.cp_size) == (strategy.settings.replicas, shared)
            assert sizes.total_size == strategy.world_size
        if shared > 1:
            assert sizes.cp_handler.cp_comm_strategy == strategy.settings.rotation


@given(fsdp2_strategies())
@hypothesis_settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_trainers_plugin_has_the_strategy(tmp_path: Path, strategy: Strategy) -> None:
    needs("transformers")
    from accelerate.utils import FullyShardedDataParallelPlugin
    from transformers import TrainingArguments

    path = tmp_path / "fsdp_config.json"
    path.write_text(json.dumps(trainer_config(strategy)))
    arguments = TrainingArguments(str(tmp_path / "out"), fsdp=True, fsdp_config=str(path), use_cpu=True)
    plugin = FullyShardedDataParallelPlugin(**arguments.fsdp_plugin_args)
    assert settings_of(plugin, {}) | {"precision": None} == expected(strategy) | {"precision": None}


@pytest.mark.parametrize(
    ("own", "checkpointing"),
    [
        ({}, "full"),
        pytest.param({"reshard_after_forward": False, "precision": "fp32"}, "none", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_train_as_the_yaml_and_as_the_code_says(
    tmp_path: Path, own: dict[str, Any], checkpointing: str
) -> None:
    """``accelerate launch`` takes the YAML; the code of a plain loop makes the same groups of parameters."""
    needs("transformers")
    settings = Fsdp2Settings(**{"precision": "bf16", **own})
    strategy = Strategy(settings=settings, data_parallel=2, checkpointing=checkpointing)
    (tmp_path / "accelerate.yaml").write_text(accelerate_yaml(strategy, 1))
    (tmp_path / "fully_shard.py").write_text(fully_shard_code(strategy))
    launch = ["accelerate.commands.launch", "--config_file", "accelerate.yaml", "--main_process_port", "0"]
    seen = run([*launch, str(SCRIPT)], tmp_path)
    assert seen["distributed_type"].endswith("FSDP") and len(seen["losses"]) == 2
    assert seen["losses"][1] < seen["losses"][0]
    assert seen["checkpointed"] == (2 if checkpointing == "full" else 0)
    groups = [json.loads(group) for group in seen["groups"]]
    layers = [one for one in groups if one["parameters"][0].startswith("model.layers.")]
    assert [one["reshards"] for one in layers] == [settings.reshard_after_forward] * 2
    dtype = {"bf16": "torch.bfloat16", "fp32": "None"}[settings.precision]
    assert all(one["dtypes"] == [dtype] * 3 and one["kept"] == ["torch.float32"] for one in groups)
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    code = run([*torchrun, str(SCRIPT), "fully_shard.py"], tmp_path)
    assert code["groups"] == seen["groups"]
    assert code["losses"] == pytest.approx(seen["losses"], rel=1e-3)


def test_the_job_of_two_nodes_is_one_run(tmp_path: Path) -> None:
    """``srun`` runs the step once a node; here both are this machine."""
    needs("transformers")
    strategy = Strategy(settings=Fsdp2Settings(precision="bf16"), data_parallel=2)
    (tmp_path / "accelerate.yaml").write_text(accelerate_yaml(strategy, 2))
    job = sbatch_script(strategy, 2, [str(SCRIPT)], accelerate_file="accelerate.yaml", style="none")
    step = 'shift 2\nSLURM_NODEID=1 "$@" & SLURM_NODEID=0 "$@" && wait $!\n'
    for name, body in (("srun", step), ("scontrol", "echo 127.0.0.1\n")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}")
        (tmp_path / name).chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(port - 20000), "SLURM_JOB_NODELIST": "n", "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    done = subprocess.run(["bash", "-c", job], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "SEEN " in line)
    seen = json.loads(line.partition("SEEN ")[2])
    assert seen["distributed_type"].endswith("FSDP") and seen["losses"][1] < seen["losses"][0]
    assert {tuple(json.loads(group)["mesh"]) for group in seen["groups"]} == {(2,)}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_a_rank_that_loads_nothing_trains_the_first_ones_weights(tmp_path: Path, tied: bool) -> None:
    needs("transformers")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=tied)  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "model")
    tokens = torch.arange(16).reshape(2, 8)
    whole = model(input_ids=tokens, labels=tokens).loss.item()
    settings = Fsdp2Settings(precision="bf16", broadcasts=True, loads_once=True)
    strategy = Strategy(settings=settings, data_parallel=2)
    (tmp_path / "accelerate.yaml").write_text(accelerate_yaml(strategy, 1))
    launch = ["accelerate.commands.launch", "--config_file", "accelerate.yaml", "--main_process_port", "0"]
    seen = run([*launch, str(SCRIPT.with_name("fsdp2_loaded_once.py")), "model"], tmp_path)
    assert seen["losses"][0] == pytest.approx(whole, rel=1e-2)
    assert seen["losses"][1] < seen["losses"][0]
    assert seen["trained"] == seen["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.12.0", "1.13.0", "1.14.0"])
def test_older_accelerates_have_the_same(tmp_path: Path, version: str) -> None:
    python = python_with(tmp_path, f"accelerate-{version}", f"accelerate=={version}")
    settings = Fsdp2Settings(precision="bf16", replicas=2, offload=True, reshard_after_forward=False)
    strategy = Strategy(settings=settings, data_parallel=8, checkpointing="full")
    path = tmp_path / "accelerate.yaml"
    path.write_text(accelerate_yaml(strategy, 1))
    code = (
        "import sys, os, json, accelerate; from pathlib import Path\n"
        "from tests.support.fsdp2_files import SCRIPT, launched, run, settings_of\n"
        "from accelerate.utils import FullyShardedDataParallelPlugin\n"
        "from accelerate.parallelism_config import ParallelismConfig\n"
        f"assert accelerate.__version__ == {version!r}\n"
        "environment = launched(Path(sys.argv[1])); os.environ.update(environment)\n"
        "sizes = ParallelismConfig()\n"
        "seen = settings_of(FullyShardedDataParallelPlugin(), environment)\n"
        "print(json.dumps([seen, sizes.dp_replicate_size, sizes.total_size]))\n"
    )
    root = Path(__file__).parent.parent.parent
    result = subprocess.run(
        [str(python), "-c", code, str(path)], cwd=root, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == [expected(strategy), 2, 8]
