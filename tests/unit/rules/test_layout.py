"""How a model may be divided over GPUs: every rule of it, provoked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.requests import request_for
from zerokit.catalog import models
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.families import from_config
from zerokit.domain.job import Job
from zerokit.errors import InputError
from zerokit.rules import Setup, layout_violations, violations
from zerokit.rules.layout import LAYOUT_RULES
from zerokit.search.plan import make_plan
from zerokit.search.space import Pins


def setup(model: str = "llama-3.2-3b", job: Job | None = None, **degrees: Any) -> Setup:
    shape = from_config(models.load(model).hf_config, name=model)
    return Setup(
        settings=DeepSpeedSettings(),
        key_value_heads=shape.kv_heads,
        model=shape,
        job=job or Job(seq_len=4000),
        **degrees,
    )


PROVOCATIONS: dict[str, Setup] = {
    "tensor-parallel-divides-heads": setup(tensor_parallel=5),  # of 24
    "tensor-parallel-beyond-heads": setup(tensor_parallel=24),  # of 8
    "tensor-parallel-divides-key-value-heads": setup(tensor_parallel=3),
    "tensor-parallel-with-adapters": setup(tensor_parallel=2, job=Job(method="lora")),
    "tensor-parallel-with-fused-experts": setup("mixtral-8x7b", tensor_parallel=2),
    "tensor-parallel-across-nodes": setup(tensor_parallel=8, gpus_per_node=4),
    "sequence-parallel-needs-causal-model": setup("bert-base", sequence_parallel=2),
    "sequence-parallel-with-eager-attention": setup(sequence_parallel=2, job=Job(attention="eager")),
    "sequence-parallel-divides-heads-and-sequence": setup(sequence_parallel=2, job=Job(seq_len=4001)),
    "sequence-parallel-and-key-value-heads": setup("qwen2.5-14b", sequence_parallel=5),  # 40 and 8
    "sequence-parallel-with-latent-attention": setup("deepseek-v2-lite", sequence_parallel=2),
    "sequence-with-tensor-or-pipeline-parallel": setup(sequence_parallel=2, tensor_parallel=2),
    "context-parallel-needs-causal-model": setup("bert-base", context_parallel=2),
    "context-parallel-attention": setup(context_parallel=2, job=Job(attention="flash_attention_2")),
    "context-parallel-other-masks": setup("gemma-2-9b", context_parallel=2),
    "context-parallel-named-attention": setup("gpt2", context_parallel=2),
    "context-parallel-with-latent-attention": setup("deepseek-v2-lite", context_parallel=2),
    "context-parallel-divides-sequence": setup(context_parallel=2, job=Job(seq_len=4002)),
    "planned-parts-with-context-parallel": setup(planned_parts=2, context_parallel=2),
    "planned-parts-of-the-model": setup("mixtral-8x7b", planned_parts=2),
    "planned-parts-divide-the-model": setup("gemma-3-1b", planned_parts=2),  # one head of keys
    "planned-parts-with-adapters": setup(planned_parts=2, job=Job(method="lora")),
    "planned-parts-without-shards": setup(planned_parts=2, world_size=2),
    "planned-parts-across-nodes": setup(planned_parts=8, gpus_per_node=4),
    "pipeline-deeper-than-the-layers": setup(pipeline_parallel=32),  # of 28
    "pipeline-when-serving": setup(pipeline_parallel=2, job=Job(inference=True)),
}


def test_every_layout_rule_is_provoked() -> None:
    assert set(PROVOCATIONS) == {rule.id for rule in LAYOUT_RULES}


@pytest.mark.parametrize("rule_id", PROVOCATIONS)
def test_a_rule_sees_its_provocation_and_says_it_in_whole_words(rule_id: str) -> None:
    found = {violation.rule.id: violation for violation in layout_violations(PROVOCATIONS[rule_id])}
    assert rule_id in found
    for text in (found[rule_id].message, found[rule_id].fix):
        assert text and "{" not in text


@pytest.mark.parametrize(
    "degrees",
    [
        {},
        {"tensor_parallel": 8},
        {"pipeline_parallel": 28},
        {"sequence_parallel": 8},
        {"context_parallel": 16},
        {"planned_parts": 8},
    ],
    ids=["one GPU", "tensor", "pipeline", "sequence", "context", "planned"],
)
def test_a_legal_layout_breaks_no_rule(degrees: dict[str, int]) -> None:
    assert not list(layout_violations(setup(gpus_per_node=8, **degrees)))


def test_without_a_model_the_rules_of_a_layout_are_not_asked() -> None:
    of_a_file = replace(setup(sequence_parallel=2, tensor_parallel=2), model=None)
    assert not [found for found in violations(of_a_file) if found.rule.scope == "layout"]


def test_3_of_8_key_value_heads_is_not_more_but_does_not_divide() -> None:
    with pytest.raises(InputError, match=r"3 does not divide the model's 8 key-value heads.*1, 2, 4 or 8"):
        make_plan(request_for(model="llama-3.2-3b", count=3, pins=Pins(tensor_parallel=3)))


def test_tensor_parallel_across_nodes_runs_where_it_is_fixed_and_is_not_searched() -> None:
    fixed = request_for(count=8, nodes=4, pins=Pins(tensor_parallel=4))
    assert make_plan(fixed).chosen.strategy.tensor_parallel == 4
    found = make_plan(replace(fixed, pins=Pins(search_tensor=True)))
    assert found.rejected["tensor parallel across nodes"] > 0
    assert found.chosen.strategy.tensor_parallel <= 2
