"""The DeepSpeed settings that move memory or time, with DeepSpeed's own defaults.

Read from a DeepSpeed JSON by :func:`from_config`, and written by
``zerokit.emit.deepspeed``; the two are inverse. Defaults:
``deepspeed/runtime/zero/config.py`` and ``offload_config.py``, version 0.19.8.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from zerokit.domain.training_settings import TrainingSettings
from zerokit.errors import InputError
from zerokit.values import frozen_dataclass

DEEPSPEED_VERSION = "0.19.8"

CONVERTS_A_CHECKPOINT = "zerokit weights CHECKPOINT --out DIR"
"""Makes weights that load of a ZeRO checkpoint."""

CONVERTS_ADAPTERS = "load_state_dict_from_zero_checkpoint(peft_model, DIR).save_pretrained(OUT)"
"""The same of adapters, in Python (deepspeed.utils.zero_to_fp32): PeftModel cannot load what the script
writes, whose names hold the adapter's and which has no ``adapter_config.json``."""


@frozen_dataclass
class Offload:
    """``offload_optimizer`` or ``offload_param`` of ``zero_optimization``."""

    device: str = "none"
    nvme_path: str | None = None
    pin_memory: bool = True
    buffer_count: int = 4
    buffer_size: int = 100_000_000
    max_in_cpu: int = 1_000_000_000
    ratio: float = 1.0
    pipeline_read: bool = False
    pipeline_write: bool = False


@frozen_dataclass
class ZeroSettings:
    """The ``zero_optimization`` block. Sizes are in elements, as DeepSpeed counts them. The defaults here are
    DeepSpeed's own; nothing else in the package repeats them (:data:`DEFAULT_ZERO`)."""

    stage: int = 0
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int = 500_000_000
    allgather_partitions: bool = True
    allgather_bucket_size: int = 500_000_000
    overlap_comm: bool | None = None  # None: true at stage 3, else false
    round_robin_gradients: bool = False
    sub_group_size: int = 1_000_000_000
    prefetch_bucket_size: int = 50_000_000
    param_persistence_threshold: int = 100_000
    model_persistence_threshold: int = sys.maxsize
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    gather_16bit_weights_on_model_save: bool = False
    zero_hpz_partition_size: int = 1
    zero_quantized_weights: bool = False
    zero_quantized_gradients: bool = False
    offload_optimizer: Offload = field(default_factory=Offload)
    offload_param: Offload = field(default_factory=lambda: Offload(buffer_count=5))

    @property
    def overlaps(self) -> bool:
        """``overlap_comm`` after DeepSpeed's dynamic default (zero/config.py, ``overlap_comm_valid``)."""
        return self.stage == 3 if self.overlap_comm is None else self.overlap_comm


DEFAULT_ZERO = ZeroSettings()
"""A ``zero_optimization`` block that says nothing."""


@frozen_dataclass
class DeepSpeedSettings(TrainingSettings):
    """One DeepSpeed configuration, as far as memory and time depend on it."""

    engine: ClassVar[str] = "deepspeed"
    torch_autocast: str | None = None  # dtype under "torch_autocast", which leaves weights in fp32
    grad_accum_dtype: str | None = None
    communication_data_type: str | None = None
    seq_parallel_communication_data_type: str | None = None
    autotp_size: int = 1
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False
    fp16_master_weights_and_grads: bool = False
    zero_force_ds_cpu_optimizer: bool = True
    zero: ZeroSettings = field(default_factory=ZeroSettings)

    @property
    def title(self) -> str:
        """The stage: ``ZeRO-3``."""
        return f"ZeRO-{self.zero.stage}"

    @property
    def family(self) -> tuple[object, ...]:
        """All but bucket sizes."""
        return (self.zero.stage, self.optimizer_device, self.weights_device)

    @property
    def zero_stage(self) -> int:
        """The stage, 0 to 3."""
        return self.zero.stage

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one parameter as the forward pass uses it."""
        return 4 if self.precision == "fp32" or self.torch_autocast else 2

    @property
    def state_element_bytes(self) -> int:
        """In the master weights' dtype on the GPU and, under ``bf16_optimizer_states``, on the host too
        (engine.py:2388); otherwise the host's Adam keeps fp32."""
        return 2 if self.bf16_optimizer_states else 4

    @property
    def divides_weights(self) -> bool:
        """True at stage 3."""
        return self.zero.stage == 3

    @property
    def divides_gradients(self) -> bool:
        """True from stage 2 on."""
        return self.zero.stage >= 2

    @property
    def divides_states(self) -> bool:
        """True from stage 1 on."""
        return self.zero.stage >= 1

    @property
    def optimizer_device(self) -> str:
        """The device of ``offload_optimizer``."""
        return self.zero.offload_optimizer.device

    @property
    def weights_device(self) -> str:
        """The device of ``offload_param``."""
        return self.zero.offload_param.device

    @property
    def autocasts(self) -> bool:
        """True with a ``torch_autocast`` block."""
        return self.torch_autocast is not None

    @property
    def has_own_linear(self) -> bool:
        """True at stage 3 (runtime/zero/linear.py)."""
        return self.zero.stage == 3

    @property
    def has_own_group(self) -> bool:
        """True below stage 3."""
        return self.zero.stage < 3


def deepspeed(settings: TrainingSettings) -> DeepSpeedSettings:
    """The settings as DeepSpeed's, for what is true of DeepSpeed alone. Raises TypeError: they are another
    engine's."""
    if not isinstance(settings, DeepSpeedSettings):
        raise TypeError(f"settings of {settings.engine}, not of DeepSpeed")
    return settings


AUTO = "auto"
"""What a file says where a Trainer or Accelerate is to put the value."""
_ZERO_KEYS = {
    "contiguous_gradients": "contiguous_gradients",
    "reduce_scatter": "reduce_scatter",
    "reduce_bucket_size": "reduce_bucket_size",
    "allgather_partitions": "allgather_partitions",
    "allgather_bucket_size": "allgather_bucket_size",
    "overlap_comm": "overlap_comm",
    "round_robin_gradients": "round_robin_gradients",
    "sub_group_size": "sub_group_size",
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "model_persistence_threshold": "stage3_model_persistence_threshold",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "gather_16bit_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "zero_hpz_partition_size": "zero_hpz_partition_size",
    "zero_quantized_weights": "zero_quantized_weights",
    "zero_quantized_gradients": "zero_quantized_gradients",
}
"""Field of :class:`ZeroSettings` -> key in the JSON."""

_OFFLOAD_KEYS = tuple(Offload.__dataclass_fields__)

DEPRECATED_OFFLOADS = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}
"""Block -> the flag that DeepSpeed turns into ``{"device": "cpu"}`` (runtime/zero/config.py:188 and 209)."""

_ZERO_BLOCK = "zero_optimization"
READ_KEYS = frozenset((
    f"{_ZERO_BLOCK}.stage",
    *(f"{_ZERO_BLOCK}.{key}" for names in (_ZERO_KEYS, _ZERO_KEYS.values(), DEPRECATED_OFFLOADS.values())
      for key in names),
    *(f"{_ZERO_BLOCK}.{block}.{key}" for block in DEPRECATED_OFFLOADS for key in _OFFLOAD_KEYS),
    *(f"{block}.{key}" for block in ("bf16", "bfloat16")
      for key in ("enabled", "bf16_master_weights_and_grads", "bf16_optimizer_states")),
    "fp16.enabled", "fp16.fp16_master_weights_and_grads", "torch_autocast.enabled", "torch_autocast.dtype",
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "data_types.grad_accum_dtype", "communication_data_type", "seq_parallel_communication_data_type",
    "optimizer.type", "optimizer.params", "tensor_parallel.autotp_size", "zero_force_ds_cpu_optimizer",
))  # fmt: skip
"""Dotted keys that :func:`from_config` and the batch's own reader take a value from."""


def _number(value: object, key: str) -> int:
    """DeepSpeed's ``pp_int`` fields: whole numbers, floats such as 5e8 included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) > 1e30:
        raise InputError(f"{key}: expected a whole number, got {value!r}")
    if value != int(value):
        raise InputError(f"{key}: {value!r} must be a whole number")
    return int(value)


def _real(value: object, key: str) -> float:
    if not isinstance(value, int | float) or not abs(value) < 1e30:
        raise InputError(f"{key}: expected a number, got {value!r}")
    return float(value)


def _block(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    block = config.get(key) or {}
    if not isinstance(block, Mapping):
        raise InputError(f"{key}: expected an object, got {block!r}")
    return {name: value for name, value in block.items() if value != AUTO}


def _offload(zero: Mapping[str, Any], key: str, default: Offload) -> Offload:
    block = _block(zero, key)
    if key not in zero and zero.get(DEPRECATED_OFFLOADS[key]):
        block = {"device": "cpu"}
    values = {name: block[name] for name in _OFFLOAD_KEYS if name in block}
    for name in ("buffer_count", "buffer_size", "max_in_cpu"):
        if name in values:
            values[name] = _number(values[name], f"zero_optimization.{key}.{name}")
    values["device"] = str(values.get("device") or "none")
    if "nvme_path" in values and values["nvme_path"] is not None:
        values["nvme_path"] = str(values["nvme_path"])
    fields = {name: getattr(default, name) for name in _OFFLOAD_KEYS} | values
    return Offload(**fields)


def _bf16(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``bf16``, or ``bfloat16`` where it is absent (runtime/precision_config.py, get_bfloat16_config)."""
    return _block(config, "bfloat16" if config.get("bf16") is None else "bf16")


def _precision(config: Mapping[str, Any]) -> str:
    for name, block in (("bf16", _bf16(config)), ("fp16", _block(config, "fp16"))):
        if block.get("enabled") is True:
            return name
    return "fp32"


def from_config(config: Mapping[str, Any]) -> DeepSpeedSettings:
    """Read the settings from a DeepSpeed JSON (already parsed).

    A value that is left to the script (``"auto"``) counts as absent.

    Raises:
        InputError: a value of the wrong kind.
    """
    config = {key: value for key, value in config.items() if value != AUTO}
    zero_block = _block(config, "zero_optimization")
    zero_values: dict[str, Any] = {}
    for name, key in _ZERO_KEYS.items():
        value = zero_block.get(key, zero_block.get(name))  # DeepSpeed takes the name without "stage3_" too
        if value is None:
            continue
        default = ZeroSettings.__dataclass_fields__[name].default
        is_flag = isinstance(default, bool) or name == "overlap_comm"
        zero_values[name] = bool(value) if is_flag else _number(value, f"zero_optimization.{key}")
    zero = ZeroSettings(
        stage=_number(zero_block.get("stage", 0), "zero_optimization.stage"),
        offload_optimizer=_offload(zero_block, "offload_optimizer", DEFAULT_ZERO.offload_optimizer),
        offload_param=_offload(zero_block, "offload_param", DEFAULT_ZERO.offload_param),
        **zero_values,
    )
    optimizer = _block(config, "optimizer")
    autocast = _block(config, "torch_autocast")
    bf16 = _bf16(config)
    return DeepSpeedSettings(
        precision=_precision(config),
        torch_autocast=str(autocast.get("dtype", "bfloat16")) if autocast.get("enabled") is True else None,
        micro_batch=_number(
            config.get("train_micro_batch_size_per_gpu", 1), "train_micro_batch_size_per_gpu"
        ),
        gradient_accumulation=_number(
            config.get("gradient_accumulation_steps", 1), "gradient_accumulation_steps"
        ),
        # clips at 1.0 unless told otherwise (constants.py:203 of 0.19.8; 0 before)
        gradient_clipping=_real(config.get("gradient_clipping", 1.0) or 0.0, "gradient_clipping"),
        grad_accum_dtype=_block(config, "data_types").get("grad_accum_dtype"),
        communication_data_type=config.get("communication_data_type"),
        seq_parallel_communication_data_type=config.get("seq_parallel_communication_data_type"),
        optimizer=str(optimizer["type"]) if optimizer.get("type") else None,
        torch_adam=bool(_block(optimizer, "params").get("torch_adam", False)),
        momentum=bool(_block(optimizer, "params").get("momentum", 0)),
        autotp_size=_number(_block(config, "tensor_parallel").get("autotp_size", 1), "autotp_size") or 1,
        bf16_master_weights_and_grads=bool(bf16.get("bf16_master_weights_and_grads", False)),
        bf16_optimizer_states=bool(bf16.get("bf16_optimizer_states", False)),
        fp16_master_weights_and_grads=bool(
            _block(config, "fp16").get("fp16_master_weights_and_grads", False)
        ),
        zero_force_ds_cpu_optimizer=config.get("zero_force_ds_cpu_optimizer") is not False,
        zero=zero,
    )
