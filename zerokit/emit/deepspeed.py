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

from zerokit.domain.deepspeed_settings import DeepSpeedSettings, Offload, ZeroSettings
from zerokit.domain.job import Job
from zerokit.domain.settings import PlannedValues
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


# stage -> ((field of ZeroSettings, key in the JSON, why), ...), in the order written
_TRAINERS_CLIPPING = 1.0  # TrainingArguments.max_grad_norm (Transformers 5.23, training_args.py)
_BUCKETS = "sized for this model: larger buckets send fewer messages and take more memory"
_COMMON = (
    ("contiguous_gradients", "contiguous_gradients", "one gradient buffer; avoids fragmentation in backward"),
    ("reduce_scatter", "reduce_scatter", "each rank receives only the gradients that it owns"),
    ("reduce_bucket_size", "reduce_bucket_size", f"elements reduced at a time; {_BUCKETS}"),
    (
        "overlap_comm",
        "overlap_comm",
        "true overlaps gradient reduction with backward, for a second reduce bucket",
    ),
)
_KEYS_OF_STAGE: Mapping[int, tuple[tuple[str, str, str], ...]] = {
    0: (),
    1: (
        *_COMMON,
        (
            "allgather_partitions",
            "allgather_partitions",
            "all-gather of the updated weights instead of broadcasts",
        ),
        ("allgather_bucket_size", "allgather_bucket_size", f"elements gathered at a time; {_BUCKETS}"),
        (
            "round_robin_gradients",
            "round_robin_gradients",
            "spreads the copies of gradients to the host over ranks",
        ),
    ),
    3: (
        *_COMMON,
        (
            "sub_group_size",
            "sub_group_size",
            "elements that the optimizer steps at once; bounds its working set",
        ),
        (
            "prefetch_bucket_size",
            "stage3_prefetch_bucket_size",
            "elements gathered ahead of use: memory for overlap",
        ),
        (
            "param_persistence_threshold",
            "stage3_param_persistence_threshold",
            "parameters smaller than this stay on every GPU (saves messages for biases and norms)",
        ),
        ("max_live_parameters", "stage3_max_live_parameters", "most elements gathered at any time"),
        (
            "max_reuse_distance",
            "stage3_max_reuse_distance",
            "weights needed again within so many elements are kept",
        ),
        (
            "gather_16bit_weights_on_model_save",
            "stage3_gather_16bit_weights_on_model_save",
            "whether save_16bit_model and save_pretrained write whole weights (gathers them on rank 0)",
        ),
    ),
}
_STAGE3_OPTIONS = (
    (
        "model_persistence_threshold",
        "stage3_model_persistence_threshold",
        "most elements that persist on every GPU",
    ),
    (
        "zero_hpz_partition_size",
        "zero_hpz_partition_size",
        "ZeRO++: a second copy of the weights inside a node",
    ),
    ("zero_quantized_weights", "zero_quantized_weights", "ZeRO++: weights cross the network as int8"),
    ("zero_quantized_gradients", "zero_quantized_gradients", "ZeRO++: gradients cross the network as int4"),
)
_AIO = {
    "block_size": 1048576,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}


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
    """The DeepSpeed configuration of ``strategy`` with the reason for every key.

    Raises:
        InputError: an unknown variant, or settings that contradict the strategy's degrees.
    """
    if variant not in VARIANTS:
        raise InputError(f"variant {variant!r}: use one of {', '.join(VARIANTS)}")
    settings = strategy.settings
    if settings.autotp_size not in (1, strategy.tensor_parallel):
        raise InputError(
            f"autotp_size {settings.autotp_size} contradicts tensor_parallel {strategy.tensor_parallel}"
        )
    block = _Block()
    _put_batch(block, strategy, variant)
    _put_precision(block, settings)
    _put_optimizer(block, settings, variant, adapters=job.method != "full")
    _put_zero(block, settings.zero)
    _put_parallel(block, strategy)
    block.put("steps_per_print", 10, "a line of progress every 10 optimizer steps")
    block.put("wall_clock_breakdown", False, "timers synchronise the GPU at every step; off")
    return EmittedConfig(config=block.config, reasons=block.reasons)


def deepspeed_config(strategy: Strategy, job: Job, *, variant: str = "raw") -> dict[str, Any]:
    """The DeepSpeed configuration of ``strategy`` (see :func:`emit_deepspeed`)."""
    return emit_deepspeed(strategy, job, variant=variant).config


def trainer_arguments(strategy: Strategy, loss: str = "standard") -> list[str]:
    """Arguments that make a Hugging Face Trainer script agree with the strategy.

    For scripts that parse ``TrainingArguments`` from the command line.
    """
    values = PlannedValues.of(strategy, liger_loss=loss == "liger").trainer_values()
    said = {name: value for name, value in values.items() if value is not False}
    if said.get("max_grad_norm") == _TRAINERS_CLIPPING:
        del said["max_grad_norm"]
    return [word for name, value in said.items() for word in (f"--{name}", str(value))]


def _put_batch(block: _Block, strategy: Strategy, variant: str) -> None:
    settings = strategy.settings
    filled = variant == "trainer"
    auto = "filled by the Trainer from TrainingArguments, which must agree with the plan"
    block.put(
        "train_micro_batch_size_per_gpu",
        "auto" if filled else settings.micro_batch,
        auto if filled else "sequences per GPU and forward pass, chosen by the plan",
    )
    block.put(
        "gradient_accumulation_steps",
        "auto" if filled else settings.gradient_accumulation,
        auto if filled else "micro-batches per optimizer step, chosen by the plan",
    )
    # Left out with AutoTP and sequence parallel, where DeepSpeed may check it against the whole world size,
    # and for the Trainer, whose own arithmetic counts one process when it starts on CPU ranks.
    if strategy.tensor_parallel == 1 and strategy.sequence_parallel == 1 and not filled:
        block.put(
            "train_batch_size",
            strategy.global_batch,
            f"{settings.micro_batch} × {settings.gradient_accumulation} × "
            f"{counted(strategy.data_parallel, 'data-parallel rank')}; another number of ranks fails at once",
        )
    block.put(
        "gradient_clipping",
        "auto" if filled else settings.gradient_clipping,
        auto if filled else "largest gradient norm; 0 turns clipping off",
    )


def _put_precision(block: _Block, settings: DeepSpeedSettings) -> None:
    bf16, fp16 = settings.precision == "bf16", settings.precision == "fp16"
    why = f"the plan is for {settings.precision}; a literal, because auto becomes false unnoticed"
    block.put("bf16.enabled", bf16, why)
    if settings.bf16_master_weights_and_grads:
        block.put(
            "bf16.bf16_master_weights_and_grads",
            True,
            "master weights and gradients in bf16: half the memory",
        )
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
        block.put(
            "zero_force_ds_cpu_optimizer", False, "allows the script's own optimizer together with offload"
        )
    untested = kind is not None and kind.lower() not in ZERO_TESTED_OPTIMIZERS
    if settings.zero.stage > 0 and (untested or kind is None or variant == "accelerate"):
        block.put(
            "zero_allow_untested_optimizer",
            True,
            "DeepSpeed otherwise refuses an optimizer that is not on its ZeRO list",
        )
    if kind is None or variant == "accelerate":
        return
    block.put("optimizer.type", kind, "states and step time are planned for it")
    for name, value in optimizer_params(kind, adapters=adapters).items():
        filled = variant == "trainer" and f"optimizer.params.{name}" in TRAINER_FILLS
        block.put(
            f"optimizer.params.{name}",
            "auto" if filled else list(value) if isinstance(value, list) else value,
            "filled by the Trainer from TrainingArguments"
            if filled
            else "a starting point; change it at will",
        )
    if settings.torch_adam and kind.lower() in ("adam", "adamw"):
        block.put("optimizer.params.torch_adam", True, "torch's Adam: no kernel is compiled")


def _put_zero(block: _Block, zero: ZeroSettings) -> None:
    block.put("zero_optimization.stage", zero.stage, _STAGE_REASONS.get(zero.stage, ""))
    keys = _KEYS_OF_STAGE[min(zero.stage, 1) if zero.stage < 3 else 3]
    written_names = {name for name, _, _ in keys}
    for name, key, why in keys:
        value = zero.overlaps if name == "overlap_comm" else getattr(zero, name)
        block.put(f"zero_optimization.{key}", value, why)
    default = ZeroSettings()
    # a value that differs from DeepSpeed's own is never dropped, whatever the stage
    everything = {n: (k, w) for stage_keys in _KEYS_OF_STAGE.values() for n, k, w in stage_keys}
    everything |= {n: (k, w) for n, k, w in _STAGE3_OPTIONS}
    for name, (key, why) in everything.items():
        value = getattr(zero, name)
        if name not in written_names and value is not None and value != getattr(default, name):
            block.put(f"zero_optimization.{key}", value, why)
    _put_offload(block, "offload_optimizer", zero.offload_optimizer)
    _put_offload(block, "offload_param", zero.offload_param)
    if "nvme" in (zero.offload_optimizer.device, zero.offload_param.device):
        for key, value in _AIO.items():
            block.put(
                f"aio.{key}", value, "DeepSpeed's default; `ds_nvme_tune` measures better ones for a disk"
            )


_STAGE_REASONS = {
    0: "every GPU holds everything: fastest when it fits",
    1: "optimizer states are divided over the data-parallel ranks",
    2: "optimizer states and gradients are divided over the data-parallel ranks",
    3: "weights, gradients and optimizer states are divided over the data-parallel ranks",
}


def _put_offload(block: _Block, key: str, offload: Offload) -> None:
    if offload.device == "none":
        return
    prefix = f"zero_optimization.{key}"
    moved_part = "optimizer states and step" if key == "offload_optimizer" else "weights"
    block.put(
        f"{prefix}.device", offload.device, f"{moved_part} move to {offload.device}: less memory of the GPU"
    )
    block.put(
        f"{prefix}.pin_memory", offload.pin_memory, "page-locked: full-speed copies, cannot be swapped out"
    )
    if key == "offload_optimizer" and offload.ratio != 1.0:
        block.put(f"{prefix}.ratio", offload.ratio, "share of the optimizer step that runs on the host")
    if offload.device != "nvme":
        return
    block.put(f"{prefix}.nvme_path", offload.nvme_path, "a folder on a local NVMe disk of every node")
    block.put(f"{prefix}.buffer_count", offload.buffer_count, "pinned buffers between NVMe and the GPU")
    if key == "offload_param":
        block.put(
            f"{prefix}.buffer_size",
            offload.buffer_size,
            "elements of one buffer; must hold the largest parameter",
        )
        block.put(f"{prefix}.max_in_cpu", offload.max_in_cpu, "elements of weights kept in host memory")
    else:
        block.put(
            f"{prefix}.pipeline_read", offload.pipeline_read, "reads the next tile while this one is stepped"
        )
        block.put(
            f"{prefix}.pipeline_write",
            offload.pipeline_write,
            "writes the last tile while this one is stepped",
        )


def _put_parallel(block: _Block, strategy: Strategy) -> None:
    if strategy.tensor_parallel > 1:
        block.put(
            "tensor_parallel.autotp_size",
            strategy.tensor_parallel,
            "layers split over so many GPUs; its peers must be given the same batch",
        )
