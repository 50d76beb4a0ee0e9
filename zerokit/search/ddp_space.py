"""What is searched of training without an engine: nothing of its own, but batches and checkpointing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.ddp_settings import DdpSettings
from zerokit.domain.deepspeed_settings import from_config
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.domain.training_settings import TrainingSettings
from zerokit.errors import InputError
from zerokit.search.space import Layout, Pins, Request, Space
from zerokit.values import frozen_dataclass

_OF_AN_ENGINE = {
    "zero_stage": "zero", "reduce_bucket_size": "reduce_bucket", "prefetch_bucket_size": "prefetch_bucket",
    "persistence_threshold": "persistence", "sub_group_size": "sub_group", "overlap_comm": "overlap_comm",
    "pipeline_module": "pipeline_module", "search_tensor": "tp", "search_sequence": "sp",
}  # fmt: skip
"""Pins that plain PyTorch does not have, and the options that fix them."""
_NOTHING_SET = from_config({})


@frozen_dataclass
class Whole:
    """Every rank has all of the model; buffers have no sizes of their own."""


def placements(pins: Pins, space: Space) -> list[Whole]:
    """Return the one."""
    return [Whole()]


def variants(space: Space, layout: Layout, placement: Whole) -> tuple[Whole, ...]:
    """Return the one."""
    return (placement,)


def fastest(variants: tuple[Whole, ...]) -> tuple[Whole, ...]:
    """Return the one."""
    return variants


def frugal(
    space: Space, layout: Layout, placement: Whole, batch: tuple[int, int], variants: tuple[Whole, ...]
) -> tuple[Whole, ...]:
    """Return the one."""
    return variants


def settings(
    space: Space, layout: Layout, placement: Whole, chosen: Whole, common: Mapping[str, Any]
) -> DdpSettings:
    """The settings of one point of the space: weights in the dtype that is given, or the trainer's.

    A plain loop runs under autocast where its weights are wider than its precision, and steps with torch's
    AdamW as it is by default, on lists of tensors (torch/optim/adamw.py).
    """
    job, row = space.job, space.job.defaults
    dtype = load_dtype(space)
    is_wide = dtype == "fp32"
    narrow = row.narrow_on_packed and job.packed_base_bytes is not None
    own = {"torch_adam": not row.autocasts or space.torch_adam}
    return DdpSettings(
        **{**common, **own},
        weight_bytes=4 if is_wide else 2,
        adapter_bytes=2 if narrow and not is_wide else 4,
        autocast=space.precision != "fp32" and (row.autocasts or is_wide),
        by_trainer=row.autocasts,
    )


def load_dtype(space: Space) -> str:
    """Precision of the weights as the script loads them.

    Raises:
        InputError: the one that is given is not trained in.
    """
    given = space.pins.load_dtype
    if given not in (None, "fp32", space.precision):
        raise InputError(
            f"⟨load_dtype⟩ {given}: with ⟨precision⟩ {space.precision} use that, or fp32 for autocast"
        )
    return given or ("fp32" if space.job.method in space.job.defaults.loads_wide else space.precision)


def illegal(space: Space, strategy: Strategy) -> str | None:
    """Return None: nothing is refused."""
    return None


def least_state_bytes(space: Space, layout: Layout, placement: Whole) -> float:
    """Bytes of a GPU, at least, that model states take: of full training weights, gradients and momenta."""
    if space.job.method != "full" or (space.job.optimizer or "").lower() not in ("adam", "adamw"):
        return 0.0
    return 3.0 * (4 if load_dtype(space) == "fp32" else 2) * space.shape.block_parameters


def most_saved_bytes(settings: TrainingSettings, trainable: int) -> int:
    """Return 0: there are no sizes."""
    return 0


def simpler(space: Space, fastest: Candidate) -> Iterator[Pins]:
    """Yield nothing: it is as simple as can be."""
    yield from ()


def check(space: Space, layout: Layout) -> None:
    """Refuse what is an engine's.

    Raises:
        InputError: names the option.
    """
    refuse(space.pins, space.job, layout)


def refuse(pins: Pins, job: Job, layout: Layout) -> None:
    """Refuse what is an engine's.

    Raises:
        InputError: names the option.
    """
    if job.inference:
        raise InputError("serving is not planned with ⟨engine⟩ ddp; use ⟨engine⟩ deepspeed")
    for name, option in _OF_AN_ENGINE.items():
        if getattr(pins, name) not in (None, False):
            raise InputError(f"⟨{option}⟩: nothing is divided with ⟨engine⟩ ddp; leave it out")
    if pins.settings != _NOTHING_SET:
        raise InputError("⟨set⟩ sets values of DeepSpeed's; leave it out, or plan with ⟨engine⟩ deepspeed")
    degrees = {"tp": layout.tensor, "pp": layout.pipeline, "sp": layout.sequence}
    for name, degree in degrees.items():
        if degree > 1:
            raise InputError(f"⟨{name}⟩ {degree}: nothing is divided with ⟨engine⟩ ddp; leave it out")
    devices = {"offload_optimizer": pins.offload_optimizer, "offload_param": pins.offload_param}
    for name, device in devices.items():
        if device not in (None, "none"):
            raise InputError(f"⟨{name}⟩ {device}: nothing is offloaded with ⟨engine⟩ ddp; leave it out")


def probe(pins: Pins, gpus: int, trainable: int) -> Pins:
    """Return the pins: there are no sizes."""
    return pins


def plain(request: Request, layout: Layout) -> tuple[Whole, Whole]:
    """Return the one.

    Raises:
        InputError: what is fixed is an engine's.
    """
    refuse(request.pins, request.job, layout)
    return Whole(), Whole()
