"""Host memory in closed form beside that of a trace, whose tensors have their real sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit.catalog import gpus, models, profiles
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, Offload, ZeroSettings
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.strategy import MemoryEstimate, Strategy
from zerokit.memory.closed_form import estimate_analytic
from zerokit.memory.estimate import estimate_traced
from zerokit.memory.host import PROCESS_BYTES
from zerokit.units import MIB

DATA = Path(__file__).parents[3] / "benchmarks" / "measure" / "data"

JOBS = {"full": Job(seq_len=1024), "lora": Job(seq_len=1024, method="lora", lora=Lora(rank=16))}


def both(model: str, strategy: Strategy, job: Job) -> tuple[MemoryEstimate, MemoryEstimate]:
    """The estimate of the trace, and that of the closed form."""
    entry, profile = models.load(model), profiles.load(model)
    assert profile is not None
    cluster = Cluster(gpu=gpus.load("h200"), gpus=strategy.world_size)
    shape = from_config(entry.hf_config, name=model, parameters=entry.parameters)
    return (
        estimate_traced(profile, job, strategy, cluster),
        estimate_analytic(shape, job, strategy, cluster),
    )


def strategy(stage: int, optimizer: str, parameters: str, ranks: int) -> Strategy:
    path = "/local/nvme"
    zero = ZeroSettings(
        stage=stage,
        offload_optimizer=Offload(device=optimizer, nvme_path=path if optimizer == "nvme" else None),
        offload_param=Offload(device=parameters, nvme_path=path if parameters == "nvme" else None),
    )
    settings = DeepSpeedSettings(precision="bf16", micro_batch=1, zero=zero)
    return Strategy(settings=settings, data_parallel=ranks, checkpointing="full")


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(
    ("stage", "optimizer", "parameters"),
    [
        (2, "cpu", "none"), (3, "none", "none"), (3, "cpu", "none"), (3, "cpu", "cpu"), (3, "none", "cpu"),
        (3, "nvme", "none"), (3, "nvme", "nvme"), (3, "cpu", "nvme"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("llama-3.1-8b", "full"), ("qwen2.5-14b", "full"), ("qwen2.5-14b", "lora"), ("gpt2-xl", "lora"),
        ("mixtral-8x7b", "full"),  # adapters on experts are counted otherwise by peft
    ],
)  # fmt: skip
def test_beside_a_process_of_its_own_host_memory_is_that_of_the_trace(
    model: str, method: str, stage: int, optimizer: str, parameters: str, ranks: int
) -> None:
    """Within a tenth, or a GiB a rank; the weights that are loaded below stage 3 not counted."""
    exact, closed = both(model, strategy(stage, optimizer, parameters, ranks), JOBS[method])
    loading = ("process", "model_before_it_moves")
    sizes = [
        sum(size for name, size in found.host_components.items() if name not in loading)
        for found in (exact, closed)
    ]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1, abs=ranks * 2**30)
    nvme = exact.nvme_bytes_per_node
    assert closed.nvme_bytes_per_node == pytest.approx(nvme, rel=0.1, abs=2**30)
    assert closed.host_bytes_per_node > 0.95 * exact.host_bytes_per_node


def test_loading_takes_pages_of_the_file_and_no_memory_of_its_own() -> None:
    """Measured: 2.8 B parameters from one safetensors file, loaded in 4 and in 8 bits."""
    rows = [json.loads(line) for line in (DATA / "host-of-loading.jsonl").read_text().splitlines()]
    for row in (row for row in rows if row["kind"] != "plain"):
        own = row["most"]["RssAnon"] * MIB
        assert own - row["before"]["RssAnon"] * MIB < 0.03 * 2 * row["parameters"]
        assert own < PROCESS_BYTES  # which an estimate counts


@pytest.mark.parametrize("stage", [0, 2])
def test_a_quantised_model_is_not_built_in_host_memory(stage: int) -> None:
    """Transformers loads each of its weights straight onto the GPU: see the measured rows."""
    job = Job(seq_len=1024, method="qlora", lora=Lora(rank=16))
    for found in both("llama-3.1-8b", strategy(stage, "none", "none", 1), job):
        assert set(found.host_components) == {"process"}
        assert found.host_bytes_per_node == found.host_components["process"]
    for found in both("llama-3.1-8b", strategy(stage, "none", "none", 1), JOBS["lora"]):
        assert found.host_bytes_per_node > 2 * 8.0e9  # the weights in 16 bits
