"""What is searched of FSDP2: whether layers give their gathered weights back, replicas, offload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.client_optimizers import fails_on_shards
from zerokit.domain.fsdp2_settings import Fsdp2Settings, fsdp2
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.errors import InputError
from zerokit.memory.host import process_bytes
from zerokit.search.engine import Engine, load_dtype, refuse_deepspeeds
from zerokit.search.space import Layout, Pins, Request, Space
from zerokit.values import frozen_dataclass, replace

_STATE_BYTES = 12
"""Of a weight's shard: itself in fp32, and Adam's two moments."""


@frozen_dataclass
class Sharding:
    """How weights, gradients and states are divided; ``replicas``: groups of ranks that each hold all shards:
    one, or one a node."""

    reshard: bool = True
    offload: bool = False
    replicas: int = 1


def _offloads(pins: Pins) -> list[bool]:
    fixed = {device for device in (pins.offload_optimizer, pins.offload_param) if device is not None}
    return [False, True] if not fixed else ["cpu" in fixed]


def _every_rank_may_load(space: Space, placement: Sharding) -> bool:
    """Whether the host holds the model once for each GPU, and the offloaded shards that are made of it (of
    pinned memory, up to twice their size): as scripts do unless they are written to load it once."""
    cluster, limit = space.cluster, space.cluster.host_limit_bytes
    if limit is None:
        return True
    frozen = frozen_bytes(space.pins, space.job, space.precision) or 2
    whole = space.shape.parameters * (4 if space.job.method == "full" else frozen)
    each = whole + process_bytes(cluster.gpus)
    shards = 2 * whole // cluster.nodes if placement.offload else 0
    return each * cluster.gpus_per_node + shards <= limit


def trained_bytes(job: Job, precision: str) -> int:
    """Bytes of an element of the trained weights: Accelerate makes them fp32, but beside packed ones
    (accelerate/utils/fsdp_utils.py:810, 1.15), where adapters stay as the script has them."""
    if job.method == "full" and job.defaults.shards_as_loaded:
        return 4 if precision == "fp32" else 2
    return 2 if job.packed_base_bytes is not None and job.defaults.narrow_on_packed else 4


def frozen_bytes(pins: Pins, job: Job, precision: str) -> int | None:
    """Bytes of an element of the frozen weights, which stay as they are loaded; None: of the dtype that
    forward uses."""
    is_wide = job.method == "lora" and load_dtype(pins, job, precision) == "fp32" != precision
    return 4 if is_wide and job.packed_base_bytes is None else None


class Fsdp2Space(Engine):
    """FSDP2."""

    def placements(self, pins: Pins, space: Space) -> list[Sharding]:
        """Sharded over all GPUs, then inside each node; on the GPU, then on the CPU."""
        cluster, offloads = space.cluster, _offloads(pins)
        replicas = [1] if cluster.nodes == 1 or cluster.gpus_per_node == 1 else [1, cluster.nodes]
        return [
            Sharding(reshard=reshard, offload=offload, replicas=count)
            for offload in offloads
            for count in replicas
            for reshard in (True, False)
        ]

    def settings(
        self, space: Space, layout: Layout, placement: Sharding, chosen: None, common: Mapping[str, Any]
    ) -> Fsdp2Settings:
        """The settings of one point of the space, as Accelerate wraps models."""
        parts = layout.tensor > 1
        once = not (parts or _every_rank_may_load(space, placement))
        reduced = "float32" if parts and common["precision"] == "bf16" else None
        return Fsdp2Settings(
            **common, reshard_after_forward=placement.reshard, offload=placement.offload,
            replicas=placement.replicas, broadcasts=once, loads_once=once,
            master_bytes=trained_bytes(space.job, common["precision"]),
            frozen_bytes=frozen_bytes(space.pins, space.job, common["precision"]),
            tp_size=layout.tensor, reduce_dtype=reduced,
        )  # fmt: skip

    def illegal(self, space: Space, strategy: Strategy) -> str | None:
        """Why a strategy is pointless: one GPU has nothing to gather, so nothing is given back for long."""
        settings = fsdp2(strategy.settings)
        if strategy.zero_ranks == 1 and not settings.reshard_after_forward:
            return "one GPU gathers nothing"
        if settings.tp_size > 1 and (settings.offload or not settings.reshard_after_forward):
            return "offload, and weights that stay gathered, are not modelled beside tensor parallelism"
        if strategy.sequence_parallel > 1 and strategy.data_parallel == settings.replicas > 1:
            # accelerate 1.15, parallelism_config.py:336
            return "Accelerate refuses context parallel replicas without data-parallel shards"
        return None

    def least_state_bytes(self, space: Space, layout: Layout, placement: Sharding) -> float:
        """Bytes of a GPU, at least, that model states take."""
        if placement.offload or (space.job.optimizer or "").lower() not in ("adam", "adamw"):
            return 0.0
        return (
            _STATE_BYTES * space.shape.block_parameters * placement.replicas / (layout.data * layout.sequence)
        )

    def simpler(self, space: Space, fastest: Candidate) -> Iterator[Pins]:
        """Yield pins without offload, where it is not fixed."""
        if fastest.strategy.settings.offloads and _offloads(space.pins) == [False, True]:
            yield replace(space.pins, offload_optimizer="none", offload_param="none")

    def check(self, space: Space, layout: Layout) -> None:
        """Refuse what is DeepSpeed's, and what FSDP2 is not planned with. Raises InputError: names the
        option."""
        _refuse(space.pins, space.job, layout)

    def plain(self, request: Request, layout: Layout) -> tuple[Sharding, None]:
        """Sharded over all GPUs, and given back after forward. Raises InputError: what is fixed is
        DeepSpeed's, or FSDP2 is not planned with it."""
        _refuse(request.pins, request.job, layout)
        return Sharding(offload=True in _offloads(request.pins)[:1]), None


def refuse_optimizer(job: Job) -> None:
    """Refuse an optimizer that cannot step shards. Raises InputError: says why."""
    if (why := fails_on_shards(job.optimizer)) is not None:
        raise InputError(f"⟨optimizer⟩ {job.optimizer}: {why}; use AdamW, or adamw_torch_8bit (torchao)")


def _refuse(pins: Pins, job: Job, layout: Layout) -> None:
    refuse_optimizer(job)
    others = replace(pins, search_sequence=False, search_tensor=False)
    undivided = replace(layout, sequence=1, tensor=1)
    why = "not planned with ⟨engine⟩ fsdp2; use ⟨engine⟩ deepspeed"
    refuse_deepspeeds(others, job, undivided, why)
    devices = {name: getattr(pins, name) for name in ("offload_optimizer", "offload_param")}
    for name, device in devices.items():
        if device == "nvme":
            raise InputError(f"⟨{name}⟩ nvme: FSDP2 offloads to host memory alone; use cpu")
    if {*devices.values()} == {"none", "cpu"}:
        raise InputError("FSDP2 offloads weights and states together: give one of the two options alone")
