"""What is searched of DeepSpeed: stages, offloads and the sizes of its buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.deepspeed_settings import (
    DEFAULT_ZERO,
    DeepSpeedSettings,
    Offload,
    ZeroSettings,
    deepspeed,
)
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.domain.training_settings import TrainingSettings
from zerokit.errors import InputError
from zerokit.memory.deepspeed_engine import releases_gradients
from zerokit.memory.estimate import bytes_of_order
from zerokit.rules import first_violation
from zerokit.search.engine import Engine
from zerokit.search.space import Layout, Pins, Request, Space
from zerokit.values import frozen_dataclass, replace

_ADAM_BYTES = 12
"""A weight's fp32 copy and Adam's two moments (ZeRO, arXiv 1910.02054, K = 12)."""
_DEVICES = ("none", "cpu", "nvme")


@frozen_dataclass
class OffloadChoice:
    """A ZeRO stage with what is offloaded."""

    stage: int
    optimizer: str = "none"
    parameters: str = "none"


def refuse_placement(job: Job, stage: int | None, offload: str | None) -> None:
    """Refuse what DeepSpeed refuses of an optimizer that the script makes; ``None``: not fixed. Raises
    InputError: names the option."""
    refuse_mixed_dtypes(job, stage)
    optimizer = None if job.inference else client_optimizer(job.optimizer)
    if optimizer is not None and offload not in (None, "none"):
        raise InputError(
            f"⟨offload_optimizer⟩ {offload}: DeepSpeed does not offload an optimizer that the script "
            f"makes, as {job.optimizer} is (deepspeed/runtime/engine.py:2343); use ⟨optimizer⟩ AdamW, or no "
            "offload"
        )
    if optimizer is not None and stage == 0 and not optimizer.steps_in_init:
        raise InputError(
            f"⟨zero⟩ 0: DeepSpeed steps the optimizer once before training (deepspeed/runtime/fp16/"
            f"unfused_optimizer.py, initialize_optimizer_states), where {job.optimizer} stops; "
            "use ⟨zero⟩ 1, 2 or 3"
        )


def refuse_mixed_dtypes(job: Job, stage: int | None) -> None:
    """Refuse a head in fp32 beside what ZeRO-3 loads in 16 bits. Raises InputError: names the stage."""
    if stage == 3 and mixes_dtypes(job):
        raise InputError(
            f"⟨zero⟩ 3: {job.defaults.title} add a head in fp32, which DeepSpeed refuses beside weights in "
            "16 bits (deepspeed/runtime/zero/utils.py:218, 0.19.8); use ⟨zero⟩ 2, or ⟨method⟩ lora"
        )


def mixes_dtypes(job: Job) -> bool:
    """Whether the trained weights, which ZeRO-3 loads in 16 bits, have a head in fp32 beside them."""
    return job.loss == "value" and job.method == "full"


@frozen_dataclass
class Knobs:
    """Sizes in elements, DeepSpeed's defaults."""

    reduce_bucket_size: int = DEFAULT_ZERO.reduce_bucket_size
    overlap_comm: bool | None = None
    sub_group_size: int = DEFAULT_ZERO.sub_group_size
    prefetch_bucket_size: int = DEFAULT_ZERO.prefetch_bucket_size
    persistence_threshold: int = DEFAULT_ZERO.param_persistence_threshold
    reuse_distance: int = DEFAULT_ZERO.max_reuse_distance
    hpz_partition_size: int = 1
    round_robin: bool = False


_BUCKETS = (DEFAULT_ZERO.reduce_bucket_size, 200_000_000, 50_000_000, 10_000_000)
_BUCKET_GRAIN = 1_000_000
_SMALL_PREFETCH = 5_000_000  # beside the smallest bucket: elsewhere it saves little of what is live
_SUB_GROUPS = (DEFAULT_ZERO.sub_group_size, 100_000_000)
_REUSE = (DEFAULT_ZERO.max_reuse_distance, 100_000_000, 0)


def _buckets(pins: Pins, trainable: int) -> tuple[int, ...]:
    """Sizes of the gradients' bucket. One larger than all gradients together has room that nothing fills."""
    if pins.reduce_bucket_size:
        return (pins.reduce_bucket_size,)
    rounded = max(1, -(-trainable // _BUCKET_GRAIN)) * _BUCKET_GRAIN
    return tuple(dict.fromkeys(min(size, rounded) for size in _BUCKETS))


def second_copies(pins: Pins, cluster: Cluster) -> tuple[int, ...]:
    """Sizes of the groups that may keep a second copy of ZeRO-3's weights (hpZ, arXiv 2306.10209): nodes.

    Numerics stay: reports of losses and gradients of 0 (DeepSpeed's issues 4851 and 5059, LLaMA-Factory's
    6372) are of versions whose copy could be gathered before it was whole. In 0.19.8 each rank copies its
    slice up to the end of the weight, waits for it (zero/partition_parameters.py:1932-1951), and gathers
    weights with and without a copy apart (zero/partitioned_param_coordinator.py:594); every step drops it
    (zero/stage3.py:2846). On four CPU ranks losses and gradient norms are those without it
    (tests/deepspeed/test_hpz.py).
    """
    per_node = cluster.gpus_per_node
    if not pins.second_copy or cluster.nodes == 1 or per_node == 1:
        return (1,)
    return (per_node, 1)


def knobs(
    placement: OffloadChoice, pins: Pins, trainable: int, copies: tuple[int, ...] = (1,)
) -> tuple[Knobs, ...]:
    """Every setting of the memory-relevant sizes: first the fastest, last the most frugal.

    ``trainable``: elements of the weights that get gradients. ``copies``: of :func:`second_copies`.

    ``round_robin_gradients`` changes which weights a rank owns, and no time: beside an offloaded optimizer
    and the smallest bucket a GPU holds up to 3 % less with it, or up to 1 % more.

    Time never grows towards the first in any knob, and memory never towards the last: larger
    buckets send fewer messages, overlap hides them, a longer reuse distance saves gathers.
    """
    stage = placement.stage
    if stage == 0:
        return (Knobs(),)
    buckets = _buckets(pins, trainable)
    if stage < 3:
        overlaps = (pins.overlap_comm,) if pins.overlap_comm is not None else (True, False)
        in_turns = ((buckets[-1], True),) if placement.optimizer != "none" else ()
        return tuple(
            Knobs(reduce_bucket_size=b, overlap_comm=o, round_robin=r)
            for o in overlaps for b, r in (*((b, False) for b in buckets), *in_turns)
        )  # fmt: skip
    groups = (pins.sub_group_size,) if pins.sub_group_size else _SUB_GROUPS
    prefetch = pins.prefetch_bucket_size or Knobs().prefetch_bucket_size
    overlap = True if pins.overlap_comm is None else pins.overlap_comm
    persistence = Knobs().persistence_threshold
    if pins.persistence_threshold is not None:
        persistence = pins.persistence_threshold
    pairs = [(bucket, prefetch) for bucket in buckets]
    if pins.prefetch_bucket_size is None:
        pairs.append((buckets[-1], _SMALL_PREFETCH))
    return tuple(
        Knobs(reduce_bucket_size=b, overlap_comm=overlap, sub_group_size=g, prefetch_bucket_size=p,
              persistence_threshold=persistence, reuse_distance=r, hpz_partition_size=h)
        for h in copies for r in _REUSE for b, p in pairs for g in groups
    )  # fmt: skip


_knobs = lru_cache(maxsize=256)(knobs)


@lru_cache(maxsize=4096)
def _zero_settings(
    fixed: ZeroSettings, placement: OffloadChoice, chosen: Knobs, *, nvme_path: str | None,
    saves_16_bit: bool, largest_parameter: int,
) -> ZeroSettings:  # fmt: skip
    """ZeRO's part of a strategy; the same for every layout and batch."""

    def offload(device: str) -> Offload:
        return Offload(device=device, nvme_path=nvme_path if device == "nvme" else None)

    largest_buffer = max(100_000_000, largest_parameter)  # one NVMe buffer must hold the largest parameter
    weights = replace(offload(placement.parameters), buffer_count=5, buffer_size=largest_buffer)
    return replace(
        fixed,
        stage=placement.stage,
        overlap_comm=chosen.overlap_comm,
        reduce_bucket_size=chosen.reduce_bucket_size,
        allgather_bucket_size=chosen.reduce_bucket_size,
        sub_group_size=chosen.sub_group_size,
        prefetch_bucket_size=chosen.prefetch_bucket_size,
        param_persistence_threshold=chosen.persistence_threshold,
        max_reuse_distance=chosen.reuse_distance,
        zero_hpz_partition_size=chosen.hpz_partition_size,
        round_robin_gradients=chosen.round_robin or fixed.round_robin_gradients,
        gather_16bit_weights_on_model_save=saves_16_bit,
        offload_optimizer=offload(placement.optimizer),
        offload_param=weights,
    )


def complexity(placement: OffloadChoice) -> tuple[int, int, int]:
    """Sorts by what is harder to run and to understand: weights away, states away, a higher stage."""
    return _DEVICES.index(placement.parameters), _DEVICES.index(placement.optimizer), placement.stage


class DeepSpeedSpace(Engine):
    """DeepSpeed."""

    def placements(self, pins: Pins, space: Space) -> list[OffloadChoice]:
        """ZeRO stages × offload devices, cheapest first; the pointless ones are the rules' to refuse.

        Weights quantised to 4 bits leave the GPU only when that is fixed: bitsandbytes keeps their
        quantisation state beside them, which DeepSpeed does not move."""
        job = space.job
        devices = ["none", "cpu", *(["nvme"] if space.cluster.nvme_path is not None else [])]
        result = []
        client = None if job.inference else client_optimizer(job.optimizer)
        for stage in [pins.zero_stage] if pins.zero_stage is not None else [0, 1, 2, 3]:
            for optimizer in [pins.offload_optimizer] if pins.offload_optimizer else devices:
                for parameters in [pins.offload_param] if pins.offload_param else devices:
                    if job.inference and (stage not in (0, 3) or optimizer != "none"):
                        continue  # without an optimizer stages 1 and 2 are stage 0
                    if client is not None and (
                        optimizer != "none" or (stage == 0 and not client.steps_in_init)
                    ):
                        continue  # ``refuse_placement``
                    # int8: the scales beside the weights are not divided
                    is_int8 = job.packed_base_bytes is not None and job.method == "lora"
                    if stage == 3 and (is_int8 or mixes_dtypes(job)):
                        continue
                    if job.method == "qlora" and parameters != "none" and pins.offload_param is None:
                        continue
                    result.append(OffloadChoice(stage=stage, optimizer=optimizer, parameters=parameters))
        return result

    def variants(self, space: Space, layout: Layout, placement: OffloadChoice) -> tuple[Knobs, ...]:
        """Every setting of the sizes, the fastest first."""
        alone = placement.parameters != "none" or layout.data < space.cluster.gpus or space.job.inference
        copies = (1,) if alone else second_copies(space.pins, space.cluster)
        return _knobs(placement, space.pins, space.timing.trainable, copies)

    def fastest(self, variants: tuple[Knobs, ...]) -> tuple[Knobs, ...]:
        """Settings of which one is the fastest: a second copy of quantised weights may save nothing."""
        first = {chosen.hpz_partition_size: chosen for chosen in reversed(variants)}
        return tuple(first.values())

    def frugal(
        self,
        space: Space,
        layout: Layout,
        placement: OffloadChoice,
        batch: tuple[int, int],
        variants: tuple[Knobs, ...],
    ) -> tuple[Knobs, ...]:
        """The settings of which one requires the least, the likeliest last.

        The last of each order of work, which overlap, the reuse distance and who owns which weights decide:
        any may hold less at the peak. Where ZeRO-1 releases gradients into its buckets, all settings that do:
        gradients larger than a bucket stay, so the smallest is not always the best.

        Args:
            batch: micro-batch and accumulation.
        """
        last = {
            (chosen.overlap_comm, chosen.reuse_distance, chosen.round_robin): chosen for chosen in variants
        }
        if placement.stage != 1 or batch[1] > 1:
            return tuple(last.values())
        common = {"precision": space.precision}
        releasing = [
            chosen
            for chosen in variants
            if releases_gradients(self.settings(space, layout, placement, chosen, common))
        ]
        return tuple(dict.fromkeys([*releasing, *last.values()]))

    def settings(
        self, space: Space, layout: Layout, placement: OffloadChoice, chosen: Knobs, common: Mapping[str, Any]
    ) -> DeepSpeedSettings:
        """The settings of one point of the space; ``common``: what any engine is told."""
        fixed = space.pins.settings
        zero = _zero_settings(
            fixed.zero, placement, chosen, nvme_path=space.cluster.nvme_path,
            saves_16_bit=placement.stage == 3 and not space.job.inference,
            largest_parameter=space.shape.largest_parameter if placement.parameters == "nvme" else 0,
        )  # fmt: skip
        return replace(fixed, **common, autotp_size=layout.tensor, zero=zero)

    def illegal(self, space: Space, strategy: Strategy) -> str | None:
        """Why DeepSpeed refuses a strategy, or why it is pointless."""
        violation = first_violation(
            strategy, gpus_per_node=space.cluster.gpus_per_node, key_value_heads=space.shape.kv_heads
        )
        return None if violation is None else violation.reason

    def least_state_bytes(self, space: Space, layout: Layout, placement: OffloadChoice) -> float:
        """Bytes of a GPU, at least, that model states take whatever the micro-batch and the sizes."""
        ranks = layout.data * layout.sequence
        weights = space.shape.block_parameters / (layout.tensor * layout.pipeline)
        element_bytes = 4 if space.precision == "fp32" else 2
        size = 0.0
        if placement.parameters == "none":
            size += element_bytes * weights / (ranks if placement.stage == 3 else 1)
        if placement.optimizer == "none" and (space.job.optimizer or "").lower() in ("adam", "adamw"):
            size += _ADAM_BYTES * weights / (ranks if placement.stage >= 1 else 1)
        return size

    def most_saved_bytes(self, settings: TrainingSettings, trainable: int) -> int:
        """Bytes that other sizes can save at most."""
        return bytes_of_order(deepspeed(settings), trainable)

    def simpler(self, space: Space, fastest: Candidate) -> Iterator[Pins]:
        """The pins of simpler placements, the simplest first; and those of this one without a second copy."""
        own = deepspeed(fastest.strategy.settings)
        chosen = OffloadChoice(
            stage=own.zero_stage, optimizer=own.optimizer_device, parameters=own.weights_device
        )
        spots = self.placements(space.pins, space)
        simpler = [one for one in sorted(spots, key=complexity) if complexity(one) < complexity(chosen)]
        if own.zero.zero_hpz_partition_size > 1:
            simpler.append(chosen)
        for spot in simpler:
            yield replace(
                space.pins, zero_stage=spot.stage, offload_optimizer=spot.optimizer,
                offload_param=spot.parameters, second_copy=False,
            )  # fmt: skip

    def check(self, space: Space, layout: Layout) -> None:
        """Refuse a stage and offloads that cannot be. Raises InputError: names the option."""
        pins = space.pins
        if pins.zero_stage is None:
            return
        placement = OffloadChoice(
            stage=pins.zero_stage,
            optimizer=pins.offload_optimizer or "none",
            parameters=pins.offload_param or "none",
        )
        fastest = knobs(placement, pins, space.timing.trainable)[0]
        of_pins = self.settings(space, layout, placement, fastest, {"precision": space.precision})
        strategy = Strategy(settings=of_pins, checkpointing="none", **layout.degrees)
        violation = first_violation(strategy, key_value_heads=space.shape.kv_heads)
        if violation is not None:
            raise InputError(f"⟨zero⟩ {pins.zero_stage}: {violation.message}; {violation.option_fix}")

    def probe(self, pins: Pins, gpus: int, trainable: int) -> Pins:
        """Fix the stage, of which the script's bytes beside the model's hardly depend, and the sizes that the
        search tries first."""
        stage = pins.zero_stage if pins.zero_stage is not None else 2 if gpus > 1 else 0
        sizes = knobs(OffloadChoice(stage=stage), pins, trainable)[0]
        names = ("reduce_bucket_size", "prefetch_bucket_size", "persistence_threshold", "sub_group_size")
        return replace(pins, zero_stage=stage, **{name: getattr(sizes, name) for name in names})

    def plain(self, request: Request, layout: Layout) -> tuple[OffloadChoice, Knobs]:
        """Stage 0 and DeepSpeed's own sizes, but for what is fixed. Raises InputError: an offload that the
        stage does not have."""
        pins = request.pins
        placement = OffloadChoice(
            stage=pins.zero_stage or 0,
            optimizer=pins.offload_optimizer or "none",
            parameters=pins.offload_param or "none",
        )
        if placement.stage == 0 and (placement.optimizer != "none" or placement.parameters != "none"):
            option = "⟨offload_optimizer⟩" if placement.optimizer != "none" else "⟨offload_param⟩"
            enough = "1, 2 or 3" if placement.parameters == "none" else "3"
            raise InputError(f"{option}: ZeRO stage 0 offloads nothing; add ⟨zero⟩ {enough}")
        refuse_placement(request.job, placement.stage, placement.optimizer)
        return placement, replace(Knobs(overlap_comm=pins.overlap_comm), **pins.sizes())
