"""What rooms outside an engine's own ask of its settings."""

from __future__ import annotations

import pytest

from zerokit.domain.deepspeed_settings import deepspeed, from_config
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TrainingSettings


@pytest.mark.parametrize(
    ("stage", "divided"),
    [
        (0, (False, False, False)),
        (1, (False, False, True)),
        (2, (False, True, True)),
        (3, (True, True, True)),
    ],
)
def test_each_zero_stage_divides_one_thing_more(stage: int, divided: tuple[bool, bool, bool]) -> None:
    """ZeRO, arXiv:1910.02054, section 5: states, then gradients, then weights."""
    settings = from_config(
        {
            "zero_optimization": {
                "stage": stage,
                "offload_optimizer": {"device": "nvme"},
                "offload_param": {"device": "cpu"},
            }
        }
    )
    assert (settings.divides_weights, settings.divides_gradients, settings.divides_states) == divided
    assert (settings.optimizer_device, settings.weights_device) == ("nvme", "cpu")
    assert (settings.title, settings.zero_stage, settings.family) == (
        f"ZeRO-{stage}",
        stage,
        (stage, "nvme", "cpu"),
    )
    assert Strategy(settings=settings, data_parallel=2).engine == "deepspeed"
    assert deepspeed(settings) is settings


@pytest.mark.parametrize(("offload", "device"), [(False, "none"), (True, "cpu")])
def test_fsdp2_divides_all_and_offloads_all_or_nothing(offload: bool, device: str) -> None:
    """fully_shard's documentation: CPUOffloadPolicy moves weights, gradients and states."""
    settings = Fsdp2Settings(precision="bf16", offload=offload)
    assert settings.divides_weights and settings.divides_gradients and settings.divides_states
    assert (settings.optimizer_device, settings.weights_device) == (device, device)
    assert settings.offloads == offload and settings.zero_stage is None
    with pytest.raises(TypeError, match="settings of fsdp2, not of DeepSpeed"):
        deepspeed(settings)
    assert (settings.state_element_bytes, Fsdp2Settings(master_bytes=2).state_element_bytes) == (4, 2)
    assert (settings.engine, settings.parameter_bytes, Fsdp2Settings().parameter_bytes) == ("fsdp2", 2, 4)


def test_settings_of_no_engine_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        TrainingSettings()  # type: ignore[abstract]
