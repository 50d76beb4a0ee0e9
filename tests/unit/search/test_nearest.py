"""What is looked for where nothing fits."""

from __future__ import annotations

import re
from typing import Any

import pytest

import zerokit
from tests.support.requests import request_for
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate
from zerokit.errors import InputError, NothingFits
from zerokit.search.explain import strategy_words
from zerokit.search.nearest import halved, more_gpus
from zerokit.search.plan import best_plan
from zerokit.search.space import Pins, Request
from zerokit.values import replace


def test_more_gpus_are_looked_for_with_whole_sequences_first() -> None:
    """Each degree of each number of GPUs costs a replay of the step: 3 seconds where 1 is enough."""
    asked: list[bool] = []

    def works(request: Request) -> None:
        asked.append(request.pins.search_sequence)

    assert more_gpus(request_for(pins=Pins(search_sequence=True)), works) is None
    assert asked == [False, True]
    asked.clear()
    assert more_gpus(request_for(), works) is None
    assert asked == [False]


@pytest.mark.parametrize(
    ("asked", "fewest", "named"),
    [
        ({}, 40, 40),
        ({}, 96, 96),
        ({}, 4, 4),  # a node holds powers of two
        ({"tensor_parallel": 16}, 40, 48),  # whole nodes that hold whole groups
    ],
)
def test_more_gpus_are_as_few_as_fit(asked: dict[str, int], fewest: int, named: int) -> None:
    def works(request: Request) -> Candidate | None:
        numbers.append(request.cluster.gpus)
        return fitting if request.cluster.gpus >= fewest else None

    numbers: list[int] = []
    request = request_for(gpu="rtx-4090", count=1)
    fitting = best_plan(request_for("llama-3.2-1b"))
    offered = more_gpus(replace(request, pins=Pins(**asked)), works)
    assert offered and f"⟨gpus⟩ {named}" in offered.replace(" on", ")"), offered
    assert len(numbers) < 14


def test_more_gpus_keep_the_global_batch_where_they_can() -> None:
    def works(request: Request) -> Candidate | None:
        return fitting if request.cluster.gpus >= 34 else None

    fitting = best_plan(request_for("llama-3.2-1b"))
    offers = {
        batch: more_gpus(
            request_for(gpu="rtx-4090", count=1, job=Job(seq_len=2048, global_batch=batch)), works
        )
        for batch in (64, 80, 100)
    }
    assert "(⟨gpus⟩ 64 on 8 nodes)" in (offers[64] or "")  # 40 would need another batch
    assert "(⟨gpus⟩ 40 on 5 nodes)" in (offers[80] or "")
    assert "(⟨gpus⟩ 40 and ⟨global_batch⟩" in (offers[100] or "")  # no number of whole nodes divides 100


def _refusal(**options: Any) -> str:
    with pytest.raises(NothingFits) as caught:
        zerokit.plan(**options)
    return str(caught.value)


@pytest.mark.slow
def test_a_fused_loss_is_offered_where_it_makes_a_long_sequence_fit() -> None:
    job = {"model": "qwen2.5-14b", "method": "lora", "gpu": "rtx-4090", "gpus": 2, "seq_len": 16384}
    text = _refusal(**job)
    assert "loss chunked (TRL) or liger (Trainer): " in text, text
    assert "use_liger_kernel" in text
    assert zerokit.plan(**job, loss="liger").chosen.fits
    with_search = _refusal(**job, tp="auto")  # a fused loss is not modelled with tensor parallelism
    assert re.search(r"liger \(Trainer\) without .*\btp\b", with_search), with_search


def test_what_a_fused_loss_is_not_modelled_with_is_not_advised_beside_one() -> None:
    """Each way that an answer names, the next call must take."""
    job = {"model": "llama-3.1-70b", "gpu": "a100-40gb", "gpus": 64, "seq_len": 4096, "network": "12.5GB"}
    fused = zerokit.plan(**job, loss="liger").to_dict()["faster_with"]
    assert not any("PipelineModule" in line or "tensor parallel" in line for line in fused), fused
    for refused in ({"pipeline_module": True}, {"tp": "auto"}):
        with pytest.raises(InputError, match="not modelled"):
            zerokit.plan(**job, loss="liger", **refused)


@pytest.mark.slow
def test_the_host_memory_that_is_named_is_enough_and_little_less_is_not() -> None:
    job = {"model": "llama-3.1-70b", "gpu": "a100-80gb", "gpus": 8, "nodes": 2, "seq_len": 4096}
    text = _refusal(**job, global_batch=64, host_ram="500GiB")
    named = re.search(r"(\d+)GiB per node", text)
    assert named, text
    enough = int(named[1])
    assert zerokit.plan(**job, global_batch=64, host_ram=f"{enough}GiB").chosen.fits
    _refusal(**job, global_batch=64, host_ram=f"{enough - 2}GiB")


@pytest.mark.slow
def test_nvme_is_offered_where_a_disk_would_hold_what_the_host_cannot() -> None:
    job = {"model": "llama-3.1-8b", "gpu": "rtx-4090", "gpus": 8, "host_ram": "128GiB", "seq_len": 4096}
    (line,) = (line for line in _refusal(**job).splitlines() if "nvme DIR " in line)
    chosen = zerokit.plan(**job, nvme="/scratch").chosen
    zero = chosen.strategy.settings.zero
    assert "nvme" in (zero.offload_optimizer.device, zero.offload_param.device)
    assert strategy_words(chosen.strategy) in line
    assert "nvme DIR" not in _refusal(**job, offload_optimizer="none"), "it keeps the states on the GPU"
    assert "nvme DIR" not in _refusal(**job, nvme="/scratch", zero=1), "named already"


@pytest.mark.slow
def test_it_is_said_that_each_gpu_loads_a_quantised_model_whole() -> None:
    text = _refusal(model="llama-3.1-70b", method="qlora", gpu="rtx-4090", gpus=8)
    assert "loads the quantised model whole on each GPU" in text
    assert "whole on each" not in _refusal(model="llama-3.1-70b", method="lora", gpu="rtx-4090", gpus=2)


@pytest.mark.slow
def test_a_plan_leaves_a_margin_unless_nothing_fits_with_it() -> None:
    """0.92 %: the worst of docs/accuracy.md."""
    job = {"model": "llama-3.1-8b", "gpus": 2, "gpu": "a100-80gb", "seq_len": 4096, "global_batch": 8}
    job["vram"] = "19800MiB"
    available = zerokit.plan(**job).cluster.gpu.driver_vram_bytes
    required = {
        margin: zerokit.plan(**job, margin=margin).chosen.estimate.min_vram_bytes
        for margin in ("0", "2%", "0.2")
    }
    assert required["0.2"] <= 0.8 * available and required["2%"] <= 0.98 * available < required["0"]
    advice = zerokit.plan(**job, margin=0).to_dict()["advice"]
    assert any(text.startswith("may run out of memory: ") and "--margin" in text for text in advice)


def test_offload_is_nothing_that_cpu_ranks_were_given() -> None:
    job = {"model": "llama-3.2-1b", "device": "cpu", "gpus": 1, "host_ram": "36GiB", "seq_len": 8192}
    text = _refusal(**job, checkpointing="none", micro_batch=1)
    assert "seq_len" in text and "offload_optimizer" not in text, text


def test_a_sequence_with_next_to_no_headroom_is_not_named() -> None:
    """30,720 tokens leave 26.8 MiB of 80 GiB."""
    text = _refusal(model="qwen2.5-14b", method="qlora", gpus=1, gpu="a100-80gb", seq_len=32768)
    (length,) = re.findall(r"seq_len[ =](\d+)", text)
    assert length == "28672", text


@pytest.mark.slow
def test_the_sequence_that_is_named_fits_and_little_more_does_not() -> None:
    job = {"model": "llama-3.1-8b", "method": "qlora", "gpus": 1, "gpu": "rtx-4090"}
    named = set()
    for asked in (16384, 20_000, 200_000):  # the answer does not depend on what was typed
        text = _refusal(**job, seq_len=asked)
        assert ("beyond the 131072 positions of the model's configuration" in text) == (asked > 131072)
        (line,) = (line for line in text.splitlines() if line.startswith("  - seq_len "))
        length = int(line.split()[2].rstrip(":"))
        named.add(length)
        required = zerokit.plan(**job, seq_len=length).chosen.candidate.memory.min_vram_bytes
        assert (0 < 24 - required / 2**30 < 1) == ("barely" in line)
    (length,) = named
    _refusal(**job, seq_len=round(length * 1.125))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["liger", "standard"])
def test_the_closest_strategy_is_the_one_that_enough_host_memory_makes_a_plan(loss: str) -> None:
    """With the buckets that a plan would choose: its figures are those of the host memory's line."""
    job: dict[str, Any] = {
        "model": "llama-3.1-8b", "gpu": "rtx-4090", "gpus": 2, "seq_len": 8192, "global_batch": 16,
        "loss": loss, "zero": 3, "offload_optimizer": "cpu",
        "offload_param": "none" if loss == "liger" else "cpu",
    }  # fmt: skip
    text = _refusal(**job)
    said = r"closest strategy requires ([\d.]+) GiB per GPU and ([\d.]+) GiB of host .* \((ZeRO.*)\)"
    figures = re.search(said, text)
    assert figures is not None, text
    named = re.search(rf"host_ram (\d+)GiB per node: {re.escape(figures[3])}, ([\d.]+) GiB required", text)
    assert named is not None and named[2] == figures[1], text
    assert 0 <= float(named[1]) - float(figures[2]) <= 1
    plan = zerokit.plan(**job, host_ram=f"{named[1]}GiB")
    assert plan.chosen.estimate.min_vram_bytes / 2**30 == pytest.approx(float(figures[1]), abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("host_ram", ["16GiB", "64GiB"])
def test_what_lacks_host_memory_alone_is_closer_than_what_lacks_both(host_ram: str) -> None:
    """A card that another strategy fits need not be a larger one, however little host memory there is."""
    text = _refusal(model="llama-3.1-8b", gpu="rtx-4090", gpus=1, host_ram=host_ram)
    assert "too much" not in text.splitlines()[0]
    figures = re.search(r"requires ([\d.]+) GiB per GPU and ([\d.]+) GiB of host memory", text)
    named = re.search(r"host_ram (\d+)GiB per node: .* ([\d.]+) GiB required", text)
    assert figures is not None and named is not None, text
    assert named[2] == figures[1] and 0 <= float(named[1]) - float(figures[2]) <= 1


def test_host_memory_that_is_short_by_little_is_shown_with_digits_that_differ() -> None:
    job: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "rtx-4090", "gpus": 2, "seq_len": 8192,
                           "zero": 3, "offload_optimizer": "cpu", "offload_param": "cpu",
                           "checkpointing": "full", "micro_batch": 1}  # fmt: skip
    required = zerokit.estimate(**job).host_bytes_per_node
    text = _refusal(**job, host_ram=f"{(required >> 20) - 20}MiB")
    figures = re.search(r"and ([\d.]+) GiB of host memory per node, where there are ([\d.]+) GiB", text)
    assert figures is not None and float(figures[1]) > float(figures[2]), text


@pytest.mark.parametrize(
    ("misfit", "fitting", "found"), [(0, 100, 37), (100, 0, 36), (0, 37, 37), (36, 37, 37)]
)
def test_the_number_next_to_one_that_does_not_fit_is_found(misfit: int, fitting: int, found: int) -> None:
    asked: list[int] = []

    def attempt(number: int) -> str | None:
        asked.append(number)
        fits = number >= 37 if fitting > misfit else number < 37
        return f"on {number}" if fits else None

    assert halved(misfit, fitting, f"on {fitting}", attempt) == (found, f"on {found}")
    assert len(asked) <= abs(fitting - misfit).bit_length()


def test_freed_options_leave_the_engine() -> None:
    """40,960 tokens on each of four GPUs fit with ZeRO-3, and not with FSDP2."""
    with pytest.raises(NothingFits) as failed:
        zerokit.plan(
            model="llama-3.1-8b", gpus=4, gpu="h100-sxm-80gb", seq_len=40_960, engine="fsdp2", cp=2,
            checkpointing="none",
        )  # fmt: skip
    (freed,) = [line for line in str(failed.value).splitlines() if "without cp 2 checkpointing none" in line]
    assert "FSDP2" in freed and "ZeRO" not in freed
