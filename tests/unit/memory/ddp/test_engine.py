"""Training without an engine against rehearsals of it: ``tests/support/plain_training.py``; here those whose
activations are of the catalogue's traces, the others are in ``tests/torch/test_plain_training.py``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.plain_training import CASES, Case
from tests.support.rehearsed_case import PHASES
from zerokit.catalog import profiles
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile
from zerokit.domain.strategy import Strategy
from zerokit.memory.estimate import covers, estimate_traced, least_vram_bytes, not_replayed

WITHIN = 1e-4


def profile_of(name: str) -> ModelProfile:
    profile = profiles.load(name)
    assert profile is not None
    return profile


STORED = [case for case in CASES if covers(profile_of(case.model), case.job, case.strategy)]


def test_some_cases_are_of_the_catalogues_traces() -> None:
    assert len(STORED) >= 8


@pytest.mark.parametrize("case", STORED, ids=str)
def test_peaks_are_those_of_the_rehearsal(case: Case) -> None:
    profile = profile_of(case.model)
    estimated = estimate_traced(profile, case.job, case.strategy, case.cluster)
    found = estimated.ranks[0]
    assert [found.phases[phase] for phase in PHASES] == pytest.approx(CASES[case], rel=WITHIN)
    for phase in PHASES:
        parts = found.phase_components[phase]
        assert sum(parts.values()) == found.phases[phase]
        assert min(parts.values()) > 0
    assert least_vram_bytes(profile, case.job, case.strategy, case.cluster) <= estimated.min_vram_bytes


def test_norms_with_a_bias_need_a_trace_under_autocast() -> None:
    """Autocast computes ``layer_norm`` in fp32 (aten/src/ATen/autocast_mode.h)."""
    case = Case("gpt2", 1, "--tokens 1024 --batch 4")
    assert not covers(profile_of("gpt2"), case.job, case.strategy)
    assert covers(profile_of("gpt2"), case.job, Case("gpt2", 1, "--mixed no").strategy)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"precision": "fp16"}, "weights in fp16, which a scaler of gradients refuses"),
        ({"optimizer": "Adagrad"}, "optimizer Adagrad"),
        ({"client_optimizer": "stable_adamw", "optimizer": None}, "optimizer stable_adamw"),
    ],
)
def test_settings_that_were_not_compared_are_refused(change: dict[str, str | None], words: str) -> None:
    case = Case("llama-3.2-1b", 1)
    assert not not_replayed(case.job, case.strategy)
    strategy = replace(case.strategy, settings=replace(case.settings, **change))
    assert not_replayed(case.job, strategy) == words


def test_jobs_that_were_not_compared_are_refused() -> None:
    case = Case("llama-3.2-1b", 1, "--lora 16 --bits 4 --dtype float32")
    assert not_replayed(case.job, case.strategy) == "quantised weights beside others in fp32"
    divided = Strategy(settings=case.settings, data_parallel=1, tensor_parallel=2)
    assert not_replayed(Job(seq_len=512), divided) == "ranks that are not data-parallel alone"
