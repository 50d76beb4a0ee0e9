"""The committed lists of keys are those of the installed DeepSpeed and Accelerate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION
from zerokit.linter.accelerate.deepspeed_block import lint_pair
from zerokit.linter.accelerate.keys import key_list as accelerate_list
from zerokit.linter.accelerate.top_level import lint_accelerate
from zerokit.linter.deepspeed.file import Context, lint_deepspeed
from zerokit.linter.deepspeed.tables import key_list
from zerokit.linter.files import check_files
from zerokit.linter.fix import fix_file
from zerokit.rules import known
from zerokit.rules.removed import REMOVED_RULES
from zerokit.rules.types import ACCELERATE_VERSION
from zerokit.strictload import parse_json


def test_deepspeed_list_is_current() -> None:
    deepspeed = pytest.importorskip("deepspeed")
    if deepspeed.__version__ != DEEPSPEED_VERSION:
        pytest.skip(f"DeepSpeed {deepspeed.__version__}; the list is of {DEEPSPEED_VERSION}")
    from tools.deepspeed_keys import generate

    assert json.loads(json.dumps(generate())) == key_list(), "run: python -m tools.deepspeed_keys"


def test_accelerate_list_is_current() -> None:
    accelerate = pytest.importorskip("accelerate")
    if accelerate.__version__ != ACCELERATE_VERSION:
        pytest.skip(f"Accelerate {accelerate.__version__}; the list is of {ACCELERATE_VERSION}")
    from tools.deepspeed_keys import generate_accelerate

    assert generate_accelerate() == accelerate_list(), "run: python -m tools.deepspeed_keys"


def test_known_names_are_those_of_the_installed_deepspeed() -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    import torch
    from deepspeed.runtime.lr_schedules import VALID_LR_SCHEDULES
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

    assert {name.lower() for name in config.DEEPSPEED_OPTIMIZERS} == known.DEEPSPEED_OPTIMIZERS
    assert set(VALID_LR_SCHEDULES) == known.SCHEDULERS
    tested = " ".join(kind.__name__.lower() for kind in ZERO_SUPPORTED_OPTIMIZERS)
    # MuonWithAuxAdam joins the list when the engine starts
    assert all(name in tested for name in known.ZERO_TESTED_OPTIMIZERS - {"muon"})
    assert all(hasattr(torch.optim, name) for name in known.TORCH_OPTIMIZERS.values())
    missing = {name for name in vars(torch.optim) if isinstance(getattr(torch.optim, name), type)}
    missing -= {*known.TORCH_OPTIMIZERS.values(), "Optimizer"}
    assert {name.lower() for name in missing} <= known.DEEPSPEED_OPTIMIZERS, missing


def test_every_removed_feature_has_its_rule() -> None:
    ruled = {rule.key for rule in REMOVED_RULES}
    removed = key_list()["removed"]
    assert set(removed["top_level"]) <= ruled
    assert {f"zero_optimization.{key}" for key in removed["zero_optimization"]} <= ruled


WORDS = {
    "true": True,
    "Yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("block", ["zero_optimization", "fp16", "comms_logger", "hybrid_engine"])
def test_text_that_deepspeeds_classes_read_is_an_error_of_the_frameworks_alone(block: str, word: str) -> None:
    """By ``deepspeed.initialize`` the text is read as is meant."""
    config_module = pytest.importorskip("deepspeed.runtime.config")
    keys = {"zero_optimization": "overlap_comm", "comms_logger": "verbose"}
    key = keys.get(block, "enabled")
    config = {"train_micro_batch_size_per_gpu": 1, block: {key: word}}
    document = parse_json(json.dumps(config), strict=False)
    for reader, severity in (("raw", "note"), ("trainer", "error"), ("accelerate", "error")):
        found = lint_deepspeed(document, Context(world_size=1, readers=frozenset({reader})))
        (text,) = (finding for finding in found if finding.rule == "boolean-as-text")
        assert text.severity == severity and text.fix == f"write {str(WORDS[word]).lower()} without quotes"
        assert ("Accelerate" in text.message) is (reader != "raw")
    read = config_module.DeepSpeedConfig(config)
    classes = {
        "zero_optimization": lambda: read.zero_config.overlap_comm,
        "fp16": lambda: read.float16_config.enabled,
        "comms_logger": lambda: read.comms_config.comms_logger.verbose,
        "hybrid_engine": lambda: read.hybrid_engine.enabled,
    }
    assert classes[block]() is WORDS[word]


@pytest.mark.parametrize(
    ("config", "severity"),
    [
        ({"zero_optimization": {"stage": "2"}}, "note"),
        ({"zero_optimization": {"reduce_bucket_size": "5000"}}, "note"),
        ({"zero_optimization": {"reduce_bucket_size": "many"}}, "error"),
        ({"zero_optimization": {"overlap_comm": "perhaps"}}, "error"),
        ({"gradient_clipping": "1.0"}, "error"),
        ({"wall_clock_breakdown": "true"}, "warning"),  # any text is true
        ({"wall_clock_breakdown": "false"}, "error"),
        ({"aio": {"single_submit": "true"}}, "error"),  # compiled code takes no text
    ],
)
def test_what_text_does_in_a_script_of_its_own(config: dict[str, Any], severity: str) -> None:
    document = parse_json(json.dumps({"train_micro_batch_size_per_gpu": 1, **config}), strict=False)
    found = lint_deepspeed(document, Context(world_size=1, readers=frozenset({"raw"})))
    of_text = [finding.severity for finding in found if finding.rule.endswith(("-as-text", "wrong-kind"))]
    assert of_text == [severity]


known_names = st.sampled_from(
    sorted({key for block in key_list()["blocks"].values() for key in block["keys"]} | {"lr", "betas", "x"})
)
scalars = st.sampled_from([True, False, None, 0, 1, 3, -1, 2.5, 5e8, "auto", "cpu", "3", "true", "x", [], {}])
zero_keys = st.sampled_from(sorted(key_list()["blocks"]["zero_optimization"]["keys"]))
offload_keys = st.sampled_from(sorted(key_list()["blocks"]["zero_optimization.offload_optimizer"]["keys"]))
top_keys = st.sampled_from(
    ["train_batch_size", "gradient_accumulation_steps", "gradient_clipping", "prescale_gradients",
     "communication_data_type", "fp16", "bf16", "steps_per_print", "wall_clock_breakdown", "data_types",
     "tensor_parallel", "zero_optimization", "aio", "activation_checkpointing", "gradient_allreduce_op"]
)  # fmt: skip


@st.composite
def odd_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Configurations with a few odd values in known keys."""
    zero: dict[str, Any] = {"stage": draw(st.integers(0, 3))}
    for _ in range(draw(st.integers(0, 2))):
        zero[draw(zero_keys)] = draw(scalars)
    if draw(st.booleans()):
        zero["offload_optimizer"] = {"device": "cpu", draw(offload_keys): draw(scalars)}
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero}
    for _ in range(draw(st.integers(0, 2))):
        config[draw(top_keys)] = draw(scalars)
    return config


@given(odd_configs())
@hypothesis_settings(max_examples=400, deadline=None)
def test_what_is_called_clean_deepspeeds_classes_accept(config: dict[str, Any]) -> None:
    config_module = pytest.importorskip("deepspeed.runtime.config")
    document = parse_json(json.dumps(config), strict=False)
    findings = lint_deepspeed(document, Context(world_size=1))
    if any(finding.severity != "note" for finding in findings):
        return
    # what a consumer would fill is not DeepSpeed's to read
    kept = {key: value for key, value in config.items() if value != "auto"}
    config_module.DeepSpeedConfig(kept)


any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**320), 10**320)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["auto", "cpu", "²", "nvme", "AdamW", "WarmupLR", "5e8", "inf", "nan", "1" * 400, "true", ""]
    )
    | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(known_names, children, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(known_names, any_json, max_size=5))
@hypothesis_settings(max_examples=400, deadline=None)
def test_any_value_under_any_known_key_is_linted(config: dict[str, Any]) -> None:
    document = parse_json(json.dumps(config), strict=False)
    for context in (Context(), Context(world_size=8, gpus_per_node=4, key_value_heads=2)):
        for finding in lint_deepspeed(document, context):
            assert finding.message and finding.location.line == 1
            json.dumps(finding.as_json())


accelerate_names = st.sampled_from(
    sorted({name for names in accelerate_list().values() if isinstance(names, list) for name in names})
)
accelerate_blocks = st.dictionaries(accelerate_names, any_json, max_size=4)


@pytest.mark.slow
@given(
    st.fixed_dictionaries(
        {"distributed_type": st.just("DEEPSPEED") | any_json},
        optional={
            "deepspeed_config": accelerate_blocks | any_json,
            "parallelism_config": accelerate_blocks | any_json,
            "num_processes": st.integers(-1, 9) | any_json,
        },
    ),
    accelerate_blocks,
    st.dictionaries(known_names, any_json, max_size=2),
)
@hypothesis_settings(max_examples=300, deadline=None)
def test_any_value_in_an_accelerate_yaml_is_linted(
    block: dict[str, Any], more: dict[str, Any], config: dict[str, Any]
) -> None:
    # JSON is YAML, and its long numbers are refused by the reader of YAML alone
    document = parse_json(json.dumps({**more, **block}), "a.yaml", strict=False)
    for finding in (*lint_accelerate(document, 4), *lint_pair(document, config, "ds.json")):
        assert finding.message and len(finding.message) < 400
        json.dumps(finding.as_json())


@given(odd_configs())
@hypothesis_settings(max_examples=200, deadline=None)
def test_lint_never_fails_and_every_finding_is_complete(config: dict[str, Any]) -> None:
    for finding in lint_deepspeed(parse_json(json.dumps(config, indent=1), strict=False), Context()):
        assert finding.message and finding.rule and finding.location.line >= 1
        assert "{" not in finding.rule


def test_a_misplaced_key_that_stands_in_its_place_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 1, "fp16": {"enabled": true, "loss_scale": 0}, "loss_scale": 8}')
    (file,) = check_files([str(path)])
    (finding,) = [finding for finding in file.findings if finding.rule == "misplaced-key"]
    assert finding.fix == "remove it; fp16 has it, with 0"
    assert fix_file(file) and "8" not in path.read_text()
