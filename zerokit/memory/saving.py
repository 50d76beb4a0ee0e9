"""What saving a model and writing a DeepSpeed checkpoint take: disk, the host's memory, time.

Read from DeepSpeed 0.19.8 and compared with real checkpoints of two CPU ranks (tests/oracle):

* ``save_model`` of a Trainer writes the weights in the dtype that is trained. Under ZeRO-3 rank 0 gets them
  from ``_zero3_consolidated_16bit_state_dict`` (runtime/engine.py:5631): module by module all ranks gather
  the weights and rank 0 copies them to the host, where all of them stand together at the end. On the GPU only
  one module's weights are whole at a time, no more than its forward pass gathered.
* ``save_checkpoint`` writes for every rank its part of the fp32 master weights and of the optimizer's states
  (``_save_zero_checkpoint``, engine.py:5549), and below ZeRO-3 the weights once more (``_save_checkpoint``).
  A Trainer leaves the frozen weights under adapters out (Transformers 5.23, trainer.py:3550).
* Adapters under ZeRO-3 are saved by a Trainer of Transformers 5.0 or newer whether or not weights are
  gathered (5.23, trainer.py:4110), in ``save_model`` and in each checkpoint's folder; 4.56 saves none then.
"""

from __future__ import annotations

from zerokit.domain.deepspeed_settings import (
    CONVERTS_A_CHECKPOINT,
    CONVERTS_ADAPTERS,
    DeepSpeedSettings,
    deepspeed,
)
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Candidate, Saving, Strategy
from zerokit.memory.closed_form import trainable_parameters
from zerokit.memory.replay.model_states import client, managed_bytes, optimizer_values, state_bytes
from zerokit.notes import Note
from zerokit.units import format_gib
from zerokit.values import replace

_COPY_SHARE = 0.25
"""Of PCIe's rate, what a copy to pageable memory (``Tensor.cpu()``) is taken to reach; not measured."""


def saving(shape: ModelShape, job: Job, strategy: Strategy, cluster: Cluster) -> Saving | None:
    """What saving takes under this strategy; ``None`` when serving, which saves nothing, and under another
    engine than DeepSpeed, whose files are not modelled."""
    if job.inference or strategy.engine != "deepspeed":
        return None
    settings = deepspeed(strategy.settings)
    element_bytes, stage = settings.parameter_bytes, settings.zero.stage
    trainable = trainable_parameters(shape, job)
    adapters = job.method != "full"
    total = shape.parameters + (trainable if adapters else 0)
    model_bytes = total * element_bytes
    gathers = stage == 3 and settings.zero.gather_16bit_weights_on_model_save
    weights_bytes = trainable * (4 if stage == 3 else element_bytes) if adapters else model_bytes
    frozen = _frozen_bytes(shape, job, element_bytes)
    gpu = cluster.gpu
    link = cluster.node_network_bytes_per_second if cluster.nodes > 1 else gpu.link_bytes_per_second
    seconds = model_bytes / link + model_bytes / (gpu.pcie_bytes_per_second * _COPY_SHARE)
    return Saving(
        weights_bytes=0 if stage == 3 and not gathers and not adapters else weights_bytes,
        checkpoint_bytes=checkpoint_bytes(trainable, trainable, settings) + frozen,
        frozen_bytes=frozen,
        host_bytes=model_bytes if gathers else 0,
        seconds=seconds if gathers else 0.0,
    )


def _frozen_bytes(shape: ModelShape, job: Job, element_bytes: int) -> int:
    """The base weights under adapters as they are stored: linear layers of the blocks packed, or not."""
    if job.method == "full":
        return 0
    packed = job.packed_base_bytes if job.packed_base_bytes is not None else element_bytes
    tables = shape.parameters - shape.block_parameters
    return round(packed * shape.block_parameters + element_bytes * tables)


def checkpoint_bytes(parameters: int, trainable: int, settings: DeepSpeedSettings) -> int:
    """The files of one ``save_checkpoint``, all ranks' together, but for names and shapes."""
    stage, element_bytes = settings.zero.stage, settings.parameter_bytes
    module = (parameters - trainable if stage == 3 else parameters) * element_bytes
    master = trainable * 4 if stage or element_bytes == 2 else 0
    states = trainable * 4 * optimizer_values(settings)
    if client(settings) is not None:
        states = state_bytes(settings, [trainable]) + managed_bytes(settings, [trainable])
    return module + master + states


def with_saving(candidate: Candidate, shape: ModelShape, job: Job, cluster: Cluster) -> Candidate:
    """The candidate with what saving takes; whole weights are not gathered where the host has no room."""
    estimate = saving(shape, job, candidate.strategy, cluster)
    if estimate is not None and estimate.host_bytes and not _has_room(candidate, estimate, cluster):
        settings = deepspeed(candidate.strategy.settings)
        settings = replace(settings, zero=replace(settings.zero, gather_16bit_weights_on_model_save=False))
        candidate = replace(candidate, strategy=replace(candidate.strategy, settings=settings))
        estimate = saving(shape, job, candidate.strategy, cluster)
    return replace(candidate, saving=estimate)


def notes(
    candidate: Candidate, shape: ModelShape, job: Job, cluster: Cluster, *, decides: bool
) -> tuple[Note, ...]:
    """What must be said of a ZeRO-3 job whose weights are not gathered, or have no room when they are.

    ``decides``: that they are not is what :func:`with_saving` chose, for want of room; else a file says it.
    """
    estimate, settings = candidate.saving, candidate.strategy.settings
    if estimate is None or not settings.divides_weights:
        return ()
    model_bytes = shape.parameters * settings.parameter_bytes
    if estimate.host_bytes and _has_room(candidate, estimate, cluster):
        return ()
    limit = cluster.host_limit_bytes
    source = (
        f"--host-ram is {format_gib(limit or 0, 0)}"
        if cluster.host_ram_bytes is not None
        else f"nodes with these GPUs are taken to have {format_gib(limit or 0, 0)}, --host-ram not given"
    )
    if estimate.host_bytes:
        text = (
            f"saving gathers {format_gib(model_bytes, 0)} on the first node's host, which has no room for "
            f"them beside the training: {source}"
        )
        return (Note("no-room-to-save", text, "must", "warning"),)
    location = f"{format_gib(model_bytes, 0)} on the first node's host"
    why = f", {location}, have no room there beside the training ({source})"
    if not decides:
        why = " are not gathered (stage3_gather_16bit_weights_on_model_save is false)"
    loads = "save_model writes no weights that load; to convert a checkpoint: " + CONVERTS_A_CHECKPOINT
    if job.lora is not None:
        loads = (
            "before Transformers 5.0, save_model writes no adapters that load; convert a checkpoint "
            f"(deepspeed.utils.zero_to_fp32): {CONVERTS_ADAPTERS}"
        )
    return (
        Note("save-checkpoints", f"save checkpoints (save_strategy): {loads}", "must", "warning"),
        Note("weights-not-gathered", f"the whole weights{why}"),
    )


def _has_room(candidate: Candidate, estimate: Saving, cluster: Cluster) -> bool:
    if cluster.host_limit_bytes is None:
        return True
    used = candidate.memory.host_bytes_per_node
    if cluster.on_cpu:  # its ranks' memory is the host's
        used = candidate.memory.min_vram_bytes * cluster.gpus
    return used + estimate.host_bytes <= cluster.host_limit_bytes
