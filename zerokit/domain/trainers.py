"""What trainers do where nobody says otherwise, as far as memory depends on it: the one table.

``⟨trainer⟩`` takes a row of it, options that are given win; ``launch`` holds a script of such a trainer to
the plan by it; and an answer says in the trainer's own arguments what the plan counts on. Below ZeRO-3
DeepSpeed casts every parameter that is not packed to the training precision (runtime/engine.py:1851, 0.19.8,
``_cast_module_mixed_precision``), so ``autocast_adapter_dtype``, ``prepare_model_for_kbit_training`` and the
precision in which the base was loaded change nothing once the engine stands;
what the preparation casts to fp32 counts before it (``kbit_prepared``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import field

from zerokit.notes import Note
from zerokit.values import frozen_dataclass, replace

DEFAULT_DROPOUT = 0.05
"""Of the adapters' input, as most tutorials set it; that of peft's own class is 0 (tuners/lora/config.py:653,
0.21.2)."""


@frozen_dataclass
class Trainer:
    """One trainer's defaults.

    Attributes:
        title: with the version that was read; ``sources``: what was read, by attribute.
        lora_dropout: share of the adapters' input that is dropped.
        loss: one of ``zerokit.domain.job.LOSSES``, or another of ``zerokit.memory.fused_loss``.
        checkpointing: where nobody says: ``none`` or ``full``.
        kbit_prepared: whether it calls peft's ``prepare_model_for_kbit_training`` for 4-bit weights.
        reentrant: whether its checkpointing is reentrant. ``narrow_adapters``: whether that is so of adapters
            under ZeRO-3, which stay in the training dtype there (``autocast_adapter_dtype=False``).
        autocasts: whether, without an engine, Accelerate runs its forward under autocast in 16 bits.
        loads_wide: methods whose weights are in fp32 then, where nobody says; of others they are in 16 bits.
        wide_ends: whether norms, gates of experts, embeddings and head are in fp32 where all weights are
            trained in 16 bits, for no fused attention and no fused loss that takes them in 16.
        shards_as_loaded: whether FSDP2 divides weights that are all trained as they were loaded, where
            Accelerate makes them fp32.
        narrow_on_packed: whether adapters on quantised weights are in bf16, not in fp32.
        disables_dropout: whether it sets every dropout of the model to 0, that of adapters too.
        sequences: of a row. ``reference``: whether they pass through a reference model too: with adapters the
            base, else a copy of the weights. ``reference_as``: how that is: ``copy``, as they are loaded,
            ``narrow copy``, in 16 bits, or ``wide copy``, in fp32.
        compares: whether the model passes over other answers, too, without a graph. ``least_rows``: of a
            micro-batch, below which it stops: their answers are compared with.
        completes: whether rows are prompts, to which ⟨new_tokens⟩ are added, and the loss is of these alone.
            A reference model's pass then comes before a step, not between forward and backward.
        generates: whether the model that is trained makes them itself, those of a step at once.
        gathers: whether Accelerate gathers what it logs, on a communicator of NCCL's own. ``waits``: whether
            its ranks wait for each other before training, which makes that communicator.
        input_grads: whether the embeddings' output needs a gradient under adapters without checkpointing too.
        fuses_adapters: whether it runs adapters in functions of its own, which keep less.
        older_deepspeed: whether it asks for a DeepSpeed before 0.19.3.
        looks_for_unused: whether DistributedDataParallel looks for adapters without a gradient.
        double_quant: of 4-bit weights, whether their block constants are quantised too.
        packages: whose scripts are this trainer's; ``names``: which its scripts use.
        unchecked: its argument that turns checkpointing off, where its default is to checkpoint.
        arguments: how it is asked for adapters, on ``all`` linear modules or on those ``named``, for weights
            in 4 bits (``packed``) and double quantisation (``nested``); empty: in Python.
        separator: between arguments.
        not_counted: what else it does by default, and with which methods, or with a mixture of ``experts``.
    """

    title: str
    lora_dropout: float = DEFAULT_DROPOUT
    loss: str = "standard"
    checkpointing: str = "none"
    double_quant: bool = True
    kbit_prepared: bool = False
    reentrant: bool = False
    narrow_adapters: bool = False
    autocasts: bool = True
    loads_wide: tuple[str, ...] = ()
    wide_ends: bool = False
    shards_as_loaded: bool = False
    narrow_on_packed: bool = False
    disables_dropout: bool = False
    sequences: int = 1
    reference: bool = False
    reference_as: str = "copy"
    compares: bool = False
    least_rows: int = 1
    completes: bool = False
    generates: bool = False
    gathers: bool = True
    waits: bool = False
    input_grads: bool = False
    fuses_adapters: bool = False
    older_deepspeed: bool = False
    looks_for_unused: bool = True
    packages: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    unchecked: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    separator: str = ", "
    not_counted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def refers_in_step(self) -> bool:
        """Whether a reference model's pass comes between forward and backward."""
        return self.reference and not self.completes

    def asked_for(
        self,
        *,
        method: str,
        rank: int,
        targets: tuple[str, ...],
        dropout: float,
        nested: bool,
        dtype: str,
        without: Container[str] = (),
    ) -> str:
        """The arguments that ask for adapters, and for weights in 4 bits, as a plan counts them. ``dtype``:
        torch's name of the training precision. ``without``: those that need not be said: keys of
        ``arguments``."""
        wanted = {
            "lora": True,
            "all": targets == ("all-linear",),
            "named": targets != ("all-linear",),
            "packed": method == "qlora",
            "nested": method == "qlora" and nested and not self.double_quant,
            "dropout": bool(dropout) != bool(self.lora_dropout) and not self.disables_dropout,
        }
        values = {"method": method, "rank": rank, "dropout": dropout, "dtype": dtype,
                  "spaced": " ".join(targets), "listed": ", ".join(targets)}  # fmt: skip
        words = (
            text.format(**values)
            for key, text in self.arguments.items()
            if wanted[key] and key not in without
        )
        return self.separator.join(words)

    def notes(self, method: str, experts: int) -> tuple[Note, ...]:
        """What a plan by its row says of it; ``experts``: of a layer."""
        job = {method, "experts"} if experts > 1 else {method}
        left_out = [text for text, concerned in self.not_counted.items() if job & {*concerned}]
        text = f"as {self.title} does by default; not counted: {'; '.join(left_out)}"
        return (Note("trainer-not-counted", text),) if left_out else ()


_ANY = "full", "lora", "qlora"
_UNTIMED_REFERENCE = {"the reference pass in the step time": _ANY}
_UNTIMED_PASSES = {"all passes but the trained one in the step time": _ANY}
_UNPADDED = {"masks of answers of unlike lengths (⟨padding⟩ counts them)": _ANY}
_BALANCING = "the loss that balances experts (--router_aux_loss_coef 0 turns it off)"
_TRL = Trainer(
    title="TRL's SFTTrainer 1.16",
    loss="chunked",
    checkpointing="full",
    unchecked="--gradient_checkpointing False",
    double_quant=False,
    narrow_adapters=True,
    loads_wide=("full", "lora"),
    narrow_on_packed=True,
    waits=True,
    packages=("trl",),
    names=("SFTTrainer",),
    arguments={
        "lora": "--use_peft --lora_r {rank}",
        "all": "--lora_target_modules all-linear",
        "named": "--lora_target_modules {spaced}",
        "packed": "--load_in_4bit --dtype {dtype}",
        "nested": "--use_bnb_nested_quant",
        "dropout": "--lora_dropout {dropout:g}",
    },
    separator=" ",
    not_counted={
        "products of 4-bit weights in fp32 (its --dtype float32; give --dtype bfloat16)": ("qlora",),
        _BALANCING: ("experts",),
    },
    sources={
        "lora_dropout": "trl/trainer/model_config.py, lora_dropout: 0.05",
        "loss": "trl/trainer/sft_config.py:283, loss_type: nll, and kernels/chunked_logprob.py",
        "checkpointing": "trl/trainer/base_config.py, gradient_checkpointing: True",
        "narrow_adapters": "trl/trainer/sft_trainer.py:857 and :895",
        "loads_wide": "trl/trainer/model_config.py:89, dtype: float32, and utils.py:1332",
        "narrow_on_packed": "trl/trainer/sft_trainer.py:902",
        "waits": "trl/trainer/utils.py:1410, main_process_first; rehearsed",
        "double_quant": "trl/trainer/model_config.py, use_bnb_nested_quant: False, dtype: float32",
        "not_counted": "trl/trainer/dpo_trainer.py:905, aux_loss_enabled; so sft_trainer.py",
    },
)
_PAIRS = replace(_TRL, lora_dropout=0.0, disables_dropout=True, sequences=2)
"""Both of TRL's trainers on preferences: a row is an answer chosen and one rejected, each with the prompt."""

_TRLS_GRPO = replace(
    _TRL,
    title="TRL's GRPOTrainer 1.16",
    completes=True,
    names=("GRPOTrainer",),
    not_counted={**_TRL.not_counted, **_UNTIMED_PASSES},
    sources={
        **_TRL.sources,
        "loss": "trl/trainer/grpo_trainer.py:1498, fused_lm_head, and kernels/chunked_logprob.py",
        "reference": "trl/trainer/grpo_trainer.py:1003 and :2712, of beta",
        "generates": "trl/trainer/grpo_trainer.py:1873, of use_vllm",
    },
)

_LLAMA_FACTORY = Trainer(
    title="LLaMA-Factory 0.9.5",
    older_deepspeed=True,
    loads_wide=("full",),
    looks_for_unused=False,
    lora_dropout=0.0,
    reentrant=True,
    checkpointing="full",
    unchecked="disable_gradient_checkpointing: true",
    packages=("llamafactory",),
    arguments={
        "lora": "finetuning_type: lora, lora_rank: {rank}",
        "all": "lora_target: all",
        "named": "lora_target: {listed}",
        "packed": "quantization_bit: 4",
        "dropout": "lora_dropout: {dropout:g}",
    },
    sources={
        "lora_dropout": "llamafactory/hparams/finetuning_args.py, lora_dropout: 0.0",
        "loads_wide": "llamafactory/model/adapter.py, cast_trainable_params_to_fp32 (pure_bf16: False)",
        "reentrant": "llamafactory/hparams/model_args.py:149, use_reentrant_gc: True",
        "older_deepspeed": "requirements/deepspeed.txt, deepspeed>=0.10.0,<=0.18.4",
        "double_quant": "llamafactory/hparams/model_args.py, double_quantization: True",
        "looks_for_unused": "llamafactory/hparams/parser.py:474",
        "checkpointing": "llamafactory/hparams/model_args.py, disable_gradient_checkpointing: False",
    },
)

_FACTORYS_PAIRS = replace(
    _LLAMA_FACTORY,
    title="LLaMA-Factory 0.9.5's training by preferences",
    loss="logprobs",
    sequences=2,
    not_counted=_UNPADDED,
    sources={
        **_LLAMA_FACTORY.sources,
        "loss": "llamafactory/train/dpo/trainer.py:186 and train/trainer_utils.py:608",
    },
)
"""Without a reference model, as ORPO and SimPO are (hparams/finetuning_args.py, use_ref_model)."""

_FACTORYS_DPO = replace(
    _FACTORYS_PAIRS,
    reference=True,
    reference_as="narrow copy",
    not_counted={**_UNTIMED_REFERENCE, **_UNPADDED},
    sources={
        **_FACTORYS_PAIRS.sources,
        "reference": "llamafactory/train/dpo/workflow.py:66 and trainer.py:213",
        "reference_as": "llamafactory/model/adapter.py:316, cast_trainable_params_to_fp32 (of "
        "a model that is trained)",
    },
)

_AXOLOTL = Trainer(
    title="axolotl 0.19",
    looks_for_unused=False,
    lora_dropout=0.0,
    kbit_prepared=True,
    wide_ends=True,
    shards_as_loaded=True,
    reentrant=True,
    input_grads=True,
    fuses_adapters=True,
    older_deepspeed=True,
    packages=("axolotl",),
    arguments={
        "lora": "adapter: {method}, lora_r: {rank}",
        "all": "lora_target_linear: true",
        "named": "lora_target_modules: [{listed}]",
        "packed": "load_in_4bit: true",
        "dropout": "lora_dropout: {dropout:g}",
    },
    sources={
        "lora_dropout": "axolotl/utils/schemas/peft.py, lora_dropout: 0.0 (its examples set 0.05)",
        "double_quant": "axolotl/loaders/model.py, bnb_4bit_use_double_quant: True",
        "kbit_prepared": "axolotl/loaders/model.py, _prepare_model_for_quantization",
        "wide_ends": "axolotl/loaders/model.py:435 (0.19), _configure_embedding_dtypes",
        "shards_as_loaded": "axolotl/monkeypatch/accelerate/fsdp2.py:429 (0.19), fsdp2_prepare_model",
        "reentrant": "axolotl/utils/config/__init__.py:401 (0.19)",
        "older_deepspeed": "pyproject.toml, deepspeed>=0.18.6,<0.19.0",
        "checkpointing": "axolotl/utils/schemas/model.py, gradient_checkpointing: False",
        "looks_for_unused": "axolotl/core/builders/causal.py:265",
        "input_grads": "axolotl/loaders/adapter.py:428 (0.19), enable_input_require_grads",
        "fuses_adapters": "axolotl/utils/schemas/config.py:1976 (0.19), check_auto_enable_lora_kernels",
    },
)

_AXOLOTL_PEFT = replace(
    _AXOLOTL,
    title="axolotl 0.19 without its kernels for adapters",
    fuses_adapters=False,
    arguments={
        **_AXOLOTL.arguments,
        "lora": _AXOLOTL.arguments["lora"]
        + ", lora_mlp_kernel: false, lora_qkv_kernel: false, lora_o_kernel: false",
    },
)

_AXOLOTLS_GRPO = replace(
    _AXOLOTL_PEFT,
    title="axolotl 0.19's GRPO (TRL 1.9)",
    arguments=_AXOLOTL.arguments,
    loss="copied-slices",
    completes=True,
    reference_as="wide copy",
    not_counted=_UNTIMED_PASSES,
    sources={
        **_AXOLOTL.sources,
        "loss": "trl/trainer/grpo_trainer.py:1521 (1.9) over axolotl/monkeypatch/trainer/utils.py:491",
        "reference_as": "trl/trainer/grpo_trainer.py, create_model_from_path (1.9): dtype float32",
        "generates": "axolotl/core/trainers/grpo/__init__.py:68 (0.19), of use_vllm",
    },
)
_AXOLOTLS_PAIRS = replace(
    _AXOLOTL_PEFT,
    title="axolotl 0.19's ORPO and SimPO (TRL 1.9)",
    arguments=_AXOLOTL.arguments,
    loss="copied-nll",
    disables_dropout=True,
    sequences=2,
    sources={
        **_AXOLOTL.sources,
        "loss": "trl/experimental/orpo/orpo_trainer.py:775, cpo/cpo_trainer.py:815 (1.9), over "
        "axolotl/monkeypatch/trainer/utils.py:491",
        "disables_dropout": "trl/experimental/orpo/orpo_config.py, disable_dropout: True",
        "fuses_adapters": "axolotl/utils/schemas/config.py:1978 (0.19), check_auto_enable_lora_kernels",
    },
)
"""Without a reference model; its kernels for adapters are off where the method is one of preferences."""
_AXOLOTLS_DPO = replace(
    _AXOLOTLS_PAIRS,
    title="axolotl 0.19's DPO (TRL 1.9)",
    loss="copied",
    reference=True,
    narrow_adapters=True,
    narrow_on_packed=True,
    not_counted=_UNTIMED_REFERENCE,
    sources={
        **_AXOLOTLS_PAIRS.sources,
        "loss": "trl/trainer/dpo_trainer.py:1329 (1.9) over axolotl/monkeypatch/trainer/utils.py:491 (0.19)",
        "reference": "axolotl/train.py:127 (0.19)",
        "narrow_adapters": "trl/trainer/dpo_trainer.py:646 (1.9), for adapters that TRL makes",
        "narrow_on_packed": "trl/trainer/dpo_trainer.py:701 (1.9)",
    },
)
_AXOLOTLS_REWARDS = replace(
    _AXOLOTLS_PAIRS,
    title="axolotl 0.19's reward models (TRL 1.9)",
    loss="score",
    sources={**_AXOLOTL.sources, "loss": "trl/trainer/reward_trainer.py (1.9)"},
)

_SWIFT = Trainer(
    title="ms-swift 4.6",
    older_deepspeed=True,
    reentrant=True,
    checkpointing="full",
    unchecked="--gradient_checkpointing False",
    packages=("swift",),
    arguments={
        "lora": "--tuner_type lora --lora_rank {rank}",
        "all": "--target_modules all-linear",
        "named": "--target_modules {spaced}",
        "packed": "--quant_method bnb --quant_bits 4 --bnb_4bit_compute_dtype {dtype}",
        "dropout": "--lora_dropout {dropout:g}",
    },
    separator=" ",
    sources={
        "lora_dropout": "swift/arguments/tuner_args.py, lora_dropout: 0.05",
        "reentrant": "swift/trainers/mixin.py:951, but under DDP",
        "older_deepspeed": "requirements/install_all.sh, deepspeed<0.19",
        "checkpointing": "swift/trainers/arguments.py:135, gradient_checkpointing: True",
        "double_quant": "swift/arguments/base_args/quant_args.py, bnb_4bit_use_double_quant: True",
    },
)
_SWIFTS_PAIRS = replace(
    _SWIFT,
    title="ms-swift 4.6's ORPO, CPO and SimPO (TRL 0.29)",
    loss="selected-nll",
    disables_dropout=True,
    sequences=2,
    sources={
        **_SWIFT.sources,
        "loss": "swift/rlhf_trainers/rlhf_mixin.py:102 over trl/experimental/orpo/orpo_trainer.py (0.29)",
        "disables_dropout": "swift/rlhf_trainers/rlhf_mixin.py:37",
    },
)
_SWIFTS_DPO = replace(
    _SWIFTS_PAIRS,
    title="ms-swift 4.6's DPO",
    loss="selected",
    reference=True,
    not_counted=_UNTIMED_REFERENCE,
    sources={
        **_SWIFTS_PAIRS.sources,
        "loss": "swift/rlhf_trainers/rlhf_mixin.py:170, get_per_token_logps",
        "reference": "swift/pipelines/train/rlhf.py:67 and arguments/rlhf_args.py:294",
    },
)
_SWIFTS_GRPO = replace(
    _SWIFT,
    title="ms-swift 4.6's GRPO (TRL 0.29)",
    loss="selected",
    completes=True,
    not_counted={
        **_UNTIMED_PASSES,
        "logits behind the shortest prompt of a batch, which are those of all its rows": _ANY,
    },
    sources={
        **_SWIFT.sources,
        "loss": "swift/rlhf_trainers/grpo_trainer.py:1564, logits_to_keep, and selective_log_softmax",
        "reference": "swift/rlhf_trainers/grpo_trainer.py:764, of beta (arguments/rlhf_args.py: 0.04)",
        "generates": "swift/rlhf_trainers/grpo_trainer.py:209, of use_vllm",
    },
)


def _of_generation(name: str, row: Trainer) -> Mapping[str, Trainer]:
    """The rows of a trainer that learns from completions: with and without a reference model (``-beta``),
    and an engine elsewhere that generates (``-server``)."""
    return {
        f"{name}{beta}{server}": replace(row, reference=bool(beta), generates=not server)
        for beta in ("", "-beta")
        for server in ("", "-server")
    }


NOT_FUSED = Note(
    "adapters-not-fused",
    "not counted: axolotl's kernels (lora_mlp_kernel and others), which keep less than peft's layers",
    level="warning",
)
"""Under ZeRO-3, in linear attention and in closed form."""
UNFUSED_TYPES = ("paddleocr_vl", "muse_glimmer", "qwen4_exp", "qwen4_exp_text")
"""Model types for which axolotl leaves its kernels off (0.19, model_support, ``lora_kernels``)."""

TRAINERS: Mapping[str, Trainer] = {
    "raw": Trainer(title="a plain loop", gathers=False, autocasts=False),
    "transformers": Trainer(
        title="Transformers' Trainer 5.23",
        sources={
            "checkpointing": "training_args.py, gradient_checkpointing: False",
            "loads_wide": "modeling_utils.py, from_pretrained: dtype as the checkpoint has it",
        },
    ),
    "trl": _TRL,
    "trl-dpo": replace(
        _PAIRS,
        title="TRL's DPOTrainer 1.16",
        names=("DPOTrainer",),
        reference=True,
        not_counted={**_TRL.not_counted, **_UNTIMED_REFERENCE, **_UNPADDED},
        sources={
            **_TRL.sources,
            "loss": "trl/trainer/dpo_trainer.py:1301, fused_lm_head, and kernels/chunked_logprob.py",
            "disables_dropout": "trl/trainer/dpo_config.py:185, disable_dropout: True",
            "reference": "trl/trainer/dpo_trainer.py:909 and :1327, models/utils.py:246 prepare_deepspeed",
        },
    ),
    "trl-kto": replace(
        _PAIRS,
        title="TRL's KTOTrainer 1.16",
        names=("KTOTrainer",),
        sequences=1,
        reference=True,
        compares=True,
        least_rows=2,
        not_counted={**_TRL.not_counted, **_UNTIMED_PASSES, **_UNPADDED},
        sources={
            **_TRL.sources,
            "loss": "trl/trainer/kto_trainer.py:1397, fused_lm_head, and kernels/chunked_logprob.py",
            "disables_dropout": "trl/trainer/kto_config.py, disable_dropout: True",
            "reference": "trl/trainer/kto_trainer.py:938 and :1436, and :1365 for answers to compare with",
            "least_rows": "trl/trainer/kto_trainer.py:844",
        },
    ),
    "trl-reward": replace(
        _PAIRS,
        title="TRL's RewardTrainer 1.16",
        names=("RewardTrainer",),
        loss="score",
        not_counted={text: of for text, of in _TRL.not_counted.items() if text != _BALANCING} | _UNPADDED,
        sources={
            **_TRL.sources,
            "loss": "trl/trainer/reward_trainer.py:778 over Transformers' ForSequenceClassification",
            "disables_dropout": "trl/trainer/reward_config.py:128, disable_dropout: True",
        },
    ),
    **_of_generation("trl-grpo", _TRLS_GRPO),
    "axolotl": _AXOLOTL,
    "axolotl-peft": _AXOLOTL_PEFT,
    **_of_generation("axolotl-grpo", _AXOLOTLS_GRPO),
    "axolotl-dpo": _AXOLOTLS_DPO,
    "axolotl-orpo": _AXOLOTLS_PAIRS,
    "axolotl-kto": replace(
        _AXOLOTLS_DPO,
        title="axolotl 0.19's KTO (TRL 1.9)",
        loss="copied-kto",
        sequences=1,
        compares=True,
        least_rows=2,
        reference_as="wide copy",
        not_counted=_UNTIMED_PASSES,
        sources={
            **_AXOLOTLS_DPO.sources,
            "loss": "trl/trainer/kto_trainer.py:1617 (1.9) over axolotl/monkeypatch/trainer/utils.py:491",
            "reference_as": "trl/trainer/kto_trainer.py, create_model_from_path (1.9): dtype float32",
            "least_rows": "trl/trainer/kto_trainer.py:807 (1.9)",
        },
    ),
    "axolotl-reward": _AXOLOTLS_REWARDS,
    "axolotl-process": replace(
        _AXOLOTLS_REWARDS,
        title="axolotl 0.19's process reward models (TRL 1.9)",
        sequences=1,
        sources={**_AXOLOTL.sources, "loss": "trl/experimental/prm/prm_trainer.py (1.9)"},
    ),
    "llamafactory": _LLAMA_FACTORY,
    "llamafactory-dpo": _FACTORYS_DPO,
    "llamafactory-orpo": _FACTORYS_PAIRS,
    "llamafactory-kto": replace(
        _FACTORYS_DPO,
        title="LLaMA-Factory 0.9.5's KTO",
        loss="kto",
        sequences=1,
        compares=True,
        not_counted={**_UNTIMED_PASSES, **_UNPADDED},
        sources={**_FACTORYS_DPO.sources, "loss": "llamafactory/train/kto/trainer.py:170 and :192"},
    ),
    "llamafactory-reward": replace(
        _FACTORYS_PAIRS,
        title="LLaMA-Factory 0.9.5's reward models",
        loss="value",
        sources={
            **_LLAMA_FACTORY.sources,
            "loss": "llamafactory/train/rm/trainer.py:98 over trl/models/modeling_value_head.py:138 (0.24)",
        },
    ),
    "swift": _SWIFT,
    **_of_generation("swift-grpo", _SWIFTS_GRPO),
    "swift-dpo": _SWIFTS_DPO,
    "swift-orpo": _SWIFTS_PAIRS,
    "swift-kto": replace(
        _SWIFTS_DPO,
        title="ms-swift 4.6's KTO",
        sequences=1,
        compares=True,
        not_counted=_UNTIMED_PASSES,
        sources={**_SWIFTS_DPO.sources, "loss": "swift/rlhf_trainers/kto_trainer.py:52"},
    ),
    "swift-reward": replace(
        _SWIFTS_PAIRS,
        title="ms-swift 4.6's reward models",
        loss="score",
        sources={**_SWIFTS_PAIRS.sources, "loss": "swift/rlhf_trainers/reward_trainer.py:36"},
    ),
}
"""By the value of ``⟨trainer⟩``."""


def trainer_named(package: str | None, names: Iterable[str]) -> str | None:
    """Whose defaults a script of this package, which uses these names, has; None: not known."""
    used = {*names}
    by_name = (key for key, row in TRAINERS.items() if used & {*row.names})
    by_package = (key for key, row in TRAINERS.items() if package in row.packages)
    return next(by_name, next(by_package, None))
