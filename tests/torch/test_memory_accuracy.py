"""The memory model against measured H200 runs: a few of each kind here, all by benchmarks/accuracy.py.

Models are traced from the rows' own configs: nothing comes from a committed profile.
"""

from __future__ import annotations

import pytest

from benchmarks import accuracy
from benchmarks.accuracy import error
from tests.support.packages import needs
from zerokit.domain.profile import ModelProfile, Variant

needs("torch")
needs("transformers")

CASES = {case.name: case for case in accuracy.read_cases()}

# of two models with one trace each: stages 0 to 3, offload, long sequences, accumulation, two precisions of
# weights as loaded, one GPU and eight
SHOWN = [
    "llama3.2-1b.w1.z2.b2.s2048.ck",
    "llama3.2-1b.w1.z3.b2.s2048.ck",
    "llama3.2-1b.w1.z2.b2.s2048.ck.off_opt=cpu",
    "llama3.2-1b.w1.z3.b2.s2048.ck.off_opt=cpu.off_par=cpu",
    "llama3.2-1b.w1.z2.b1.s16384.ck",
    "qwen2.5-0.5b.w1.z0.b4.s1024",
    "qwen2.5-0.5b.w1.z2.b2.s4096",
    "qwen2.5-0.5b.w1.z1.b2.s1024.g4",
    "qwen2.5-0.5b.w1.z2.b2.s1024.g4.fp16",
]
ONE_TRACE_EACH = [
    "llama3.1-8b.w8.z3.b2.s4096.ck",
    "llama3.2-3b.w2.z2.b2.s2048.ck.g4",
    "llama2-7b.w4.z3.b2.s2048.ck",
    "gpt2-large.w1.z2.b4.s1024.fp16",
    "bert-large.w1.z2.b16.s512",
    "tinyllama-1.1b.w1.z2.b4.s2048.eager",
    "tinyllama-1.1b.w1.z2.b4.s2048.ck.reent",
    "mistral-7b.w4.z1.b1.s2048.tp=4",
    "llama3.1-8b.w4.z3.b1.s8192.ck.lora",
]


@pytest.fixture(scope="session")
def profiles() -> dict[tuple[str, str], ModelProfile]:
    return {}


def judged(name: str, profiles: dict[tuple[str, str], ModelProfile]) -> accuracy.Judged:
    case = CASES[name]
    key = (name.split(".w")[0], Variant.of(case.job, case.strategy).key)
    if key not in profiles:
        profiles[key] = accuracy.profile_of(case)
    return accuracy.judge(case, profiles[key])


def hold(row: accuracy.Judged) -> None:
    assert abs(row.peak_error) <= 0.005, row
    for pair in (row.forward, row.backward, row.step, row.level_after_forward):
        assert abs(error(pair)) <= 0.01, row
    if row.activations is not None:
        assert abs(error(row.activations)) <= 0.005, row
    assert abs(error(row.init)) <= 0.01, row
    if row.host is not None:
        assert abs(error(row.host)) <= 0.1, row


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name.startswith("qwen") else ()) for name in SHOWN]
)
def test_measured_run(name: str, profiles: dict[tuple[str, str], ModelProfile]) -> None:
    hold(judged(name, profiles))


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_TRACE_EACH)
def test_measured_run_of_another_model(name: str, profiles: dict[tuple[str, str], ModelProfile]) -> None:
    hold(judged(name, profiles))


def test_the_rows_come_with_their_source() -> None:
    text = (accuracy.DATA.parent / "README.md").read_text()
    assert "DeepSpeed 0.19.8" in text
    assert "Terms" in text
    assert len(CASES) == 45
