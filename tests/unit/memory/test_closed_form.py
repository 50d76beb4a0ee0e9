"""The closed form against the catalogue's traces, and against what libraries do with experts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import zerokit
from benchmarks.closed_form import answers
from zerokit.catalog import gpus, models, profiles
from zerokit.cli import run
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, Offload, ZeroSettings
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import MemoryEstimate, Strategy
from zerokit.memory.closed_form import estimate_analytic, trainable_parameters
from zerokit.memory.estimate import estimate_traced
from zerokit.memory.host import PROCESS_BYTES
from zerokit.planner.one_strategy import one_strategy
from zerokit.planner.request import resolve
from zerokit.units import GIB, MIB
from zerokit.values import replace

BILLIONS_STACKED = {
    "deepseek-v2-lite": 14.39,
    "gpt-oss-20b": 19.11,
    "minimax-m2": 224.68,
    "mixtral-8x7b": 45.10,
    "qwen1.5-moe-a2.7b": 12.46,
    "qwen3-30b-a3b": 28.99,
    "switch-c-2048": 0.0,  # a module for each expert still
}
"""Elements of the three-dimensional parameters that Transformers 5.23 builds (counted on the meta device)."""


def shape_of(name: str, *, separate: bool = False) -> ModelShape:
    entry, _ = models.resolve(name)
    return from_config(
        entry.hf_config, name=name, parameters=entry.parameters, head=entry.head, separate=separate
    )


def estimated(name: str, shape: ModelShape | None = None, job: dict[str, object] | None = None,
              **options: object) -> MemoryEstimate:  # fmt: skip
    request = resolve({"model": name, "gpus": 1, "gpu": "h200", **options}, single=True).request
    strategy, _ = one_strategy(request)
    return estimate_analytic(
        shape or request.shape, replace(request.job, **(job or {})), strategy, request.cluster
    )


@pytest.mark.parametrize(
    ("options", "traced_gib"),
    [({}, 78.04), ({"trainer": "trl-dpo"}, 126.86), ({"checkpointing": "full"}, 17.6)],
)
def test_heads_that_share_keys_keep_their_scores_in_fp32(options: dict[str, str], traced_gib: float) -> None:
    """Peaks of the same estimates with `llama-3.2-1b` traced (transformers 5.23, torch 2.13)."""
    job = {"method": "lora", "micro_batch": 4, "precision": "fp32", "checkpointing": "none", **options}
    found = estimated("llama-3.2-1b", **job)
    assert found.ranks[0].peak_allocated_bytes / GIB == pytest.approx(traced_gib, rel=0.05)


@pytest.mark.parametrize(
    ("options", "traced_gib"),
    [
        ({"method": "full"}, 94.7), ({"zero": 3}, 82.1), ({"zero": 0}, 81.0),
        ({"zero": 0, "trainer": "trl"}, 7.5), ({"zero": 0, "trainer": "trl-dpo"}, 12.5),
    ],
)  # fmt: skip
def test_an_evaluation_is_counted(options: dict[str, object], traced_gib: float) -> None:
    """Beside the evaluations of the same estimates traced, on 4 GPUs (transformers 5.23)."""
    job = {"method": "lora", "gpus": 4, "micro_batch": 4, "eval_batch": 32, **options}
    found = estimated("llama-3.2-1b", **job)
    assert found.ranks[0].phases["eval"] / GIB == pytest.approx(traced_gib, rel=0.15)


@pytest.mark.parametrize("name", BILLIONS_STACKED)
def test_stacked_experts_are_not_quantised(name: str) -> None:
    shape = shape_of(name)
    assert shape.stacked_parameters / 1e9 == pytest.approx(BILLIONS_STACKED[name], abs=0.005)
    packed = shape.weight_bytes(2, 0.5)
    kept = shape.parameters - shape.linear_parameters
    assert packed == 0.5 * shape.linear_parameters + 2 * kept and kept >= shape.stacked_parameters


def test_qlora_of_a_mixture_is_near_its_trace() -> None:
    """78.8 GiB are required when it is traced (Transformers 5.23); with packed experts it would be 37.1."""
    options = {
        "method": "qlora",
        "zero": 1,
        "offload_optimizer": "cpu",
        "checkpointing": "full",
        "micro_batch": 4,
    }
    memory = estimated("qwen3-30b-a3b", **options)
    assert memory.min_vram_bytes + memory.unsure_bytes >= 78.8 * GIB
    assert memory.min_vram_bytes == pytest.approx(78.8 * GIB, rel=0.05)


def test_experts_of_transformers_4_are_quantised_modules_with_adapters() -> None:
    """Of Mixtral's 46.7 billion weights all but tables and norms are in linear modules (modeling_mixtral.py,
    4.57): an adapter on each of 8 × 3 matrices, the router, and four of attention."""
    shape = shape_of("mixtral-8x7b", separate=True)
    assert shape.stacked_parameters == 0 and shape.linear_parameters == shape.parameters - 262_410_240
    expert, attention = 8 * 3 * (4096 + 14336), (4096 + 4096) * 2 + (4096 + 1024) * 2
    adapters = trainable_parameters(shape, Job(method="lora", lora=Lora(rank=16)))
    assert adapters == 32 * 16 * (expert + attention + 4096 + 8)
    memory = estimated("mixtral-8x7b", shape, method="qlora", checkpointing="full")
    assert memory.worst.components["frozen_parameters"] == pytest.approx(23.1 * GIB, rel=0.02)


def test_linear_layers_of_a_class_of_their_own_are_not_quantised() -> None:
    """``type(module) is nn.Linear`` (transformers 5.23, replace_with_bnb_linear) leaves FalconLinear out."""
    assert shape_of("falcon-7b").linear_parameters == 0
    assert shape_of("falcon-7b", separate=True).linear_parameters > 6.5e9


def test_preparation_for_k_bits_casts_experts_to_fp32() -> None:
    """Four layers of Mixtral, prepared, took 21.0 GiB in a rehearsal of axolotl's example: 5.25 a layer."""
    prepared = estimated("mixtral-8x7b", job={"trainer": "axolotl"}, method="qlora", checkpointing="full")
    plain = estimated("mixtral-8x7b", method="qlora", checkpointing="full")
    assert prepared.worst.peak_phase == "init" != plain.worst.peak_phase
    assert 32 * 5.25 < prepared.worst.peak_allocated_bytes / GIB < 32 * 5.25 + 4


@pytest.mark.parametrize(
    ("trainer", "method", "is_named"),
    [("axolotl", "lora", True), ("axolotl", "full", False), ("axolotl-peft", "lora", False)],
)
def test_kernels_for_adapters_that_are_not_counted_are_named(
    trainer: str, method: str, is_named: bool
) -> None:
    found = estimated("llama-3.2-1b", job={"trainer": trainer}, method=method)
    assert any("lora_mlp_kernel" in note for note in found.assumptions) == is_named


@pytest.mark.parametrize("model", [{"params": "1b"}, {"model": "llama-3.2-1b"}])
@pytest.mark.parametrize(("attention", "is_warned"), [("sdpa", True), ("flash_attention_2", False)])
def test_padding_that_is_not_counted_is_a_warning(
    model: Mapping[str, Any], attention: str, is_warned: bool
) -> None:
    found = zerokit.estimate(**model, gpu="h100", gpus=1, padding=True, attention=attention)
    warned = [note["id"] for note in found.to_dict()["notes"] if note["level"] == "warning"]
    assert ("unpadded-counted" in warned) == is_warned


@pytest.mark.parametrize("name", ["bloom-1b7", "gemma-2-2b", "qwen2.5-0.5b", "smollm2-135m"])
def test_no_plan_in_closed_form_fits_where_its_trace_does_not(name: str) -> None:
    found = [answer for answer in answers(name, ("full",), ("rtx-4090",)) if answer.is_sure]
    assert found and all(answer.fits_traced and answer.beyond_bytes <= 0 for answer in found)


@pytest.mark.slow
def test_no_plan_of_the_catalogue_fits_where_its_trace_does_not() -> None:
    from zerokit.catalog import profiles

    for name in profiles.names():
        if models.load(name).has_closed_form:
            assert [a.words for a in answers(name) if a.is_sure and not a.fits_traced] == []


def test_a_limit_within_the_margin_is_told_as_may_fit(capsys: pytest.CaptureFixture[str]) -> None:
    memory = estimated("mixtral-8x7b", method="qlora", zero=3, checkpointing="full")
    asked = ["estimate", "--model", "mixtral-8x7b", "--method", "qlora", "--gpus", "1", "--zero", "3",
             "--checkpointing", "full"]  # fmt: skip
    limit = f"{(memory.min_vram_bytes + memory.unsure_bytes // 2) // 2**20}MiB"
    assert run([*asked, "--vram", limit]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "May fit: " in out and " ± " in out
    assert "experts are not quantised, 84.0 GiB: they are stacked tensors" in out
    for room, fits in (
        (-GIB, False),
        (memory.unsure_bytes // 2, None),
        (memory.unsure_bytes + 9 * GIB, True),
    ):
        code = run([*asked, "--json", "--vram", f"{(memory.min_vram_bytes + room) // 2**20}MiB"])
        assert (json.loads(capsys.readouterr().out)["fits"], code) == (fits, 3 if fits is False else 0)


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
