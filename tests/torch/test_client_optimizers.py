"""What each optimizer that a script makes keeps of a tensor, against the real one from its package."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.trainers_optimizer import trainers_optimizer  # noqa: E402
from zerokit.domain.client_optimizers import CLIENT_OPTIMIZERS  # noqa: E402

_MODULES = {"torch-optimi": "optimi"}
"""Where it is not the package's name."""
_SCALARS = 16


def made(name: str, parameter: Any) -> Any:
    pytest.importorskip("transformers.trainer_optimizer")
    # its kernels are for GPUs; the states are the same
    return trainers_optimizer(name, [parameter], **({"triton": False} if name == "stable_adamw" else {}))


@pytest.mark.parametrize("elements", [3_000, 200_003, 204_800])
@pytest.mark.parametrize("name", CLIENT_OPTIMIZERS)
def test_states_are_those_of_the_real_optimizer(
    name: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = CLIENT_OPTIMIZERS[name]
    pytest.importorskip(_MODULES.get(expected.package, expected.package))
    if "paged_ademamix" in name:  # alone among the paged ones it asks for managed memory on a CPU too
        functional = pytest.importorskip("bitsandbytes.functional")
        monkeypatch.setattr(functional, "get_paged", lambda *shape, **options: torch.empty(shape, **options))
        monkeypatch.setattr(functional, "fill", lambda tensor, value: tensor.fill_(value))
    parameter = torch.nn.Parameter(torch.randn(elements))
    optimizer = made(name, parameter)
    assert type(optimizer).__name__ == expected.class_name
    if not expected.steps_in_init:
        with pytest.raises(Exception, match="train mode"):
            parameter.grad = torch.randn(elements)
            optimizer.step()
        optimizer.train()
    parameter.grad = torch.randn(elements)
    optimizer.step()
    states = [value for value in optimizer.state[parameter].values() if isinstance(value, torch.Tensor)]
    parts = [getattr(one, name) for one in states for name in getattr(one, "tensor_attrs", ())]
    kept = {
        value.untyped_storage()._cdata: value.untyped_storage().nbytes()
        for value in [*parts, *(one for one in states if not hasattr(one, "tensor_attrs"))]
    }
    predicted = expected.device_bytes(elements) + expected.managed_bytes(elements)
    assert 0 <= sum(kept.values()) - predicted - expected.code_bytes([elements]) <= _SCALARS
    # managed memory is for GPUs: here the same tensors are where all others are
    assert bool(expected.managed_bytes(elements)) == (expected.paged and elements >= 100_000)
    assert bool(getattr(optimizer, "is_paged", False)) == expected.paged
