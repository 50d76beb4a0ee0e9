"""The DeepSpeed file in the form that a script expects."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from zerokit.launcher.adapt_config import Adapted, adapt
from zerokit.script.reader import ScriptFacts, read_script

CONFIG: dict[str, Any] = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "loss_scale": 0},
    "bf16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "nvme", "nvme_path": "/n"},
        "zero_quantized_weights": True,
    },
    "aio": {"block_size": 1},
}


def adapted(
    style: str,
    device: str = "cuda",
    ranks: int = 2,
    source: str = "",
    precision: str = "fp16",
    cpu_has_bf16: bool = True,
) -> Adapted:
    facts = ScriptFacts(path=Path("t.py"))
    if "DummyOptim" in source:
        facts.mentions.add("DummyOptim")
    config = CONFIG | {name: {"enabled": name == precision} for name in ("bf16",) if precision != "fp16"}
    if precision != "fp16":
        config.pop("fp16")
    before = copy.deepcopy(config)
    result = adapt(
        config,
        style=style,
        device=device,
        ranks=ranks,
        planned_ranks=2,
        facts=facts,
        cpu_has_bf16=cpu_has_bf16,
    )
    assert before == config  # the plan itself is left alone
    return result


def test_a_raw_script_gets_the_plan_as_it_is() -> None:
    result = adapted("raw")
    assert result.config == CONFIG and result.changes == []


def test_on_cpu_nothing_is_compiled_and_fp16_is_gone() -> None:
    config = adapted("raw", "cpu").config
    assert config["fp16"] == {"enabled": False} and config["bf16"] == {"enabled": True}
    assert config["optimizer"]["params"]["torch_adam"] is True
    assert config["zero_optimization"] == {"stage": 3, "zero_quantized_weights": False}
    assert "aio" not in config


def test_cpus_without_bf16_train_in_fp32_instead_of_fp16() -> None:
    result = adapted("raw", "cpu", cpu_has_bf16=False)
    assert result.config["fp16"] == {"enabled": False} and result.config["bf16"] == {"enabled": False}
    assert any("fp16 → fp32" in change and "twice the planned bytes" in change for change in result.changes)


def test_a_bf16_plan_stays_bf16_and_slow_cpus_are_warned_of() -> None:
    for has in (True, False):
        result = adapted("raw", "cpu", precision="bf16", cpu_has_bf16=has)
        assert result.config["bf16"] == {"enabled": True}
        assert any("emulate bf16" in warning for warning in result.warnings) != has


def test_every_change_is_told() -> None:
    told = " ".join(adapted("raw", "cpu").changes)
    for word in ("fp16", "torch_adam", "offload_optimizer", "offload_param", "zero_quantized_weights", "aio"):
        assert word in told


def test_another_number_of_ranks() -> None:
    result = adapted("raw", ranks=3)
    assert "train_batch_size" not in result.config
    assert "3" in result.changes[0] and "global batch" in result.changes[0]


def test_accelerate_makes_its_own_optimizer() -> None:
    assert "optimizer" not in adapted("accelerate").config
    assert "optimizer" in adapted("accelerate", source="DummyOptim").config


def test_the_trainer_fills() -> None:
    result = adapted("trainer")
    config = result.config
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        assert config[name] == "auto"
    assert config["optimizer"]["params"] == {"lr": "auto", "betas": "auto", "eps": "auto"}
    assert config["fp16"]["enabled"] == "auto" and config["bf16"]["enabled"] == "auto"
    assert config["zero_optimization"]["stage"] == 3


DUMMIES = "from accelerate import Accelerator\nfrom accelerate.utils import DummyOptim, DummyScheduler\n"


@pytest.mark.parametrize(
    ("source", "optimizer", "scheduler"),
    [
        # accelerate's examples/by_feature/deepspeed_with_config_support.py
        ("a = DummyOptim if 'optimizer' in p.deepspeed_config else A\nDummyScheduler(o)\n", False, False),
        ("DummyOptim(p)\nDummyScheduler(o, total_num_steps=5)\n", True, True),
        ("DummyOptim(p)\nDummyScheduler(o, lr_scheduler_callable=f)\n", True, False),
    ],
)  # fmt: skip
def test_a_plans_optimizer_beside_accelerates_dummies(
    tmp_path: Path, source: str, optimizer: bool, scheduler: bool
) -> None:
    """accelerate/accelerator.py refuses a DummyOptim beside a real scheduler, and a DummyScheduler alone."""
    (tmp_path / "t.py").write_text(DUMMIES + source)
    facts = read_script(tmp_path / "t.py", None)
    result = adapt(CONFIG, style="accelerate", device="cuda", ranks=2, planned_ranks=2, facts=facts)
    assert ("optimizer" in result.config, "scheduler" in result.config) == (optimizer, scheduler)
    assert bool(result.changes) == (not optimizer or scheduler)
