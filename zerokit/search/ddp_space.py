"""What is searched of training without an engine: nothing of its own, but batches and checkpointing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.ddp_settings import DdpSettings
from zerokit.domain.job import Job
from zerokit.errors import InputError
from zerokit.search.engine import Engine, load_dtype, refuse_deepspeeds
from zerokit.search.space import Layout, Pins, Request, Space


class DdpSpace(Engine):
    """Training without an engine: every rank has all of the model, in buffers without sizes."""

    def placements(self, pins: Pins, space: Space) -> list[None]:
        """Return the one."""
        return [None]

    def settings(
        self, space: Space, layout: Layout, placement: None, chosen: None, common: Mapping[str, Any]
    ) -> DdpSettings:
        """The settings of one point of the space: weights in the dtype that is given, or the trainer's.

        A plain loop runs under autocast where its weights are wider than its precision, and steps with
        torch's AdamW as it is by default, on lists of tensors (torch/optim/adamw.py)."""
        job, row = space.job, space.job.defaults
        dtype = load_dtype(space.pins, job, space.precision)
        is_wide = dtype == "fp32"
        narrow = row.narrow_on_packed and job.packed_base_bytes is not None
        own = {"torch_adam": not row.autocasts or common["torch_adam"]}
        return DdpSettings(
            **{**common, **own},
            weight_bytes=4 if is_wide else 2,
            adapter_bytes=2 if narrow and not is_wide else 4,
            autocast=space.precision != "fp32" and (row.autocasts or is_wide),
            by_trainer=row.autocasts,
        )

    def least_state_bytes(self, space: Space, layout: Layout, placement: None) -> float:
        """Bytes of a GPU, at least, that model states take: of full training weights, gradients and
        momenta."""
        if space.job.method != "full" or (space.job.optimizer or "").lower() not in ("adam", "adamw"):
            return 0.0
        return (
            3.0
            * (4 if load_dtype(space.pins, space.job, space.precision) == "fp32" else 2)
            * space.shape.block_parameters
        )

    def check(self, space: Space, layout: Layout) -> None:
        """Refuse what is an engine's. Raises InputError: names the option."""
        _refuse(space.pins, space.job, layout)

    def plain(self, request: Request, layout: Layout) -> tuple[None, None]:
        """Return the one. Raises InputError: what is fixed is an engine's."""
        _refuse(request.pins, request.job, layout)
        return None, None


def _refuse(pins: Pins, job: Job, layout: Layout) -> None:
    refuse_deepspeeds(pins, job, layout, "nothing is divided with ⟨engine⟩ ddp; leave it out")
    for name in ("offload_optimizer", "offload_param"):
        if (device := getattr(pins, name)) not in (None, "none"):
            raise InputError(f"⟨{name}⟩ {device}: nothing is offloaded with ⟨engine⟩ ddp; leave it out")
