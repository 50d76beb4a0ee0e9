"""Every rule, against DeepSpeed itself: what the table says raises does, what it calls silent passes."""

from __future__ import annotations

import pytest

from tests.deepspeed.rule_provocations import PROVOCATIONS, Provocation, cases, z
from tests.support.deep import ask
from zerokit.domain.deepspeed_settings import (
    DEEPSPEED_VERSION,
    DeepSpeedSettings,
    Offload,
    ZeroSettings,
    from_config,
)
from zerokit.domain.strategy import Strategy
from zerokit.linter.deepspeed.deep import DeepResult
from zerokit.linter.deepspeed.tables import minor
from zerokit.rules import Setup, all_rules, first_violation, rule, violations


@pytest.fixture(scope="module")
def answers() -> dict[str, DeepResult]:
    """What DeepSpeed says to every provocation, asked in one process."""
    pytest.importorskip("deepspeed")
    return dict(zip(PROVOCATIONS, ask(list(cases().values())), strict=True))


def broken_by(provocation: Provocation) -> set[str]:
    config = provocation.config
    plain = {
        key: value for key, value in config.items() if not isinstance(config.get("zero_optimization"), bool)
    }
    setup = Setup(
        settings=from_config(plain),
        raw=config,
        # a contradiction is what is left when the number of ranks is not known
        world_size=None if config.get("train_batch_size") == 5 else provocation.world_size,
        tensor_parallel=provocation.tensor_parallel,
        pipeline_parallel=provocation.pipeline_parallel,
        **provocation.more,
    )
    return {violation.rule.id for violation in violations(setup)}


def test_every_rule_is_provoked() -> None:
    assert set(PROVOCATIONS) == {candidate.id for candidate in all_rules() if candidate.scope != "layout"}
    assert len({candidate.id for candidate in all_rules()}) == len(all_rules())


@pytest.mark.parametrize("rule_id", PROVOCATIONS)
def test_rule_sees_its_provocation(rule_id: str) -> None:
    assert rule_id in broken_by(PROVOCATIONS[rule_id])


@pytest.mark.parametrize("rule_id", PROVOCATIONS)
def test_deepspeed_does_what_the_rule_says(rule_id: str, answers: dict[str, DeepResult]) -> None:
    provocation, answer = PROVOCATIONS[rule_id], answers[rule_id]
    if not rule(rule_id).holds_in(minor(DEEPSPEED_VERSION)):
        assert provocation.says not in str(answer.error)
    elif rule(rule_id).silent or provocation.says is None:
        assert answer.ok, answer.error
    else:
        assert not answer.ok
        assert provocation.says.lower() in str(answer.error).lower()


def test_a_plain_configuration_breaks_no_rule(answers: dict[str, DeepResult]) -> None:
    for stage in range(4):
        assert not broken_by(z(stage))


def test_texts_of_every_rule_are_complete() -> None:
    for provocation in PROVOCATIONS.values():
        setup = Setup(
            settings=from_config(
                {
                    k: v
                    for k, v in provocation.config.items()
                    if not isinstance(v, bool) or k != "zero_optimization"
                }
            ),
            raw=provocation.config,
            world_size=provocation.world_size,
            tensor_parallel=provocation.tensor_parallel,
            pipeline_parallel=provocation.pipeline_parallel,
            **provocation.more,
        )
        for violation in violations(setup):
            assert (
                violation.message
                and violation.fix
                and violation.rule.source.startswith(("deepspeed/", "deepspeed-", "accelerate/"))
            )
            for text in (violation.message, violation.fix, violation.key):
                assert not any("{" + name + "}" in text for name in violation.details), text


def test_sources_still_say_it() -> None:
    """The lines exist in the installed DeepSpeed, when it is the version the rules were read from."""
    deepspeed = pytest.importorskip("deepspeed")
    from pathlib import Path

    if deepspeed.__version__ != DEEPSPEED_VERSION:
        pytest.skip(f"rules were read from {DEEPSPEED_VERSION}")
    root = Path(deepspeed.__file__).parents[1]
    for candidate in all_rules():
        file, _, line = candidate.source.rpartition(":")
        if not file.startswith("deepspeed/"):
            continue
        lines = (root / file).read_text().splitlines()
        assert int(line) <= len(lines) and lines[int(line) - 1].strip(), candidate.id


def test_first_violation_is_for_planners() -> None:
    """Settings and degrees are enough: no dictionary."""

    def strategy(stage: int, **degrees: int) -> Strategy:
        return Strategy(
            settings=DeepSpeedSettings(zero=ZeroSettings(stage=stage)), data_parallel=2, **degrees
        )

    assert first_violation(strategy(3)) is None
    found = first_violation(strategy(2, pipeline_parallel=2))
    assert found is not None and found.rule.id == "pipeline-with-stage-2"
    found = first_violation(strategy(1, tensor_parallel=8), key_value_heads=4)
    assert found is not None and "at most 4" in found.fix
    offload = ZeroSettings(stage=2, offload_param=Offload(device="cpu"))
    found = first_violation(Strategy(settings=DeepSpeedSettings(zero=offload), data_parallel=1))
    assert found is not None and found.rule.silent
