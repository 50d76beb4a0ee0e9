"""The sweep over the whole space of strategies: ``./launch.sh test -m slow -k sweep`` (about 10 minutes).

600 strategies drawn pairwise × three variants pass DeepSpeed's classes, Accelerate's loader and our own
rules; 40 over all stages, offloads and degrees pass the real ``deepspeed.initialize`` on 2 to 8 ranks; a
sample trains on two CPU ranks.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.pairwise import KEY_VALUE_HEADS, pairwise
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, ZeroSettings
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.emit.accelerate import accelerate_yaml
from zerokit.emit.deepspeed import VARIANTS, deepspeed_config, trainer_arguments
from zerokit.linter.deepspeed.deep import DeepCase, run_deep
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.files import check_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]

JOB = Job()


@pytest.fixture(scope="module")
def strategies() -> list[Strategy]:
    drawn, share = pairwise(600)
    assert share > 0.99
    return drawn


def case(strategy: Strategy, variant: str, mode: str) -> DeepCase:
    return DeepCase(
        config=deepspeed_config(strategy, JOB, variant=variant),
        world_size=strategy.world_size,
        tensor_parallel=strategy.tensor_parallel,
        pipeline_parallel=strategy.pipeline_parallel,
        sequence_parallel=strategy.sequence_parallel,
        key_value_heads=KEY_VALUE_HEADS,
        mode=mode,
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_sweep_deepspeeds_classes_accept_all(variant: str, strategies: list[Strategy]) -> None:
    results = run_deep([case(strategy, variant, "classes") for strategy in strategies])
    refused = [(result.error, s) for s, result in zip(strategies, results, strict=True) if not result.ok]
    assert not refused, f"{len(refused)} of {len(results)}: {refused[0]}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_sweep_our_own_rules_accept_all(variant: str, strategies: list[Strategy], tmp_path: Path) -> None:
    for number, strategy in enumerate(strategies):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(deepspeed_config(strategy, JOB, variant=variant)))
        # a file does not tell of a pipeline: its batch arithmetic is that of the data-parallel ranks
        ranks = strategy.world_size // strategy.pipeline_parallel
        file = check_files([str(path)], Context(world_size=ranks, key_value_heads=KEY_VALUE_HEADS))[0]
        alarms = [finding for finding in file.findings if finding.severity != "note"]
        slow_host_step = [finding for finding in alarms if finding.rule == "offload-slow-host-step"]
        assert alarms == slow_host_step, (strategy, alarms)


@pytest.mark.parametrize("variant", VARIANTS)
def test_sweep_accelerates_loader_accepts_all(
    variant: str, strategies: list[Strategy], tmp_path: Path
) -> None:
    cases = []
    sayable = [strategy for strategy in strategies if strategy.pipeline_parallel == 1]
    for number, strategy in enumerate(sayable):
        config = tmp_path / f"{number}.json"
        config.write_text(json.dumps(deepspeed_config(strategy, JOB, variant=variant)))
        path = tmp_path / f"{number}.yaml"
        path.write_text(accelerate_yaml(strategy, 1, ds_config_path=str(config)))
        cases.append(DeepCase(mode="accelerate", path=str(path)))
    for strategy, result in zip(sayable, run_deep(cases), strict=True):
        assert result.ok, (result.error, strategy)
        assert result.built["zero_stage"] == strategy.settings.zero.stage


def spread(strategies: list[Strategy], count: int) -> list[Strategy]:
    """``count`` strategies with 2 to 8 ranks, taking turns over stage, offload and degrees."""
    groups: dict[tuple[object, ...], list[Strategy]] = {}
    for strategy in strategies:
        zero = strategy.settings.zero
        key = (
            zero.stage, zero.offload_optimizer.device, zero.offload_param.device, strategy.tensor_parallel,
            strategy.pipeline_parallel, strategy.sequence_parallel,
        )  # fmt: skip
        if 2 <= strategy.world_size <= 8:
            groups.setdefault(key, []).append(strategy)
    ordered = sorted(groups.items(), key=lambda item: str(item[0]))
    return [ordered[number * len(ordered) // count][1][0] for number in range(count)]


def test_sweep_deep_accepts_forty(strategies: list[Strategy]) -> None:
    picked = spread(strategies, 40)
    assert len(picked) == 40
    assert {strategy.settings.zero.stage for strategy in picked} == {0, 1, 2, 3}
    assert {strategy.tensor_parallel for strategy in picked} == {1, 2, 4}
    assert {strategy.settings.zero.offload_optimizer.device for strategy in picked} == {"none", "cpu", "nvme"}
    results = run_deep([case(strategy, "raw", "initialize") for strategy in picked])
    refused = [(result.error, s) for s, result in zip(picked, results, strict=True) if not result.ok]
    assert not refused, f"{len(refused)} of 40: {refused[0]}"
    for strategy, result in zip(picked, results, strict=True):
        assert result.built["zero_stage"] == strategy.settings.zero.stage
        assert result.built["micro_batch"] == strategy.settings.micro_batch
        assert result.built["gradient_accumulation"] == strategy.settings.gradient_accumulation


COMMON = """
import os, sys
import deepspeed.comm.torch
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # would be compiled
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
def build():
    return LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, vocab_size=128))
def row():
    return {"input_ids": torch.randint(0, 128, (16,)), "labels": torch.randint(0, 128, (16,))}
data = [row() for _ in range(64)]
def finish(steps, engine=None):
    print(f"steps {steps}", flush=True)
    if engine is not None:
        engine.destroy()
    torch.distributed.destroy_process_group()
"""
SCRIPTS = {
    "raw": """
import deepspeed
deepspeed.init_distributed(dist_backend="gloo")
model = build()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=sys.argv[1])
for step in range(3 * engine.gradient_accumulation_steps()):
    batch = torch.stack([data[0]["input_ids"]] * engine.train_micro_batch_size_per_gpu())
    loss = engine(input_ids=batch, labels=batch).loss
    engine.backward(loss)
    engine.step()
finish(engine.global_steps, engine)
""",
    "accelerate": """
os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = sys.argv[1]
from accelerate import Accelerator
accelerator = Accelerator()
model = build()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(data, batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for number, batch in enumerate(loader):
    if model.global_steps == 3:
        break
    with accelerator.accumulate(model):
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
finish(model.global_steps, model)
""",
    "trainer": """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(args=[
    "--output_dir", sys.argv[2], "--max_steps", "3", "--report_to", "none", "--save_strategy", "no",
    "--disable_tqdm", "True", "--deepspeed", sys.argv[1], *sys.argv[3:]])
trainer = Trainer(model=build(), args=arguments, train_dataset=data)
trainer.train()
finish(trainer.model_wrapped.global_steps, trainer.model_wrapped)
""",
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sweep_trains_two_cpu_ranks(stage: int, variant: str, tmp_path: Path) -> None:
    settings = DeepSpeedSettings(
        precision="fp32",  # the Trainer refuses bf16 without a GPU, and with --use_cpu it drops DeepSpeed
        micro_batch=2,
        gradient_accumulation=2,
        gradient_clipping=1.0,
        torch_adam=True,
        zero=ZeroSettings(stage=stage, reduce_bucket_size=10**5, allgather_bucket_size=10**5),
    )
    strategy = Strategy(settings=settings, data_parallel=2)
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps(deepspeed_config(strategy, JOB, variant=variant)))
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(COMMON) + SCRIPTS[variant])
    more = trainer_arguments(strategy, JOB) if variant == "trainer" else []
    environment = {
        **os.environ, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--master-port",
            "0",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "localhost:0",
            str(script),
            str(config),
            str(tmp_path / "out"),
            *more,
        ],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.count("steps 3") == 2, done.stderr[-3000:]
