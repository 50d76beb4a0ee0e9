"""FSDP2's replay against the library itself: figures of ``tests/support/fully_sharded.py``, which the real
``fully_shard`` allocated in rehearsals of ``tests/rehearsal/scripts/fully_sharded.py``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.fully_sharded import CASES, Case
from tests.support.rehearsed_case import PHASES
from zerokit.catalog import gpus, profiles
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.profile import ModelProfile
from zerokit.domain.strategy import RankEstimate, Strategy
from zerokit.memory.estimate import covers, estimate_traced, least_vram_bytes, not_replayed, replayed
from zerokit.memory.fsdp2.weights import groups_of
from zerokit.memory.rank_model import rank_model
from zerokit.units import GIB

WITHIN = 2e-4
_DIVIDED_AND_KEPT = {"reshard_after_forward": False}
BY_TRL: dict[tuple[str, int, int, str, int], tuple[dict[str, bool], tuple[int, int, int, int]]] = {
    ("llama-3.2-1b", 2, 1, "full", 0):
        (_DIVIDED_AND_KEPT, (3_522_311_680, 10_696_835_584, 12_184_602_624, 9_953_800_704)),
    ("llama-3.2-1b", 2, 1, "none", 16):
        ({}, (1_783_832_064, 8_922_035_712, 8_955_436_032, 1_393_317_376)),
    ("llama-3.1-8b", 2, 2, "full", 0):
        ({}, (20_263_233_024, 67_955_495_936, 70_526_503_424, 64_309_548_032)),
    ("llama-3.1-8b", 2, 1, "none", 16):
        (_DIVIDED_AND_KEPT, (10_215_765_504, 50_224_303_616, 49_103_770_624, 8_433_245_696)),
}  # fmt: skip
"""(model, batch, accumulation, checkpointing, rank of LoRA) -> settings, and what TRL 1.16's sft.py allocates
in init, forward, backward and step under FSDP2, its loss in chunks (Triton 3.7): ``zerokit rehearse --gpus 2
--gpu h200 trl/scripts/sft.py --fsdp full_shard --fsdp_config FILE --max_length 2048``, all layers."""


def profile_of(name: str) -> ModelProfile:
    profile = profiles.load(name)
    assert profile is not None
    return profile


def estimate(case: Case) -> RankEstimate:
    profile = profile_of(case.model)
    assert covers(profile, case.job, case.strategy)
    return estimate_traced(profile, case.job, case.strategy, case.cluster).ranks[0]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_peaks_are_those_of_the_library(case: Case) -> None:
    found = estimate(case)
    assert [found.phases[phase] for phase in PHASES] == pytest.approx(CASES[case], rel=WITHIN)
    assert found.peak_allocated_bytes == pytest.approx(max(CASES[case]), rel=WITHIN)


@pytest.mark.parametrize("case", BY_TRL, ids=str)
def test_a_loss_in_chunks_takes_what_trl_takes(case: tuple[str, int, int, str, int]) -> None:
    (model, batch, accumulation, checkpointing, rank), (settings, allocated) = case, BY_TRL[case]
    lora = Lora(rank=rank, targets=("all-linear",), dropout=0.0) if rank else None
    job = Job(seq_len=2048, method="lora" if rank else "full", lora=lora, loss="chunked")
    own = Fsdp2Settings(precision="bf16", micro_batch=batch, gradient_accumulation=accumulation, **settings)
    strategy = Strategy(settings=own, data_parallel=2, checkpointing=checkpointing)
    cluster = Cluster(gpu=gpus.load("h200"), gpus=2)
    found = estimate_traced(profile_of(model), job, strategy, cluster).ranks[0].phases
    assert [found[phase] for phase in PHASES] == pytest.approx(allocated, rel=WITHIN)


def test_ranks_that_share_a_sequence_take_more_of_a_loss_in_chunks_as_trl_does() -> None:
    """Over one rank with as many tokens: rehearsed of TRL 1.16's sft.py without Triton, Llama-3.2-1B on two
    H100s, rank 0, of 4,096 tokens with cp_size 2 and of 2,048 without."""
    job = Job(seq_len=2048, loss="chunked")
    settings = Fsdp2Settings(precision="bf16")
    alone = Strategy(settings=settings, data_parallel=2)
    shared = replace(alone, data_parallel=1, sequence_parallel=2)
    profile, cluster = profile_of("llama-3.2-1b"), Cluster(gpu=gpus.load("h100-sxm-80gb"), gpus=2)
    found = [
        estimate_traced(profile, one, strategy, cluster).ranks[0].phases
        for one, strategy in ((job, alone), (replace(job, seq_len=4096), shared))
    ]
    more = [found[1][phase] - found[0][phase] for phase in ("forward", "backward")]
    rehearsed = [12_865_616_896 - 12_730_694_144, 15_006_734_848 - 14_871_279_616]
    assert more == pytest.approx(rehearsed, abs=2e-4 * 15e9)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_components_sum_to_the_peak_of_each_phase(case: Case) -> None:
    found = estimate(case)
    for phase in PHASES:
        parts = found.phase_components[phase]
        assert sum(parts.values()) == found.phases[phase]
        assert min(parts.values()) > 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_estimate_is_below_its_bound(case: Case) -> None:
    profile = profile_of(case.model)
    estimated = estimate_traced(profile, case.job, case.strategy, case.cluster)
    assert least_vram_bytes(profile, case.job, case.strategy, case.cluster) <= estimated.min_vram_bytes


def test_a_node_holds_the_weights_once_where_one_rank_loads_them() -> None:
    """8,030,261,248 parameters (meta-llama/Llama-3.1-8B) in fp32, without those of the other seven ranks."""
    case = Case("llama-3.1-8b", 8, "--accelerate --tokens 512 --checkpointing --broadcast")
    once = replace(case.strategy, settings=replace(case.settings, loads_once=True))
    held = [
        estimate_traced(profile_of(case.model), case.job, strategy, case.cluster).host_bytes_per_node
        for strategy in (case.strategy, once)
    ]
    assert held[0] - held[1] == 7 * 4 * 8_030_261_248


def test_replicas_take_a_second_communicator() -> None:
    """A rehearsal of this case asks for a card of 9.96 GiB, of which 388 MiB are the communicator's."""
    case = Case("llama-3.2-1b", 8, "--accelerate --replicas 2 --tokens 1024 --checkpointing")
    estimated = estimate_traced(profile_of(case.model), case.job, case.strategy, case.cluster)
    assert estimated.min_vram_bytes == pytest.approx(9.96 * GIB, rel=1e-3)


def test_accelerate_groups_embedding_layers_and_the_tail() -> None:
    """``fsdp2_prepare_model`` (accelerate/utils/fsdp_utils.py, 1.15): tied weights are in the tail."""
    for name, around in (
        ("llama-3.1-8b", [("model.embed_tokens",), ("model.norm", "lm_head")]),
        ("llama-3.2-1b", [("model.norm", "model.embed_tokens", "lm_head")]),
    ):
        profile = profile_of(name)
        case = Case(name, 2, "--accelerate")
        trace = profile.traces["sdpa/16/none"][0]
        model = rank_model(profile, case.variant, trace)
        groups = groups_of(model, case.settings)
        layers = [group for group in groups if ".layers." in group.modules[0]]
        assert len(layers) == profile.hf_config["num_hidden_layers"]
        assert [group.modules for group in groups[len(layers) : -1]] == around
        assert groups[-1].parameters == ()  # nothing is left for the root


def test_notes_say_what_is_taken_for_granted() -> None:
    case = Case("llama-3.2-1b", 4, "--accelerate --accumulation 2")
    notes = estimate_traced(profile_of(case.model), case.job, case.strategy, case.cluster).assumptions
    assert {"fsdp2-groups", "whole-gradients"} <= {note.id for note in notes}
    divided = Case("llama-3.2-1b", 4, "--accumulation 2 --sync-each-batch")
    notes = estimate_traced(profile_of(case.model), case.job, divided.strategy, case.cluster).assumptions
    assert "whole-gradients" not in {note.id for note in notes}


def test_what_was_not_compared_is_refused() -> None:
    case = Case("llama-3.2-1b", 4, "--accelerate")
    job, strategy = case.job, case.strategy
    assert replayed(job, strategy)
    for refused in (
        replace(strategy, settings=replace(case.settings, optimizer="Adafactor")),
        replace(strategy, settings=replace(case.settings, optimizer=None, client_optimizer="adamw_8bit")),
        replace(
            strategy,
            settings=replace(
                case.settings, optimizer=None, client_optimizer="adamw_torch_8bit", offload=True
            ),
        ),
        replace(strategy, settings=replace(case.settings, replicas=3)),
        replace(strategy, data_parallel=2, pipeline_parallel=2),
    ):
        assert not replayed(job, refused)
    assert replayed(replace(job, loss="liger"), strategy)
    by_hand = replace(strategy, settings=replace(case.settings, optimizer="Adafactor"))
    assert not_replayed(job, by_hand) == "optimizer Adafactor"
    eight = Lora(rank=16, targets=("all-linear",), dropout=0.0)
    assert not replayed(replace(job, method="lora", lora=eight, quantization="int8"), strategy)
    assert not replayed(replace(job, method="lora", lora=eight, loss="liger"), strategy)
    assert not covers(profile_of("t5-base"), job, strategy)  # two lists of layers
    own = profile_of(case.model)
    shared = replace(strategy, data_parallel=2, sequence_parallel=2)
    assert replayed(job, shared)
    assert not replayed(replace(job, loss="liger"), shared)
    assert not replayed(job, replace(shared, settings=replace(case.settings, precision="fp32")))
    parts = replace(strategy, data_parallel=2, tensor_parallel=2)
    assert replayed(job, parts)
    for beside in (
        {"data_parallel": 1}, {"sequence_parallel": 2}, {"settings": replace(case.settings, offload=True)},
        {"settings": replace(case.settings, reshard_after_forward=False)},
    ):  # fmt: skip
        assert not replayed(job, replace(parts, **beside))
    for other in (replace(job, method="lora", lora=eight), replace(job, eval_batch=1)):
        assert not replayed(other, parts)
    widening = replace(own, hf_config={**own.hf_config, "model_type": "nemotron_h"})
    assert covers(own, job, strategy) and not covers(widening, job, strategy)
