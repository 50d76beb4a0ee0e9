"""What a plan, a script, a DeepSpeed file and a run can each say, by the name that each has for it: the one
table; and what differs where two of them say it.

A room that crosses from one of these vocabularies into another takes its names from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError
from zerokit.values import frozen_dataclass


@frozen_dataclass
class Setting:
    """One thing that is set, and what it is called.

    Attributes:
        name: in a plan's choice. label: in messages. option: of ``plan``, without dashes in front.
        deepspeed: key path in DeepSpeed's file. left_out: what a file that lacks it has.
        trainer: field of TrainingArguments, or of TRL's classes. default: what it holds where nobody gives it
        (transformers/training_args.py, 4.56 to 5.23). spellings: other names of scripts for it.
        accelerate: calls in a script's code and their keywords that say it.
        engine: what the record of a rank's engine has it under.
        decides_run: a run that does otherwise is not the plan's (exit code 9).
        told_by_script: a plan with a script takes it from the script's rehearsal.
    """

    name: str
    label: str
    option: str
    deepspeed: str = ""
    left_out: object = None
    trainer: str = ""
    default: object = None
    spellings: tuple[str, ...] = ()
    accelerate: tuple[tuple[str, str], ...] = ()
    engine: str = ""
    decides_run: bool = False
    told_by_script: bool = False

    @property
    def in_scripts(self) -> tuple[str, ...]:
        """All names by which a script may take it, the Trainer's first."""
        return (self.trainer, *self.spellings) if self.trainer else self.spellings

    @property
    def placeholder(self) -> str:
        """What stands for its value in a script's arguments."""
        return f"{{{self.argument}}}"

    @property
    def argument(self) -> str:
        """The option as an argument of ``zerokit.plan``."""
        return self.option.replace("-", "_")


def sharing_option(engine: str) -> str:
    """Name the option of ranks that share a sequence: FSDP2's context parallel, or Ulysses."""
    return "cp" if engine == "fsdp2" else "sp"


TRAINERS_MICRO_BATCH = 8
"""Where nobody says one: TrainingArguments.per_device_train_batch_size, in 4.56 to 5.23."""
_ZERO = "zero_optimization"
_ROWS = (
    Setting(
        name="zero_stage", label="ZeRO stage", option="zero", deepspeed=f"{_ZERO}.stage", engine="zero_stage",
        accelerate=(("DeepSpeedPlugin", "zero_stage"),), decides_run=True,
    ),
    Setting(
        name="micro_batch", label="batch size per GPU", option="micro-batch",
        deepspeed="train_micro_batch_size_per_gpu", trainer="per_device_train_batch_size",
        default=TRAINERS_MICRO_BATCH,
        spellings=("micro_batch_size", "micro_batch", "train_batch_size_per_device"), engine="micro_batch",
        decides_run=True,
    ),
    Setting(
        name="gradient_accumulation", label="gradient accumulation", option="gradient-accumulation",
        deepspeed="gradient_accumulation_steps", left_out=1,  # Accelerate writes it into the file
        trainer="gradient_accumulation_steps", default=1,
        spellings=("gradient_accumulation", "grad_accum_steps"),
        accelerate=(
            ("Accelerator", "gradient_accumulation_steps"),
            ("DeepSpeedPlugin", "gradient_accumulation_steps"),
            ("GradientAccumulationPlugin", "num_steps"),
        ),
        engine="gradient_accumulation", decides_run=True,
    ),
    Setting(
        name="tensor_parallel", label="tensor parallel", option="tp", engine="tensor_parallel",
    ),
    Setting(
        name="offload_optimizer", label="optimizer offload", option="offload-optimizer",
        deepspeed=f"{_ZERO}.offload_optimizer.device", left_out="none",
        accelerate=(("DeepSpeedPlugin", "offload_optimizer_device"),), engine="offload_optimizer",
    ),
    Setting(
        name="offload_param", label="weight offload", option="offload-param",
        deepspeed=f"{_ZERO}.offload_param.device", left_out="none",
        accelerate=(("DeepSpeedPlugin", "offload_param_device"),), engine="offload_param",
    ),
    Setting(
        name="precision", label="precision", option="precision", engine="precision",
        accelerate=(("Accelerator", "mixed_precision"),), decides_run=True,
    ),
    Setting(
        name="activation_checkpointing", label="activation checkpointing", option="checkpointing",
        trainer="gradient_checkpointing", default=False, spellings=("activation_checkpointing",),
        engine="gradient_checkpointing",
    ),
    Setting(name="pipeline_parallel", label="pipeline parallel", option="pp"),
    Setting(name="sequence_parallel", label="sequence parallel", option="sp"),
    Setting(
        name="gradient_clipping", label="gradient clipping", option="", deepspeed="gradient_clipping",
        trainer="max_grad_norm", default=1.0,
    ),
    Setting(
        name="optimizer", label="optimizer", option="optimizer", deepspeed="optimizer.type", trainer="optim",
        default="adamw_torch_fused", engine="optimizer",
    ),
    Setting(
        name="seq_len", label="sequence length", option="seq-len", trainer="max_length",
        spellings=("max_seq_length", "max_seq_len", "seq_len", "seq_length", "cutoff_len", "sequence_len",
                   "block_size", "model_max_length"),
        told_by_script=True,
    ),
    Setting(name="method", label="trained parameters", option="method", told_by_script=True),
    Setting(
        name="lora_rank", label="adapters' rank", option="lora-rank", trainer="lora_r",
        spellings=("lora_rank", "lora_dim", "rank", "r"), told_by_script=True,
    ),
    Setting(
        name="lora_targets", label="adapters' modules", option="lora-targets", trainer="lora_target_modules",
        told_by_script=True,
    ),
    Setting(
        name="lora_dropout", label="adapters' dropout", option="lora-dropout", trainer="lora_dropout",
        told_by_script=True,
    ),
    Setting(name="trainer", label="trainer", option="trainer", told_by_script=True),
    Setting(name="loss", label="loss", option="loss", trainer="use_liger_kernel", default=False),
    Setting(
        name="model", label="model", option="model", trainer="model_name_or_path",
        spellings=("pretrained_model_name_or_path", "model_name", "model_id", "base_model", "model"),
    ),
    *(
        Setting(name=key, label=name, option="", deepspeed=key, trainer=name, default=default)
        for key, name, default in (
            ("optimizer.params.lr", "learning_rate", 5e-5),
            ("optimizer.params.eps", "adam_epsilon", 1e-8),
            ("optimizer.params.weight_decay", "weight_decay", 0.0),
            ("optimizer.params.betas.0", "adam_beta1", 0.9),
            ("optimizer.params.betas.1", "adam_beta2", 0.999),
            ("scheduler.params.warmup_max_lr", "learning_rate", 5e-5),
            ("scheduler.params.total_num_steps", "max_steps", -1),
            ("scheduler.params.warmup_num_steps", "warmup_steps", 0),
            ("fp16.enabled", "fp16", False),
            ("bf16.enabled", "bf16", False),
        )
    ),
)  # fmt: skip
SETTINGS: Mapping[str, Setting] = {row.name: row for row in _ROWS}
BY_OPTION: Mapping[str, Setting] = {row.option: row for row in _ROWS if row.option}
BY_ARGUMENT: Mapping[str, Setting] = {row.trainer: row for row in reversed(_ROWS) if row.trainer}
"""Field of TrainingArguments -> what it sets; of the precision ``bf16`` and ``fp16`` each say a half."""
BY_CALL: Mapping[tuple[str, str], Setting] = {call: row for row in _ROWS for call in row.accelerate}
PLUGIN_KEYS: Mapping[str, str] = {
    **{keyword: row.deepspeed for (call, keyword), row in BY_CALL.items() if call == "DeepSpeedPlugin"},
    "gradient_clipping": "gradient_clipping",
    "offload_param_nvme_path": f"{_ZERO}.offload_param.nvme_path",
    "offload_optimizer_nvme_path": f"{_ZERO}.offload_optimizer.nvme_path",
    "zero3_save_16bit_model": f"{_ZERO}.stage3_gather_16bit_weights_on_model_save",
}
"""Key of an accelerate YAML's ``deepspeed_config``, a keyword of DeepSpeedPlugin -> where that writes it
(accelerate 1.15, dataclasses.py:1302); it refuses these beside a file (``_deepspeed_config_checks``)."""
PLUGINS_STAGE = 2
"""Where neither says a stage (accelerate 1.15, utils/dataclasses.py, DeepSpeedPlugin.__post_init__)."""


def value_at(config: Any, path: str) -> Any:
    """What stands at a dotted path of a DeepSpeed file: ``"auto"`` where that, or what it is part of, is left
    open; None: nothing."""
    for key in path.split("."):
        if config == "auto":
            break
        if isinstance(config, list):
            config = dict(enumerate(config)).get(int(key)) if key.isdecimal() else None
        else:
            config = config.get(key) if isinstance(config, Mapping) else None
    return config


@frozen_dataclass
class Stated:
    """A value that somebody gives a setting. ``where``: it stands, as it is written there: ``train.py:12:
    Accelerator(mixed_precision='bf16')``. ``edit``: arguments that would make it the other side's; empty:
    there are none."""

    setting: Setting
    value: Any
    where: str = ""
    edit: tuple[str, ...] = ()


def unlike_script(option: str, asked: object, why: str, change: str = "change the script") -> InputError:
    """The error of an option that asks for something else than the script does. ``option``: as an argument of
    ``zerokit.plan``. ``why``: what the script does. ``change``: what to do unless the option is left out."""
    return InputError(f"⟨{option}⟩ {asked}: {why}; leave ⟨{option}⟩ out, or {change}")


def is_equal(one: object, other: object) -> bool:
    """Whether two values are the same; one that is not known (None) is no other."""
    return one is None or other is None or one == other


def compare(
    planned: Mapping[str, object],
    stated: Iterable[Stated],
    same: Callable[[object, object], bool] = is_equal,
) -> list[tuple[Stated, Any]]:
    """The statements of values that differ from the plan's, each with the plan's. ``planned``: values by a
    setting's name; one that it lacks is held to nothing. ``same``: whether two values are the same to who
    reads them."""
    return [
        (one, planned[one.setting.name])
        for one in stated
        if one.setting.name in planned and not same(one.value, planned[one.setting.name])
    ]


@frozen_dataclass
class PlannedValues:
    """What of a plan only the training script can do.

    Attributes:
        micro_batch: sequences per GPU and forward pass.
        gradient_accumulation: micro-batches per optimizer step.
        precision: ``bf16``, ``fp16`` or ``fp32``, as the ranks will run.
        checkpointing: ``none``, ``full`` or ``selective``.
        gradient_clipping: the largest norm; None leaves the script's.
        optimizer: that the script makes, by the Trainer's name for it; None: DeepSpeed makes its own.
        liger_loss: head and loss are fused by Liger Kernel.
        on_cpu: the ranks run without a GPU.
    """

    micro_batch: int
    gradient_accumulation: int
    precision: str
    checkpointing: str
    gradient_clipping: float | None = None
    optimizer: str | None = None
    liger_loss: bool = False
    on_cpu: bool = False

    @classmethod
    def of(cls, strategy: Strategy, *, liger_loss: bool = False) -> PlannedValues:
        """What a strategy has of it; under FSDP2 its own file checkpoints."""
        settings, in_parts = strategy.settings, strategy.is_loaded_in_parts
        return cls(
            micro_batch=settings.micro_batch,
            gradient_accumulation=settings.gradient_accumulation,
            precision="fp32" if in_parts else settings.precision,  # DistributedConfig says it
            checkpointing="none" if strategy.engine == "fsdp2" and not in_parts else strategy.checkpointing,
            gradient_clipping=settings.gradient_clipping,
            optimizer=settings.client_optimizer,
            liger_loss=liger_loss,
        )

    def trainer_values(self) -> dict[str, object]:
        """As TrainingArguments name them; whole layers are all the checkpointing that a Trainer knows."""
        values: dict[str, object] = {
            "per_device_train_batch_size": self.micro_batch,
            "gradient_accumulation_steps": self.gradient_accumulation,
        }
        if self.gradient_clipping is not None:
            values["max_grad_norm"] = self.gradient_clipping
        if self.optimizer is not None:
            values["optim"] = self.optimizer
        values |= {name: self.precision == name for name in ("bf16", "fp16")}
        if self.checkpointing != "selective":
            values["gradient_checkpointing"] = self.checkpointing == "full"
        if self.liger_loss:
            values["use_liger_kernel"] = True
        return values
