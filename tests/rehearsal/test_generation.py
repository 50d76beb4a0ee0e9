"""Few tokens and few sampling steps stand for all: a cache that is stretched is as one that grew."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from zerokit.rehearsal.process.adapters import generation  # noqa: E402

MIXED = ["sliding_attention", "full_attention"]


def grown(cache: Any, tokens: int) -> None:
    """The prompt of 5, then one after the other."""
    for count in (5, *[1] * (tokens - 5)):
        for layer in range(2):
            cache.update(torch.zeros(3, 2, count, 8), torch.zeros(3, 2, count, 8), layer)


def facts(cache: Any) -> list[Any]:
    return [
        (tuple(layer.keys.shape), layer.values.untyped_storage().nbytes(), layer.get_mask_sizes(1))
        for layer in cache.layers
    ]


@pytest.mark.parametrize("tokens", [7, 15, 16, 17, 40])
def test_layers_with_a_window_keep_what_the_window_holds(tokens: int) -> None:
    config = transformers.Gemma2Config(num_hidden_layers=2, sliding_window=16, layer_types=MIXED)
    expected, stretched = transformers.DynamicCache(config=config), transformers.DynamicCache(config=config)
    grown(expected, tokens)
    grown(stretched, 6)
    assert generation.can_stretch(stretched)
    generation.stretch(stretched, tokens)
    assert facts(stretched) == facts(expected)
    assert stretched.get_seq_length() == tokens


def test_a_cache_of_another_kind_is_not_stretched() -> None:
    config = transformers.Gemma2Config(num_hidden_layers=2, sliding_window=16, layer_types=MIXED)
    assert not generation.can_stretch(transformers.StaticCache(config=config, max_cache_len=32))
    assert not generation.can_stretch(None)


def test_a_scheduler_makes_few_steps_and_keeps_its_other_arguments() -> None:
    stubbed: list[str] = []
    context: Any = SimpleNamespace(machine=SimpleNamespace(stub=stubbed.append))
    module = ModuleType("diffusers.schedulers.scheduling_utils")
    module.SchedulerMixin = type("SchedulerMixin", (), {})  # type: ignore[attr-defined]
    generation.sampling(context, module)

    class Scheduler(module.SchedulerMixin):  # type: ignore[name-defined,misc]
        def set_timesteps(self, num_inference_steps: int | None = None, device: str = "cpu") -> Any:
            return num_inference_steps, device

    assert Scheduler().set_timesteps(1000, device="cuda") == (4, "cuda")
    assert Scheduler().set_timesteps(3) == (3, "cpu")
    assert Scheduler().set_timesteps() == (None, "cpu")
    assert stubbed == ["sampling of 1000 steps: 4 are made"]
