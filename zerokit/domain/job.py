"""What is to be trained or served: batch, sequence, precision, method."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.domain.images import SequenceImages
from zerokit.domain.trainers import DEFAULT_DROPOUT, TRAINERS, Trainer
from zerokit.domain.training_settings import TrainingSettings
from zerokit.values import frozen_dataclass

PRECISIONS = ("bf16", "fp16", "fp32")
METHODS = ("full", "lora", "qlora")
LOSSES = ("standard", "chunked", "liger", "cut")
"""The model's own loss, TRL's chunked one, Liger's fused one, cut cross-entropy."""
LOSS_OF_SCRIPT: Mapping[str, str] = {
    "chunked": "compute the loss in chunks: TRL's SFTTrainer does (loss_type nll)",
    "liger": "fuse head and loss: TrainingArguments(use_liger_kernel=True) does (pip install liger-kernel), "
    "TRL's SFTTrainer does not",
    "cut": "fuse head and loss: cut_cross_entropy.linear_cross_entropy(hidden, lm_head.weight, labels, "
    "shift=True) (pip install cut-cross-entropy)",
}
"""How a script computes a loss other than the model's own."""
CHECKPOINTS_A_PIPELINE = "PipelineModule(…, activation_checkpoint_interval=1)"
"""How a script with a pipeline recomputes every layer (deepspeed/runtime/pipe/module.py:117)."""

NF4_BYTES = 0.5 + 4 / 64
"""Of a weight in NF4: 4 bits, and an fp32 scale for each block of 64 (QLoRA, arXiv 2305.14314)."""
NESTED_NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""With the scales in 8 bits and an fp32 scale for 256 of them: double quantisation, as plans ask of QLoRA."""
QUANTIZED_BYTES = {"int8": 1.0, "int4": NF4_BYTES}
"""Of a quantised weight when serving."""

TORCH_ADAMW = "adamw_torch"
"""What a Trainer calls torch's AdamW on lists of tensors (transformers 5.23, trainer_optimizer.py)."""

PACKED_LORA = "QLoRA (base weights in 4 bits)"
"""What the probe calls adapters on weights in NF4."""


@frozen_dataclass
class Lora:
    """A peft ``LoraConfig``: rank, which modules get adapters (name suffixes, or ``all-linear``), and the
    share of their input that is dropped."""

    rank: int = 16
    targets: tuple[str, ...] = ("all-linear",)
    dropout: float = DEFAULT_DROPOUT

    @classmethod
    def read(cls, value: object) -> Lora | None:
        """From a probe's record; None where it holds none."""
        if not isinstance(value, Mapping):
            return None
        rank, targets = value.get("rank"), value.get("targets")
        if not isinstance(rank, int) or not isinstance(targets, str):
            return None
        return cls(rank=rank, targets=tuple(targets.split(",")))

    def to_dict(self) -> dict[str, int | str]:
        """For a probe's record."""
        return {"rank": self.rank, "targets": ",".join(self.targets)}

    def is_like(self, other: Lora) -> bool:
        """Whether both have the same rank, on the same modules."""
        return self.rank == other.rank and set(self.targets) == set(other.targets)

    def __str__(self) -> str:
        return f"LoRA of rank {self.rank} on {', '.join(self.targets)}"


@frozen_dataclass
class Job:
    """One training (or serving) job, apart from how it is spread over GPUs.

    Attributes:
        seq_len: tokens per sequence.
        global_batch: sequences per optimizer step over all GPUs; ``None``: the planner chooses.
        method: ``full`` fine-tuning, ``lora``, or ``qlora`` (base weights in NF4).
        attention: the Transformers attention implementation.
        attention_mask_given: whether batches carry an attention mask with padding, which attention takes.
        optimizer: DeepSpeed optimizer type.
        optimizer_groups: of its groups of parameters all but the first: patterns of their names.
        torch_adam: where the script makes it, AdamW steps lists of tensors and is not fused.
        new_tokens: of ``seq_len``, those that are generated: in inference, where ``None`` says that the
            prompt may take them all, and to be trained on where the trainer ``completes``.
        quantization: of the weights when serving; of frozen base weights under ``lora`` (``int8``).
        loss: one of :data:`LOSSES`.
        offload_activations: whether the script moves them to the host, as TRL does.
        eval_batch: sequences of a pass without a graph on one rank, between steps; ``None``: none is run.
        images: of each sequence, for a model with a vision tower; ``None``: text alone.
        use_reentrant_checkpointing: whether its full checkpointing is reentrant; None: as its trainer's is.
        keeps_recomputed: the versions of Transformers and DeepSpeed are such that reentrant checkpoints keep
            frozen weights under ZeRO-3 (``zerokit.memory.rank_model``).
        trainer: whose defaults hold: a key of :data:`zerokit.domain.trainers.TRAINERS`.
    """

    seq_len: int = 2048
    global_batch: int | None = None
    method: str = "full"
    lora: Lora | None = None
    optimizer: str = "AdamW"
    optimizer_groups: tuple[str, ...] = ()
    torch_adam: bool = False
    attention: str = "sdpa"
    attention_mask_given: bool = False
    use_reentrant_checkpointing: bool | None = None
    keeps_recomputed: bool = False
    inference: bool = False
    quantization: str = "none"
    new_tokens: int | None = None
    loss: str = "standard"
    offload_activations: bool = False
    eval_batch: int | None = None
    images: SequenceImages | None = None
    trainer: str = "raw"

    @property
    def defaults(self) -> Trainer:
        """Defaults of its trainer."""
        return TRAINERS[self.trainer]

    @property
    def adapters(self) -> Lora:
        """Adapters of its method, or of another that is compared with it."""
        return self.lora or Lora(dropout=self.defaults.lora_dropout)

    @property
    def row_tokens(self) -> int:
        """Tokens of a row of the data, which counts once in a batch."""
        return self.seq_len * self.defaults.sequences

    @property
    def serving_tokens(self) -> tuple[int, int]:
        """Tokens of the prompt, and in the cache at its longest. The last one made never enters the cache."""
        if self.new_tokens is None:
            return self.seq_len, self.seq_len
        return max(1, self.seq_len - self.new_tokens), max(1, self.seq_len - 1)

    @property
    def scored_tokens(self) -> int | None:
        """Tokens at the end of a sequence that its loss counts alone; None: it counts all."""
        return self.new_tokens if self.defaults.completes else None

    def is_reentrant(self, settings: TrainingSettings) -> bool:
        """Whether checkpointing is reentrant under these settings."""
        if self.use_reentrant_checkpointing is not None:
            return self.use_reentrant_checkpointing
        return self.defaults.reentrant or self.has_narrow_adapters(settings)

    def has_narrow_adapters(self, settings: TrainingSettings) -> bool:
        """Whether its trainer keeps adapters under ZeRO-3 in the training dtype."""
        return settings.zero_stage == 3 and self.method == "lora" and self.defaults.narrow_adapters

    def has_wide_ends(self, settings: TrainingSettings) -> bool:
        """Whether its trainer has norms, embeddings and head in fp32 beside layers in 16 bits."""
        fused = self.attention == "flash_attention_2" or self.loss == "cut"
        kept = self.method == "full" and settings.mixes_dtypes and not fused
        return kept and self.defaults.wide_ends

    @property
    def fuses_adapters(self) -> bool:
        """Whether its trainer runs adapters in functions of its own, as axolotl not on weights in 8 bits."""
        return self.defaults.fuses_adapters and self.method != "full" and self.quantization != "int8"

    @property
    def kbit_prepared(self) -> bool:
        """Whether peft's ``prepare_model_for_kbit_training`` casts what is not quantised to fp32, before
        DeepSpeed casts it back."""
        return self.method == "qlora" and self.defaults.kbit_prepared

    @property
    def loads_on_gpu(self) -> bool:
        """Whether weights go from their file to the GPU one by one: no whole model is built in host memory.

        So Transformers loads a quantised model (5.17 and 5.23: ``quantizer_bnb_4bit.py``,
        ``update_device_map``; ``core_model_loading.py`` then reads one tensor after another). The pages of a
        mapped file are the kernel's, which takes them back.
        """
        return self.packed_base_bytes is not None or (self.inference and self.quantization != "none")

    @property
    def packed_base_bytes(self) -> float | None:
        """Bytes of a weight of the layers that are quantised under adapters; None: none are."""
        if self.inference or self.method == "full":
            return None
        if self.method == "qlora":
            return NESTED_NF4_BYTES if self.defaults.double_quant else NF4_BYTES
        return QUANTIZED_BYTES.get(self.quantization)
