"""What must hold of every memory estimate, whatever the figures: sums, monotony, one place for peaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zerokit
from zerokit.catalog import gpus, profiles
from zerokit.domain.activations import Pass
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, Offload, ZeroSettings
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.phases import ESTIMATED_PHASES
from zerokit.domain.profile import Variant
from zerokit.domain.strategy import MemoryEstimate, Strategy
from zerokit.memory.estimate import covers, estimate_traced
from zerokit.memory.rank_model import Overlay, highest, rank_model, where
from zerokit.memory.replay.step import RankBytes, compose, rank_bytes

NAME = "llama-3.2-1b"
FULL_JOB = Job(seq_len=1024)
LORA_JOB = Job(seq_len=1024, method="lora", lora=Lora(rank=16, targets=("all-linear",)))
SMALL_BUCKET = 10_000_000


def strategy(
    stage: int,
    ranks: int = 1,
    *,
    micro_batch: int = 1,
    accumulation: int = 1,
    offload: str = "none",
    offload_param: str = "none",
    checkpointing: str = "full",
    **zero: object,
) -> Strategy:
    found = DeepSpeedSettings(
        precision="bf16",
        micro_batch=micro_batch,
        gradient_accumulation=accumulation,
        zero=ZeroSettings(
            stage=stage,
            offload_optimizer=Offload(device=offload),
            offload_param=Offload(device=offload_param, buffer_count=5),
            **({"reduce_bucket_size": SMALL_BUCKET} | zero),  # type: ignore[arg-type]
        ),
    )
    return Strategy(settings=found, data_parallel=ranks, checkpointing=checkpointing)


def estimate(of: Strategy, job: Job = FULL_JOB, every_rank: bool = False) -> MemoryEstimate:
    profile = profiles.load(NAME)
    assert profile is not None
    cluster = Cluster(gpu=gpus.load("h200"), gpus=of.world_size, nodes=max(1, of.world_size // 8))
    return estimate_traced(profile, job, of, cluster, every_rank=every_rank)


def peak(of: Strategy, job: Job = FULL_JOB) -> int:
    return estimate(of, job).worst.peak_allocated_bytes


KINDS = [
    strategy(0, 2),
    strategy(1, 4, accumulation=2),
    strategy(1, 4, accumulation=2, overlap_comm=True),
    strategy(2, 4, accumulation=3, round_robin_gradients=True),
    strategy(2, 2, offload="cpu"),
    strategy(3, 4),
    strategy(3, 4, max_reuse_distance=0, param_persistence_threshold=0),
    strategy(3, 2, offload="cpu", offload_param="cpu", micro_batch=4),
    strategy(2, 8, checkpointing="none", micro_batch=8),
    strategy(3, 8, checkpointing="none", micro_batch=8),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda s: f"z{s.settings.zero.stage}x{s.data_parallel}")
@pytest.mark.parametrize("job", [FULL_JOB, LORA_JOB], ids=["full", "lora"])
def test_components_are_the_peak(kind: Strategy, job: Job) -> None:
    profile = profiles.load(NAME)
    assert profile is not None
    if not covers(profile, job, kind):
        pytest.skip("the committed profile has no such trace")
    for rank in estimate(kind, job, every_rank=True).ranks:
        assert sum(rank.components.values()) == rank.peak_allocated_bytes
        assert min(rank.components.values()) > 0
        assert set(rank.phases) == set(ESTIMATED_PHASES)
        assert rank.peak_allocated_bytes == max(rank.phases.values()) == rank.phases[rank.peak_phase]


@pytest.mark.parametrize("kind", KINDS, ids=lambda s: f"z{s.settings.zero.stage}x{s.data_parallel}")
def test_the_composition_of_every_phase_is_its_peak(kind: Strategy) -> None:
    """Not only of the phase that is highest: what is live at each phase's own peak sums to it."""
    profile = profiles.load(NAME)
    assert profile is not None
    variant = Variant.of(FULL_JOB, kind)
    trace = profile.trace(variant, FULL_JOB.seq_len)
    assert trace is not None
    model = rank_model(profile, variant, trace)
    rank = kind.data_parallel - 1
    own = rank_bytes(model, kind.settings, kind.data_parallel, rank)
    timeline = trace.timeline(kind.settings.micro_batch, FULL_JOB.seq_len)
    in_step = compose(model, kind.settings, kind.data_parallel, rank, {"step": None})["step"]
    assert sum(in_step.values()) == own.step_peak
    activations = timeline.backward if kind.settings.zero.stage == 3 else timeline.gradients
    for number, micro in enumerate(own.micro_steps):
        position, between = where(activations, micro.backward)
        at = (number, position, between)
        live = activations.peaks[position] if between else activations.levels[position]
        found = compose(model, kind.settings, kind.data_parallel, rank, {"backward": at})["backward"]
        assert sum(found.values()) + live == highest(activations, micro.backward)
        if micro.forward is not None:
            position, between = where(timeline.forward, micro.forward)
            live = timeline.forward.peaks[position] if between else timeline.forward.levels[position]
            at = (number, position, between)
            found = compose(model, kind.settings, kind.data_parallel, rank, {"forward": at})["forward"]
            assert sum(found.values()) + live == highest(timeline.forward, micro.forward)


@pytest.mark.parametrize("kind", KINDS, ids=lambda s: f"z{s.settings.zero.stage}x{s.data_parallel}")
def test_what_deepspeed_allocates_follows_from_the_events_of_a_trace_alone(kind: Strategy) -> None:
    profile = profiles.load(NAME)
    assert profile is not None
    variant = Variant.of(FULL_JOB, kind)
    trace = profile.trace(variant, FULL_JOB.seq_len)
    assert trace is not None
    stage, rank = kind.settings.zero.stage, kind.data_parallel - 1
    whole, bare = (
        rank_bytes(rank_model(profile, variant, one), kind.settings, kind.data_parallel, rank)
        for one in (trace, trace.events(with_gradients=stage < 3))
    )
    assert _figures(bare) == _figures(whole)


def _figures(own: RankBytes) -> list[object]:
    """All of them: overlays are compared by identity."""
    found: list[object] = [own.init_peak, own.step_peak, own.persistent]
    for micro in own.micro_steps:
        found += [micro.start, micro.end, micro.after]
        for overlay in (micro.forward, micro.backward):
            found.append(overlay and (overlay.start, overlay.during, overlay.after))
    return found


def test_traces_of_other_lengths_share_their_events() -> None:
    """Linear attention has a trace for every length: DeepSpeed is replayed for one of them."""
    profile = profiles.load("qwen3.5-9b")
    assert profile is not None
    modes = ("none", "full")
    by_mode = [profile.traces[Variant(checkpointing=mode).key] for mode in modes]
    assert all(len(traces) > 1 for traces in by_mode)
    shared = [{id(trace.events(with_gradients=False)) for trace in traces} for traces in by_mode]
    assert [len(events) for events in shared] == [1, 1]
    assert shared[0] != shared[1]
    for trace in by_mode[1]:
        events = trace.events(with_gradients=True)
        assert events.marks_forward == trace.marks_forward
        assert events.marks_backward == trace.marks_backward
        assert events.marks_gradients == trace.marks_gradients


@settings(max_examples=40)
@given(
    st.lists(st.tuples(*[st.integers(0, 1000)] * 3), min_size=1, max_size=12),
    st.data(),
)
def test_the_highest_instant_is_found(marks: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Against the plain definition: a peak before each mark under what held there, a level at it."""
    levels = [min(peak, level) for peak, level, _ in marks]
    activations = Pass(
        peaks=tuple(float(m[0]) for m in marks),
        levels=tuple(map(float, levels)),
        afters=tuple(float(m[2]) for m in marks),
    )
    held = data.draw(st.lists(st.sampled_from([0, 100, 500]), min_size=len(marks), max_size=len(marks)))
    start, after = held[0], (*held[1:], data.draw(st.sampled_from([0, 100])))
    during = [max(b, a) + data.draw(st.sampled_from([0, 0, 300])) for b, a in zip(held, after, strict=True)]
    overlay = Overlay(start=start, during=tuple(during), after=after)
    most = max(
        [activations.peaks[i] + held[i] for i in range(len(marks))]
        + [levels[i] + during[i] for i in range(len(marks)) if during[i] > held[i]]
    )
    assert highest(activations, overlay) == most


# ------------------------------------------------------------------ monotony

stages = st.sampled_from([0, 1, 2, 3])
placements = st.sampled_from([("none", "none"), ("cpu", "none"), ("cpu", "cpu")])


def _legal(stage: int, placement: tuple[str, str]) -> tuple[str, str]:
    optimizer, parameters = placement
    return (optimizer if stage else "none", parameters if stage == 3 else "none")


@settings(max_examples=30)
@given(stages, placements, st.integers(1, 16), st.integers(1, 16), st.sampled_from(["none", "full"]))
def test_memory_never_shrinks_with_the_batch(
    stage: int, placement: tuple[str, str], small: int, more: int, checkpointing: str
) -> None:
    optimizer, parameters = _legal(stage, placement)
    base = strategy(stage, 4, offload=optimizer, offload_param=parameters, checkpointing=checkpointing)
    few = replace(base, settings=replace(base.settings, micro_batch=small))
    many = replace(base, settings=replace(base.settings, micro_batch=small + more))
    assert peak(few) <= peak(many)


@settings(max_examples=30)
@given(stages, placements, st.integers(64, 8192), st.integers(1, 8192), st.sampled_from(["none", "full"]))
def test_memory_never_shrinks_with_the_sequence(
    stage: int, placement: tuple[str, str], short: int, more: int, checkpointing: str
) -> None:
    optimizer, parameters = _legal(stage, placement)
    base = strategy(stage, 4, offload=optimizer, offload_param=parameters, checkpointing=checkpointing)
    assert peak(base, Job(seq_len=short)) <= peak(base, Job(seq_len=short + more))


@settings(max_examples=30)
@given(stages, placements, st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 4))
def test_memory_never_grows_with_gpus(
    stage: int, placement: tuple[str, str], ranks: int, micro_batch: int
) -> None:
    """But for one GPU, which reduces without a copy of the bucket, and whole parameters at the cuts of a
    partition: each rank holds whole those that begin or end in it (up to the two largest)."""
    optimizer, parameters = _legal(stage, placement)

    def at(count: int) -> int:
        chosen = strategy(stage, count, offload=optimizer, offload_param=parameters, micro_batch=micro_batch)
        return peak(chosen)

    profile = profiles.load(NAME)
    assert profile is not None
    sizes = [p.numel for p in profile.parameters]
    # the copy of the bucket (a gather's buffer at stage 3) that one rank alone does not need; alignment
    copies = 2 * SMALL_BUCKET + 4 * max(sizes) if ranks == 1 else 0
    cut = 4 * max(sizes) if stage in (1, 2) else 0
    padding = 64 * len(sizes)
    assert at(2 * ranks) <= at(ranks) + copies + cut + padding


@settings(max_examples=20)
@given(st.sampled_from([2, 4, 8, 16]), st.integers(1, 8), st.sampled_from(["none", "full"]))
def test_memory_never_grows_with_the_stage(ranks: int, micro_batch: int, checkpointing: str) -> None:
    """But for buckets (none at stage 0) and, at stage 3, gathers and a bucket that is never given back."""
    strategies = [
        strategy(stage, ranks, micro_batch=micro_batch, checkpointing=checkpointing) for stage in range(4)
    ]
    found = list(map(peak, strategies))
    profile = profiles.load(NAME)
    assert profile is not None
    bucket = 2 * 2 * SMALL_BUCKET
    gathered = 2 * profile.parameter_count + 2 * 2 * 50_000_000
    assert found[1] <= found[0] + bucket
    assert found[2] <= found[1] + bucket
    assert found[3] <= found[2] + bucket + gathered


def test_gradients_summed_in_fp32_do_not_wait_on_the_host() -> None:
    """zero/stage_1_and_2.py:2144: they stay in one flat buffer on the GPU; in 16 bits every parameter's are
    pinned by themselves, which takes up to twice their size."""
    narrow = strategy(2, accumulation=4, offload="cpu")
    wide = replace(narrow, settings=replace(narrow.settings, grad_accum_dtype="fp32"))
    profile = profiles.load(NAME)
    assert profile is not None
    gradients = 2 * profile.parameter_count
    saved = estimate(narrow).host_bytes_per_node - estimate(wide).host_bytes_per_node
    assert gradients <= saved <= 2 * gradients
    assert estimate(wide).host_bytes_per_node == estimate(strategy(2, offload="cpu")).host_bytes_per_node


def test_weights_are_joined_on_the_gpu_only_where_it_has_room() -> None:
    """Measured, a model of 3.09e9 weights, ZeRO-2 with optimizer offload: a peak of init of 8.62 GiB on each
    of two GPUs with 11 GiB free, 11.6 GiB on a whole one."""
    profile, gpu = profiles.load("qwen2.5-3b"), gpus.load("h100-sxm-80gb")
    zero = ZeroSettings(stage=2, offload_optimizer=Offload(device="cpu"))
    settings = DeepSpeedSettings(precision="bf16", torch_adam=True, zero=zero)
    of = Strategy(settings=settings, data_parallel=2, checkpointing="full")
    small, whole = (
        estimate_traced(profile, Job(seq_len=256), of, Cluster(gpu=card, gpus=2))
        for card in (gpu.with_total_memory(11 << 30), gpu)
    )
    assert abs(small.worst.phases["init"] / 2**30 / 8.62 - 1) < 0.01
    assert abs(whole.worst.phases["init"] / 2**30 / 11.6 - 1) < 0.01
    assert small.min_vram_bytes == whole.min_vram_bytes
    assert small.host_bytes_per_node > whole.host_bytes_per_node - (1 << 20)


def test_zero_3_fetches_ahead_up_to_its_live_parameters() -> None:
    """Measured on two H200s: a peak of 22,310,953,472 bytes, 2.0e9 of them the 1e9 parameters that may be
    live. Each module of a layer fetches another bucket ahead, so that all 28 layers of 47 million count."""
    profile = profiles.load("qwen2.5-1.5b")  # beside the model measured it has biases: 0.6 MB
    zero = ZeroSettings(
        stage=3, prefetch_bucket_size=50_000_000, max_live_parameters=1_000_000_000, max_reuse_distance=0,
        param_persistence_threshold=100_000, reduce_bucket_size=10_000_000,
    )  # fmt: skip
    settings = DeepSpeedSettings(precision="bf16", micro_batch=2, zero=zero)
    of = Strategy(settings=settings, data_parallel=2, checkpointing="full")
    found = estimate_traced(profile, Job(seq_len=2048), of, Cluster(gpu=gpus.load("h200"), gpus=2))
    assert abs(found.worst.peak_allocated_bytes / 22_310_953_472 - 1) < 1e-4


@pytest.mark.parametrize(
    ("trainer", "zero", "said"), [("raw", 3, True), ("raw", 2, False), ("trl", 3, False)]
)
def test_the_dtype_of_adapters_is_said_where_only_the_script_knows_it(
    trainer: str, zero: int, said: bool
) -> None:
    """Measured on two H200s without zero.Init (benchmarks/engines, 10.divided.zero3): 31 % less."""
    estimate = zerokit.estimate(
        model="qwen2.5-7b", gpus=2, gpu="h200", zero=zero, method="lora", seq_len=4096, micro_batch=1,
        trainer=trainer,
    )  # fmt: skip
    assert ("adapters-under-zero-init" in {note.id for note in estimate.notes}) is said


def test_an_evaluation_holds_states_and_its_logits() -> None:
    job = {"model": "llama-3.2-1b", "gpus": 1, "gpu": "h200", "zero": 1, "seq_len": 1024, "micro_batch": 1}
    found = zerokit.estimate(**job, eval_batch=32)
    rank = found.to_dict()["per_rank"][0]
    tokens, parameters = 32 * 1024, 1_235_814_400
    # weights in 16 bits, in fp32, and two moments; logits in 16 bits, in fp32, and their log-softmax
    expected = parameters * (2 + 4 + 8) + tokens * 128_256 * (2 + 4 + 4)
    assert rank["phases"]["eval"] == pytest.approx(expected, rel=0.02)
    assert rank["peak_phase"] == "eval"
    assert sum(found.to_dict()["components_by_phase"]["eval"].values()) == rank["phases"]["eval"]
    without = zerokit.estimate(**job).to_dict()["per_rank"][0]["phases"]
    assert {**rank["phases"], "eval": None} == {**without, "eval": None}


def test_an_evaluation_that_is_not_counted_is_named() -> None:
    found = zerokit.estimate(model="llama-3.2-1b", gpus=2, gpu="h200", pp=2, eval_batch=8)
    assert "evaluation-not-counted" in {note.id for note in found.notes}
    assert "eval" not in found.to_dict()["per_rank"][0]["phases"]
