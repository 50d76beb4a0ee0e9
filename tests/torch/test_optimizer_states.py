"""What optimizers keep and allocate, against torch's own on the flat partition that ZeRO hands them."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_iter  # noqa: E402

from zerokit.catalog import models, profiles  # noqa: E402
from zerokit.domain.client_optimizers import CLIENT_OPTIMIZERS  # noqa: E402
from zerokit.domain.deepspeed_settings import DeepSpeedSettings  # noqa: E402
from zerokit.domain.profile import Variant  # noqa: E402
from zerokit.errors import InputError  # noqa: E402
from zerokit.memory.rank_model import rank_model  # noqa: E402
from zerokit.memory.replay.model_states import (  # noqa: E402
    optimizer_values,
    second_state_bytes,
    step_temporary_bytes,
)
from zerokit.planner.request import resolve  # noqa: E402
from zerokit.rules.known import NOT_MODELLED, TAKEN_AS  # noqa: E402

ELEMENTS = 100_000
ALWAYS_TORCH = (
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adamax",
    "ASGD",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)


class Peak(TorchDispatchMode):
    """The most bytes of storage made while active that live at once."""

    def __init__(self, known: list[Any]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in self.known:
                storage = leaf.untyped_storage()
                self.known.add(storage._cdata)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._died, storage._cdata, storage.nbytes())
        return result

    def _died(self, address: int, size: int) -> None:
        self.known.discard(address)
        self.live -= size


def state_tensors(optimizer: Any, parameter: Any) -> list[Any]:
    return [value for value in optimizer.state[parameter].values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("name", ALWAYS_TORCH)
def test_states_and_temporaries_are_those_of_torch(name: str) -> None:
    parameter = torch.nn.Parameter(torch.randn(ELEMENTS))
    optimizer = getattr(torch.optim, name)([parameter], lr=1e-3, foreach=True)
    for _ in range(2):  # states come with the first step
        parameter.grad = torch.randn(ELEMENTS)
        states = state_tensors(optimizer, parameter)
        with Peak([parameter, parameter.grad, *states]) as peak:
            optimizer.step()
    settings = DeepSpeedSettings(optimizer=name)
    kept = sum(tensor.numel() for tensor in state_tensors(optimizer, parameter)) / ELEMENTS
    assert optimizer_values(settings) == pytest.approx(kept, abs=0.01)
    temporaries = peak.peak / 4 / ELEMENTS
    counted = step_temporary_bytes(settings, [ELEMENTS], 4 * ELEMENTS) / 4 / ELEMENTS
    assert temporaries - 0.01 <= counted < temporaries + 1


def test_every_name_of_the_trainer_is_taken_as_another_or_refused_by_name() -> None:
    transformers = pytest.importorskip("transformers")
    names = [str(one.value) for one in transformers.training_args.OptimizerNames]
    hardware = {"model": "gpt2", "gpus": "1", "gpu": "h200"}
    for name in names:
        if name in NOT_MODELLED:
            with pytest.raises(InputError) as caught:
                resolve({**hardware, "optimizer": name})
            assert f"{name}: not modelled: {NOT_MODELLED[name]};" in str(caught.value)
            assert caught.value.exit_code == 2
        else:
            request = resolve({**hardware, "optimizer": name}).request
            assert request.job.optimizer == (name if name in CLIENT_OPTIMIZERS else TAKEN_AS[name])
            assert any(name in line for line in request.assumptions)
    assert (
        len(names) == 41
        and not NOT_MODELLED.keys() - set(names)
        and not CLIENT_OPTIMIZERS.keys() - set(names)
    )


def test_transformers_adafactor_keeps_of_a_flat_partition_what_torchs_does() -> None:
    optimization = pytest.importorskip("transformers.optimization")
    parameter = torch.nn.Parameter(torch.randn(ELEMENTS))
    optimizer = optimization.Adafactor([parameter], scale_parameter=False, relative_step=False, lr=1e-3)
    parameter.grad = torch.randn(ELEMENTS)
    optimizer.step()
    kept = sum(tensor.numel() for tensor in state_tensors(optimizer, parameter)) / ELEMENTS
    assert kept == pytest.approx(optimizer_values(DeepSpeedSettings(optimizer="Adafactor")), abs=0.01)


@pytest.mark.parametrize("name", ["pythia-70m", "gpt2", "smollm2-135m"])
def test_what_muon_steps_with_adam_is_what_deepspeed_flags(name: str) -> None:
    """Vectors, embeddings and heads by their names: GPT-2's wte is a matrix to it."""
    deepspeed = pytest.importorskip("deepspeed")
    transformers = pytest.importorskip("transformers")
    config = dict(models.load(name).hf_config)
    with torch.device("meta"):
        real = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config.pop("model_type"), **config)
        )
    deepspeed.set_optimizer_flags(SimpleNamespace(optimizer_name="muon", optimizer_params={}), real)
    by_adam = sum(p.numel() for p in real.parameters() if not p.use_muon)
    profile = profiles.load(name)
    assert profile is not None
    trace = profile.trace(Variant(), 512)
    assert trace is not None
    held = rank_model(profile, Variant(), trace)
    assert held.numel_beside_matrices == by_adam
    muon, adam = (DeepSpeedSettings(optimizer=kind) for kind in ("Muon", "AdamW"))
    assert second_state_bytes(held, muon, held.trainable_numel) == 4 * by_adam
    assert second_state_bytes(held, adam, held.trainable_numel) == 0
