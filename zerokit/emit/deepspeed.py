"""Strategy → DeepSpeed JSON, with literal values and a reason for every key.

The inverse of :func:`zerokit.domain.deepspeed_settings.from_config`. Three variants, because three
consumers read the file differently:

``raw``
    ``deepspeed.initialize`` fills nothing: every value is a literal, the optimizer included (a
    script that passes its own optimizer overrides the block).
``trainer``
    the Hugging Face Trainer fills batch, accumulation, clipping, learning rate, betas, eps and
    weight decay from ``TrainingArguments``, and refuses a literal that differs from them
    (transformers/integrations/deepspeed.py, ``trainer_config_process``): those are ``"auto"``.
    Precision stays literal: ``"auto"`` silently becomes false without ``--bf16``.
``accelerate``
    scripts bring a torch optimizer, and Accelerate refuses a second one in the file
    (accelerate/accelerator.py, ``_prepare_deepspeed``): there is no optimizer block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import DeepSpeedSettings, Offload, ZeroSettings, deepspeed
from zerokit.domain.job import CHECKPOINTS_A_PIPELINE, Job
from zerokit.domain.settings import SETTINGS, PlannedValues
from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError
from zerokit.rules.known import TRAINER_FILLS, ZERO_TESTED_OPTIMIZERS
from zerokit.units import counted
from zerokit.values import frozen_dataclass

VARIANTS = ("raw", "trainer", "accelerate")

OPTIMIZER_PARAMS: Mapping[str, Mapping[str, Any]] = {
    "adam": {"lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
    "adagrad": {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0},
    "lamb": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
    "lion": {"lr": 1e-5, "betas": [0.9, 0.99], "weight_decay": 0.1},
    "muon": {"lr": 2e-4, "momentum": 0.95, "weight_decay": 0.1},
    "sgd": {"lr": 1e-2, "momentum": 0.0, "weight_decay": 0.0},
}
"""Lower-case type -> parameters it takes. Starting points for fine-tuning; change them at will:
neither memory nor step time depends on their values (``momentum`` of SGD excepted)."""
_OTHERS_PARAMS: Mapping[str, Any] = {"lr": 1e-3}


_ADAPTERS_LR = 10  # "LoRA Without Regret" (Thinking Machines, 2025): about ten times that of all weights


def optimizer_params(kind: str, *, adapters: bool = False) -> Mapping[str, Any]:
    """What is written for an optimizer of this type; any takes a learning rate."""
    params = OPTIMIZER_PARAMS.get(kind.lower(), _OTHERS_PARAMS)
    return {**params, "lr": round(params["lr"] * _ADAPTERS_LR, 10)} if adapters else params


_BUCKETS = "sized for this model: larger buckets send fewer messages and take more memory"
_COMMON = {
    "contiguous_gradients": "one gradient buffer; avoids fragmentation in backward",
    "reduce_scatter": "each rank receives only the gradients that it owns",
    "reduce_bucket_size": f"elements reduced at a time; {_BUCKETS}",
    "overlap_comm": "true overlaps gradient reduction with backward, for a second reduce bucket",
}
_KEYS_OF_STAGE: Mapping[int, Mapping[str, str]] = {
    0: {},
    1: {
        **_COMMON,
        "allgather_partitions": "all-gather of the updated weights instead of broadcasts",
        "allgather_bucket_size": f"elements gathered at a time; {_BUCKETS}",
        "round_robin_gradients": "spreads the copies of gradients to the host over ranks",
    },
    3: {
        **_COMMON,
        "sub_group_size": "elements that the optimizer steps at once; bounds its working set",
        "prefetch_bucket_size": "elements gathered ahead of use: memory for overlap",
        "param_persistence_threshold": "parameters smaller than this stay on every GPU (saves messages for "
        "biases and norms)",
        "max_live_parameters": "most elements gathered at any time",
        "max_reuse_distance": "weights needed again within so many elements are kept",
        "gather_16bit_weights_on_model_save": "whether save_16bit_model and save_pretrained write whole "
        "weights (gathers them on rank 0)",
    },
}
"""Stage -> field of ZeroSettings -> why, in the order written."""
_STAGE3_OPTIONS = {
    "model_persistence_threshold": "most elements that persist on every GPU",
    "zero_hpz_partition_size": "ZeRO++: a second copy of the weights inside a node",
    "zero_quantized_weights": "ZeRO++: weights cross the network as int8",
    "zero_quantized_gradients": "ZeRO++: gradients cross the network as int4",
}
_OF_STAGE_3 = frozenset((
    "prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters", "max_reuse_distance",
    "gather_16bit_weights_on_model_save", "model_persistence_threshold",
))  # fmt: skip
"""Fields whose key in the JSON begins with ``stage3_``."""
_AIO = {
    "block_size": 1048576, "queue_depth": 8, "intra_op_parallelism": 1, "single_submit": False,
    "overlap_events": True,
}  # fmt: skip


@frozen_dataclass
class EmittedConfig:
    """A DeepSpeed configuration, and per dotted key why it has that value."""

    config: dict[str, Any]
    reasons: dict[str, str]


class _Block:
    """A dictionary being written, each key with its reason."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.reasons: dict[str, str] = {}

    def put(self, key: str, value: object, why: str) -> None:
        """Set dotted ``key``; blocks on the way are made."""
        *parents, name = key.split(".")
        block = self.config
        for parent in parents:
            block = block.setdefault(parent, {})
        block[name] = value
        self.reasons[key] = why


def emit_deepspeed(strategy: Strategy, job: Job, *, variant: str = "raw") -> EmittedConfig:
    """The DeepSpeed configuration of ``strategy`` with the reason for every key. Raises InputError: an
    unknown variant, or settings that contradict the strategy's degrees."""
    if variant not in VARIANTS:
        raise InputError(f"variant {variant!r}: use one of {', '.join(VARIANTS)}")
    settings = deepspeed(strategy.settings)
    if settings.autotp_size not in (1, strategy.tensor_parallel):
        raise InputError(
            f"autotp_size {settings.autotp_size} contradicts tensor_parallel {strategy.tensor_parallel}"
        )
    block = _Block()
    _put_batch(block, strategy, variant)
    _put_precision(block, settings)
    _put_optimizer(block, settings, variant, adapters=job.method != "full")
    _put_zero(block, settings.zero)
    if strategy.tensor_parallel > 1:
        why = "layers split over so many GPUs; its peers must be given the same batch"
        block.put("tensor_parallel.autotp_size", strategy.tensor_parallel, why)
    block.put("steps_per_print", 10, "a line of progress every 10 optimizer steps")
    block.put("wall_clock_breakdown", False, "timers synchronise the GPU at every step; off")
    return EmittedConfig(config=block.config, reasons=block.reasons)


def deepspeed_config(strategy: Strategy, job: Job, *, variant: str = "raw") -> dict[str, Any]:
    """The DeepSpeed configuration of ``strategy`` (see :func:`emit_deepspeed`)."""
    return emit_deepspeed(strategy, job, variant=variant).config


def trainer_arguments(strategy: Strategy, job: Job) -> list[str]:
    """Arguments that make a Hugging Face Trainer script agree with the strategy. For scripts that parse
    ``TrainingArguments`` from the command line."""
    planned, unchecked = PlannedValues.of(strategy, liger_loss=job.loss == "liger"), job.defaults.unchecked
    values = planned.trainer_values()
    by_words = job.defaults.separator == " "  # of a command; keys of a file else
    off = unchecked.split() if planned.checkpointing == "none" and by_words else []
    said = {name: value for name, value in values.items() if value is not False}
    if said.get("max_grad_norm") == SETTINGS["gradient_clipping"].default:
        del said["max_grad_norm"]
    return [*(word for name, value in said.items() for word in (f"--{name}", str(value))), *off]


def script_must(strategy: Strategy, job: Job, launched: bool) -> list[str]:
    """What only the script can do: checkpoint, and divide its batches and layers over ranks; ``launched``:
    with the plan, whose arguments a Trainer is given."""
    del job
    todo = []
    if strategy.checkpointing == "full" and strategy.pipeline_parallel > 1:
        todo.append(f"checkpoint: {CHECKPOINTS_A_PIPELINE}")
    elif strategy.checkpointing == "full":
        trainer = "launch does" if launched else "--gradient_checkpointing True"
        todo.append(f"checkpoint: model.gradient_checkpointing_enable() (a Trainer: {trainer})")
    if strategy.tensor_parallel > 1:
        todo.append(
            "give tensor parallel peers the same batch: the Trainer and Accelerate do; a raw "
            "DeepSpeed script must shard its data over data-parallel ranks only"
        )
    if strategy.pipeline_parallel > 1:
        todo.append(
            "build its pipeline with the number of stages that `zerokit launch` tells it: "
            'PipelineModule(…, num_stages=int(os.environ["ZEROKIT_PIPELINE_STAGES"]))'
        )
    if strategy.sequence_parallel > 1:
        todo.append(
            "run through Accelerate (its parallelism_config, from accelerate.yaml), with position_ids in its "
            "batches"
        )
    return todo


def _put_batch(block: _Block, strategy: Strategy, variant: str) -> None:
    settings = strategy.settings
    filled = variant == "trainer"
    rows: list[tuple[str, object, str]] = [
        ("train_micro_batch_size_per_gpu", settings.micro_batch,
         "sequences per GPU and forward pass, chosen by the plan"),
        ("gradient_accumulation_steps", settings.gradient_accumulation,
         "micro-batches per optimizer step, chosen by the plan"),
        ("gradient_clipping", settings.gradient_clipping, "largest gradient norm; 0 turns clipping off"),
    ]  # fmt: skip
    # Left out with AutoTP and sequence parallel, where DeepSpeed may check it against the whole world size,
    # and for the Trainer, whose own arithmetic counts one process when it starts on CPU ranks.
    if strategy.tensor_parallel == 1 and strategy.sequence_parallel == 1 and not filled:
        product = f"{settings.micro_batch} × {settings.gradient_accumulation} × "
        product += counted(strategy.data_parallel, "data-parallel rank")
        why = f"{product}; another number of ranks fails at once"
        rows.insert(2, ("train_batch_size", strategy.global_batch, why))
    auto = "filled by the Trainer from TrainingArguments, which must agree with the plan"
    for key, value, why in rows:
        block.put(key, "auto" if filled else value, auto if filled else why)


def _put_precision(block: _Block, settings: DeepSpeedSettings) -> None:
    bf16, fp16 = settings.precision == "bf16", settings.precision == "fp16"
    why = f"the plan is for {settings.precision}; a literal, because auto becomes false unnoticed"
    block.put("bf16.enabled", bf16, why)
    if settings.bf16_master_weights_and_grads:
        halved = "master weights and gradients in bf16: half the memory"
        block.put("bf16.bf16_master_weights_and_grads", True, halved)
    if settings.bf16_optimizer_states:
        block.put("bf16.bf16_optimizer_states", True, "Adam's moments in bf16: half the memory")
    block.put("fp16.enabled", fp16, why)
    if fp16:
        scaling = "dynamic loss scaling with DeepSpeed's defaults"
        for key, value in (("loss_scale", 0), ("initial_scale_power", 16), ("loss_scale_window", 1000),
                           ("hysteresis", 2), ("min_loss_scale", 1)):  # fmt: skip
            block.put(f"fp16.{key}", value, scaling)
    if settings.fp16_master_weights_and_grads:
        block.put("fp16.fp16_master_weights_and_grads", True, "master weights in fp16, on the host")
    if settings.torch_autocast is not None:
        block.put("torch_autocast.enabled", True, "operators run in the low precision; weights stay in fp32")
        block.put("torch_autocast.dtype", settings.torch_autocast, "precision of the operators")
    for key in ("communication_data_type", "seq_parallel_communication_data_type"):
        if getattr(settings, key) is not None:
            block.put(key, getattr(settings, key), "precision of gradients on the wire")
    if settings.grad_accum_dtype is not None:
        block.put("data_types.grad_accum_dtype", settings.grad_accum_dtype, "precision gradients add up in")


def _put_optimizer(block: _Block, settings: DeepSpeedSettings, variant: str, *, adapters: bool) -> None:
    kind = settings.optimizer
    if not settings.zero_force_ds_cpu_optimizer:
        why = "allows the script's own optimizer together with offload"
        block.put("zero_force_ds_cpu_optimizer", False, why)
    untested = kind is not None and kind.lower() not in ZERO_TESTED_OPTIMIZERS
    if settings.zero.stage > 0 and (untested or kind is None or variant == "accelerate"):
        why = "DeepSpeed otherwise refuses an optimizer that is not on its ZeRO list"
        block.put("zero_allow_untested_optimizer", True, why)
    if kind is None or variant == "accelerate":
        return
    block.put("optimizer.type", kind, "states and step time are planned for it")
    for name, value in optimizer_params(kind, adapters=adapters).items():
        filled = variant == "trainer" and f"optimizer.params.{name}" in TRAINER_FILLS
        shown = "auto" if filled else list(value) if isinstance(value, list) else value
        why = "a starting point; change it at will"
        why = "filled by the Trainer from TrainingArguments" if filled else why
        block.put(f"optimizer.params.{name}", shown, why)
    if settings.torch_adam and kind.lower() in ("adam", "adamw"):
        block.put("optimizer.params.torch_adam", True, "torch's Adam: no kernel is compiled")


def _put_zero(block: _Block, zero: ZeroSettings) -> None:
    block.put("zero_optimization.stage", zero.stage, _STAGE_REASONS.get(zero.stage, ""))
    written = _KEYS_OF_STAGE[min(zero.stage, 1) if zero.stage < 3 else 3]
    default = ZeroSettings()
    # a value that differs from DeepSpeed's own is never dropped, whatever the stage
    others = {**_KEYS_OF_STAGE[1], **_KEYS_OF_STAGE[3], **_STAGE3_OPTIONS}
    for name, why in (*written.items(), *(row for row in others.items() if row[0] not in written)):
        value = zero.overlaps if name == "overlap_comm" and name in written else getattr(zero, name)
        if name in written or (value is not None and value != getattr(default, name)):
            block.put(f"zero_optimization.{'stage3_' * (name in _OF_STAGE_3)}{name}", value, why)
    _put_offload(block, "offload_optimizer", zero.offload_optimizer)
    _put_offload(block, "offload_param", zero.offload_param)
    if "nvme" in (zero.offload_optimizer.device, zero.offload_param.device):
        for key, value in _AIO.items():
            why = "DeepSpeed's default; `ds_nvme_tune` measures better ones for a disk"
            block.put(f"aio.{key}", value, why)


_STAGE_REASONS = {
    0: "every GPU holds everything: fastest when it fits",
    1: "optimizer states are divided over the data-parallel ranks",
    2: "optimizer states and gradients are divided over the data-parallel ranks",
    3: "weights, gradients and optimizer states are divided over the data-parallel ranks",
}


def _put_offload(block: _Block, key: str, offload: Offload) -> None:
    if offload.device == "none":
        return
    is_optimizer, on_disk = key == "offload_optimizer", offload.device == "nvme"
    weights_on_disk = on_disk and not is_optimizer
    moved_part = "optimizer states and step" if is_optimizer else "weights"
    for name, why, is_written in (
        ("device", f"{moved_part} move to {offload.device}: less memory of the GPU", True),
        ("pin_memory", "page-locked: full-speed copies, cannot be swapped out", True),
        ("ratio", "share of the optimizer step that runs on the host", is_optimizer and offload.ratio != 1.0),
        ("nvme_path", "a folder on a local NVMe disk of every node", on_disk),
        ("buffer_count", "pinned buffers between NVMe and the GPU", on_disk),
        ("buffer_size", "elements of one buffer; must hold the largest parameter", weights_on_disk),
        ("max_in_cpu", "elements of weights kept in host memory", weights_on_disk),
        ("pipeline_read", "reads the next tile while this one is stepped", on_disk and is_optimizer),
        ("pipeline_write", "writes the last tile while this one is stepped", on_disk and is_optimizer),
    ):
        if is_written:
            block.put(f"zero_optimization.{key}.{name}", getattr(offload, name), why)
