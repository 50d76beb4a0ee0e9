"""Scripts and settings that are rehearsed first and measured afterwards; none is among the given rows."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.gpu.models import BERT, EXPERTS, GEMMA, LLAMA, MISTRAL, QWEN, VIT
from benchmarks.rehearsal.inputs import Inputs

SCRIPTS = Path(__file__).resolve().parent / "scripts"
EXPANDABLE = "expandable_segments:True"
STEPS = 6

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_embd": 1024,
    "n_layer": 24,
    "n_head": 16,
    "n_positions": 1024,
}
T5 = {
    "model_type": "t5",
    "vocab_size": 32128,
    "d_model": 768,
    "d_ff": 2048,
    "d_kv": 64,
    "num_layers": 12,
    "num_heads": 12,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "decoder_start_token_id": 3,
}

_TRL = [
    "--output_dir", "{out}", "--max_steps", str(STEPS), "--logging_steps", "1", "--report_to", "none",
    "--dtype", "bfloat16", "--bf16", "True",
]  # fmt: skip
_OFFLOAD = {"device": "cpu", "pin_memory": True}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run: a script of TRL's (``trl/…``) or of this folder, its arguments and engine.

    ``{model}``, ``{data}``, ``{out}`` and ``{deepspeed}`` are filled in; ``head``: the auto class that makes
    the weights for the GPU.
    """

    name: str
    script: str
    model: dict[str, Any]
    arguments: tuple[str, ...] = ("{model}",)
    gpus: int = 1
    head: str = "AutoModelForCausalLM"
    alloc_conf: str = ""
    deepspeed: dict[str, Any] | None = None
    launcher: str = "none"


def _trl(name: str, script: str, model: dict[str, Any], *arguments: str, **options: Any) -> Case:
    data = ("--dataset_name", "{data}/" + options.pop("data"), "--model_name_or_path", "{model}")
    return Case(
        name=name,
        script=f"trl/scripts/{script}.py",
        model=model,
        arguments=(*data, *_TRL, *arguments),
        **options,
    )


def _loop(name: str, model: dict[str, Any], *arguments: str, **options: Any) -> Case:
    return Case(
        name=name, script="language_model.py", model=model, arguments=("{model}", *arguments), **options
    )


def _zero(stage: int, **settings: Any) -> dict[str, Any]:
    return {
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, **settings},
    }


CASES: tuple[Case, ...] = (
    # TRL's scripts without an engine, and with options of their own
    _trl(
        "sft.packed.qwen3",
        "sft",
        QWEN,
        "--packing",
        "True",
        "--packing_strategy",
        "wrapped",
        "--max_length",
        "2048",
        "--per_device_train_batch_size",
        "4",
        data="sft",
    ),
    _trl(
        "sft.gemma3.accumulated",
        "sft",
        GEMMA,
        "--max_length",
        "1024",
        "--per_device_train_batch_size",
        "4",
        "--gradient_accumulation_steps",
        "2",
        "--gradient_checkpointing",
        "False",
        data="sft",
    ),
    _trl(
        "sft.experts",
        "sft",
        EXPERTS,
        "--max_length",
        "1024",
        "--per_device_train_batch_size",
        "4",
        "--optim",
        "adafactor",
        data="sft",
        alloc_conf=EXPANDABLE,
    ),
    _trl(
        "sft.offloaded.activations",
        "sft",
        MISTRAL,
        "--max_length",
        "2048",
        "--per_device_train_batch_size",
        "4",
        "--activation_offloading",
        "True",
        "--gradient_checkpointing",
        "False",
        data="sft",
    ),
    _trl(
        "dpo.lora.qwen3",
        "dpo",
        QWEN,
        "--max_length",
        "1024",
        "--per_device_train_batch_size",
        "4",
        "--use_peft",
        "--lora_r",
        "32",
        "--lora_target_modules",
        "all-linear",
        data="preference",
    ),
    _trl(
        "kto.llama",
        "kto",
        LLAMA,
        "--max_length",
        "768",
        "--per_device_train_batch_size",
        "8",
        data="unpaired",
    ),
    _trl(
        "reward.mistral",
        "reward",
        MISTRAL,
        "--max_length",
        "2048",
        "--per_device_train_batch_size",
        "4",
        "--gradient_checkpointing",
        "False",
        "--eval_strategy",
        "steps",
        "--eval_steps",
        "3",
        data="preference",
        head="AutoModelForSequenceClassification",
    ),
    _trl(
        "rloo.lora.llama",
        "rloo",
        LLAMA,
        "--max_completion_length",
        "128",
        "--num_generations",
        "4",
        "--per_device_train_batch_size",
        "8",
        "--reward_funcs",
        "get_soft_overlong_punishment",
        "--use_peft",
        data="prompts",
    ),
    _trl(
        "sft.zero3.offload",
        "sft",
        LLAMA,
        "--max_length",
        "2048",
        "--per_device_train_batch_size",
        "4",
        "--deepspeed",
        "{deepspeed}",
        data="sft",
        launcher="deepspeed",
        alloc_conf=EXPANDABLE,
        deepspeed=_zero(3, offload_param=_OFFLOAD, offload_optimizer=_OFFLOAD),
    ),
    _trl(
        "sft.zero1.saving",
        "sft",
        QWEN,
        "--max_length",
        "1024",
        "--per_device_train_batch_size",
        "4",
        "--save_strategy",
        "steps",
        "--save_steps",
        "3",
        "--save_total_limit",
        "1",
        "--deepspeed",
        "{deepspeed}",
        data="sft",
        launcher="deepspeed",
        deepspeed=_zero(1),
    ),
    # plain loops
    _loop(
        "loop.gpt2.fp16",
        GPT2,
        "--dtype",
        "float32",
        "--autocast",
        "float16",
        "--batch",
        "8",
        "--length",
        "1024",
    ),
    _loop(
        "loop.mistral.lora",
        MISTRAL,
        "--lora",
        "8",
        "--checkpointing",
        "--batch",
        "4",
        "--length",
        "2048",
        "--accumulation",
        "2",
    ),
    _loop("loop.qwen3.padded", QWEN, "--padded", "--batch", "4", "--evaluate", "--optimizer", "SGD"),
    _loop("loop.llama.eager", LLAMA, "--attention", "eager", "--batch", "4", "--length", "1024"),
    Case(name="t5.adafactor", script="sequence_to_sequence.py", model=T5, head="AutoModelForSeq2SeqLM"),
    Case(
        name="vit.trainer",
        script="image_trainer.py",
        model=VIT,
        arguments=("{model}", "{out}"),
        head="AutoModelForImageClassification",
    ),
    Case(name="bert.accelerate", script="masked_accelerate.py", model=BERT, head="AutoModelForMaskedLM"),
    # two GPUs
    _loop(
        "two.ddp.gpt2",
        GPT2,
        "--dtype",
        "float32",
        "--autocast",
        "bfloat16",
        "--batch",
        "4",
        "--length",
        "1024",
        gpus=2,
        launcher="torchrun",
    ),
    Case(name="two.fsdp2.llama", script="sharded.py", model=LLAMA, gpus=2, launcher="torchrun"),
    _trl(
        "two.sft.zero3.qwen3",
        "sft",
        QWEN,
        "--max_length",
        "1024",
        "--per_device_train_batch_size",
        "4",
        "--deepspeed",
        "{deepspeed}",
        data="sft",
        gpus=2,
        launcher="deepspeed",
        deepspeed=_zero(3, stage3_gather_16bit_weights_on_model_save=True),
    ),
    _trl(
        "two.dpo.zero2.llama",
        "dpo",
        LLAMA,
        "--max_length",
        "1024",
        "--per_device_train_batch_size",
        "4",
        "--deepspeed",
        "{deepspeed}",
        data="preference",
        gpus=2,
        launcher="deepspeed",
        deepspeed=_zero(2),
    ),
    _trl(
        "two.grpo.ddp.llama",
        "grpo",
        LLAMA,
        "--max_completion_length",
        "128",
        "--num_generations",
        "4",
        "--per_device_train_batch_size",
        "4",
        "--reward_funcs",
        "get_soft_overlong_punishment",
        data="prompts",
        gpus=2,
        launcher="torchrun",
    ),
)


class CaseInputs(Inputs):
    """The data of these cases beside the given rows'."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        rnd = random.Random(1)

        def text(words: int) -> str:
            return " ".join(f"w{rnd.randrange(200)}" for _ in range(words))

        kinds: dict[str, Any] = {
            "preference": lambda i: {"prompt": text(200) + " ", "chosen": text(1000), "rejected": text(900)},
            "unpaired": lambda i: {"prompt": text(200) + " ", "completion": text(900), "label": i % 2 == 0},
            "prompts": lambda i: {"prompt": text(100)},
        }
        for name, row in kinds.items():
            (folder / name).mkdir()
            for split, count in (("train", 64), ("test", 32)):
                lines = [json.dumps(row(number)) + "\n" for number in range(count)]
                (folder / name / f"{split}.jsonl").write_text("".join(lines))

    def filled(self, case: Case, model: Path, out: Path) -> tuple[str, ...]:
        """The case's arguments; a DeepSpeed file is written where it has one."""
        values = {"{model}": str(model), "{data}": str(self.folder), "{out}": str(out)}
        if case.deepspeed is not None:
            path = self.folder / f"{case.name}.json"
            path.write_text(json.dumps(case.deepspeed))
            values["{deepspeed}"] = str(path)
        arguments = []
        for argument in case.arguments:
            for name, value in values.items():
                argument = argument.replace(name, value)
            arguments.append(argument)
        return tuple(arguments)


def script_path(case: Case) -> Path:
    """Where the case's script lies."""
    if not case.script.startswith("trl/"):
        return SCRIPTS / case.script
    import importlib.util

    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("trl is not installed")
    return Path(spec.origin).parent.parent / case.script
