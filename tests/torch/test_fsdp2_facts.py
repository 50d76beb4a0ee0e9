"""What a rank says of a model that PyTorch's ``fully_shard`` has divided, and of one that it has not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402

from zerokit.instrument.engine_facts import (  # noqa: E402
    DividedModels,
    EngineFacts,
    record_divided,
)
from zerokit.rehearsal.process.phases import peers  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def divided(*, wraps: bool = False, **options: Any) -> Any:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    if wraps:
        model[0] = checkpoint_wrapper(model[0])
    options["mesh"] = init_device_mesh("cpu", (1,))
    for part in (*model[:2], model):
        fully_shard(part, **options)
    return model


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (
            {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16), "reshard_after_forward": True},
            {"precision": "bf16", "dtype": "bfloat16", "reshard_after_forward": True},
        ),
        (
            {"reshard_after_forward": False, "wraps": True},
            {"precision": "fp32", "reshard_after_forward": False, "gradient_checkpointing": True},
        ),
        (
            {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
            {"offload_param": "cpu", "offload_optimizer": "cpu"},
        ),
    ],
)
def test_it_says_what_fully_shard_was_told(options: dict[str, Any], facts: dict[str, Any]) -> None:
    plain = {"engine": "fsdp2", "parameters": 216, "sharding": 1, "offload_param": "none", "adapters": None}
    told = record_divided(divided(**options))
    assert {name: told[name] for name in {**plain, **facts}} == {**plain, **facts}


def test_only_models_that_are_divided_count(tmp_path: Path) -> None:
    observed = EngineFacts()
    models = DividedModels(observed)
    batch = torch.zeros(4, 8)
    models.training_forward(torch.nn.Linear(8, 8), (batch,), {})
    assert observed.news() is None
    outer, other = torch.nn.Sequential(divided()), divided()
    models.training_forward(outer, (batch,), {})
    told = observed.news()
    assert told is not None and (told["batch_rows"], told["batch_columns"], told["engines"]) == (4, 8, 1)
    models.training_forward(other, (batch,), {})
    told = observed.news()
    assert told is not None and told["engines"] == 2


@pytest.mark.parametrize(("options", "fused"), [({}, False), ({"fused": True}, True)])
def test_the_optimizer_that_steps_a_divided_model_is_told(options: dict[str, Any], fused: bool) -> None:
    """By itself AdamW steps lists of tensors, which takes temporaries (torch/optim/adamw.py)."""
    observed, model = EngineFacts(), divided()
    DividedModels(observed).training_forward(model, (torch.zeros(4, 8),), {})
    observed.stepped(torch.optim.AdamW(model.parameters(), **options))
    told = observed.news()
    assert told is not None and (told["optimizer"], told["fused"]) == ("AdamW", fused)


def test_ranks_that_divide_layers_are_those_of_their_mesh() -> None:
    mesh = DeviceMesh("cpu", [0, 1], _init_backend=False, _rank=0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    assert peers(model) == 1
    half = DTensor.from_local(torch.ones(2, 4), mesh, [Shard(0)], run_check=False)
    model[0].weight = torch.nn.Parameter(half)
    assert peers(model) == 2
