"""A few of a model's layers are rehearsed, where the others are like them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zerokit as zerokit_api

SCRIPT = """
import itertools
import torch
from torch.nn.modules.module import register_module_forward_hook
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

parser = HfArgumentParser(TrainingArguments)
arguments, rest = parser.parse_args_into_dataclasses(return_remaining_strings=True)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"))
if "--freeze" in rest:
    for layer in model.model.layers[:6]:
        layer.requires_grad_(False)
if "--freeze-by-number" in rest:
    for part in model.modules():
        if getattr(part, "layer_idx", 24) < 12:
            part.requires_grad_(False)
if "--hook" in rest:
    kept = []

    def keep(part, inputs, result):
        if getattr(part, "layer_idx", 0) == 20:
            kept.append(result[0].clone())

    register_module_forward_hook(keep)
if "--lora" in rest:
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, adapters, autocast_adapter_dtype=False)
optimizer = None
if "--train-first" in rest:
    optimizer = torch.optim.AdamW(list(model.parameters())[:100])
if "--train-first-of-group" in rest:
    optimizer = torch.optim.SGD(torch.optim.AdamW(model.parameters()).param_groups[0]["params"][:100])
if "--train-some" in rest:
    optimizer = torch.optim.AdamW(itertools.islice(model.parameters(), 100))
if "--train-all" in rest:
    print(sum(weight.numel() for weight in model.parameters()), next(model.parameters()).device)
    optimizer = torch.optim.AdamW(filter(lambda weight: weight.requires_grad, model.parameters()))
if "--freeze-state" in rest:
    for name, weight in model.state_dict(keep_vars=True).items():
        weight.requires_grad_(".1" not in name)
if "--freeze-in-dict" in rest:
    for number, layer in model.model.layers._modules.items():
        layer.requires_grad_(int(number) < 12)
row = {"input_ids": [1] * 256, "labels": [1] * 256}
Trainer(model=model, args=arguments, train_dataset=[row] * 64, optimizers=(optimizer, None)).train()
"""
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 2048, "hidden_size": 512,
    "intermediate_size": 1024, "num_hidden_layers": 14, "num_attention_heads": 8, "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}  # fmt: skip
ARGUMENTS = ("--output_dir", "out", "--report_to", "none", "--max_steps", "8")
DENSE_FIRST = {
    **LLAMA, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 256, "mlp_only_layers": [0, 1], "head_dim": 64,
}  # fmt: skip


ALTERNATING = {
    **LLAMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 64,
    "sliding_window": 4096,
}  # fmt: skip


def plan(folder: Path, config: dict[str, Any], *words: str) -> dict[str, Any]:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(config))
    (folder / "train.py").write_text(SCRIPT)
    return zerokit(
        folder, "plan", "--json", "--gpus", "2", "--gpu", "h200", "--zero", "3", "--micro-batch", "1",
        "--checkpointing", "none", "--out", "plan", "--", "train.py", *ARGUMENTS, *words,
    )  # fmt: skip


def zerokit(folder: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", *words],
        cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    return body


DEEP = {**LLAMA, "num_hidden_layers": 24}
WIDE = {
    **DEEP, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "dtype": "bfloat16",
}  # fmt: skip
ZERO_3 = {
    "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}
}  # fmt: skip
STAGE_2 = {"zero_optimization": {"stage": 2}}
FSDP2 = {
    "fsdp_version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "activation_checkpointing": True,
    "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "state_dict_type": "SHARDED_STATE_DICT",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow  # test_a_course_of_all_layers_follows_from_few compares one rehearsal
def test_few_layers_tell_what_all_take(tmp_path: Path) -> None:
    body = plan(tmp_path, LLAMA)
    assert {str(one["layers"]) for one in body["rehearsals"]} == {"[3, 14]", "[6, 14]"}
    told = body["chosen"]["estimate"]
    assert "rehearsed with 6 of 14 layers" in json.dumps(body["notes"])
    assert body["chosen"]["parameters"] == 2 * 2048 * 512 + 14 * (4 * 512**2 + 3 * 512 * 1024 + 1024) + 512
    whole = zerokit(tmp_path, "rehearse", "--json", "--whole", "--plan", "plan", "train.py", *ARGUMENTS)
    assert whole["depth"] == "whole"
    assert abs(told["peak_allocated_bytes"] / whole["ranks"][0]["peak_allocated_bytes"] - 1) < 0.0005
    assert abs(told["min_vram_bytes"] / whole["min_vram_bytes"] - 1) < 0.02
    assert abs(told["step_seconds"] / whole["step_seconds"] - 1) < 0.02


@pytest.mark.slow  # 24 layers rehearsed in whole
@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (("--deepspeed", "engine.json", "--gradient_checkpointing", "True"), {**ZERO_3, **STAGE_2}),
        (("--fsdp", "full_shard", "--fsdp_config", "engine.json"), FSDP2),
    ],
    ids=["two groups under ZeRO-2", "FSDP2 by a Trainer"],
)
def test_few_layers_tell_where_an_engine_divides_them(
    words: tuple[str, ...], engine: dict[str, Any], tmp_path: Path
) -> None:
    """With few layers backward is highest elsewhere than with all."""
    (tmp_path / "engine.json").write_text(json.dumps(engine))
    few, whole = (
        rehearsed(tmp_path, WIDE, "--bf16", "True", *words, gpus=4, whole=whole) for whole in (False, True)
    )
    assert (few["depth"], whole["depth"]) == ({"layers": [3, 6], "of": 24}, "whole")
    replayed = ("init", "forward", "backward", "step")
    told, seen = ([body["ranks"][0]["phases"][one] for one in replayed] for body in (few, whole))
    assert told == pytest.approx(seen, rel=0.0005)


@pytest.mark.slow  # 24 layers rehearsed in whole
def test_few_layers_tell_of_adapters_in_16_bits(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text(json.dumps(ZERO_3))
    words = ("--lora", "--bf16", "True", "--deepspeed", "ds_config.json")
    config = {**DEEP, "dtype": "bfloat16"}
    few, whole = (rehearsed(tmp_path, config, *words, gpus=8, whole=whole) for whole in (False, True))
    assert (few["depth"], whole["depth"]) == ({"layers": [3, 6], "of": 24}, "whole")
    told, seen = (body["ranks"][0]["peak_allocated_bytes"] for body in (few, whole))
    assert abs(told / seen - 1) < 0.0005
    assert abs(few["min_vram_bytes"] / whole["min_vram_bytes"] - 1) < 0.01
    for share, depth in ((0.08, few["depth"]), (0.02, "whole")):  # by so much it lacks memory of a card
        card = f"{int(few['min_vram_bytes'] / (1 + share)) >> 20} MiB"
        assert rehearsed(tmp_path, config, *words, gpus=8, vram=card)["depth"] == depth


@pytest.mark.slow
@pytest.mark.parametrize(("config", "words"), [(DENSE_FIRST, ()), (ALTERNATING, ()), (LLAMA, ("--freeze",))])
def test_layers_that_differ_are_rehearsed_all(
    config: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    body = plan(tmp_path, config, *words)
    counting = [one["layers"] for one in body["rehearsals"] if one["stopped"] is None]
    assert counting and set(map(str, counting)) == {"None"}


def rehearsed(folder: Path, config: dict[str, Any], *words: str, **options: Any) -> dict[str, Any]:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(config))
    (folder / "train.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        done = zerokit_api.rehearse("train.py", (*ARGUMENTS, *words), gpu="h200", **options)
    body: dict[str, Any] = json.loads(json.dumps(done.to_dict()))
    return body


OF_THE_RUN = ("depth", "seconds", "cpu_seconds", "step", "step_seconds", "step_seconds_range")
"""What differs between two rehearsals; of the step's seconds by little."""


@pytest.mark.slow  # 24 layers rehearsed in whole; logic: tests/unit/rehearsal/process/test_repetition.py
def test_a_course_of_all_layers_follows_from_few(tmp_path: Path) -> None:
    words = ["--gradient_accumulation_steps", "2", "--gradient_checkpointing", "True", "--bf16", "True"]
    words += ["--train-all"]
    few, whole = (rehearsed(tmp_path, DEEP, *words, whole=whole) for whole in (False, True))
    assert (few["depth"], whole["depth"]) == ({"layers": [3, 5], "of": 24}, "whole")
    assert whole["ranks"][0]["at_peak"] and whole["complete"]
    assert {name: value for name, value in few.items() if name not in OF_THE_RUN} == {
        name: value for name, value in whole.items() if name not in OF_THE_RUN
    }
    # progress bars are drawn by the clock, so that calls of Python differ from run to run
    assert abs(few["step_seconds"] / whole["step_seconds"] - 1) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "words", "gpus"),
    [
        (DEEP, ("--freeze",), 1),
        (DEEP, ("--freeze-by-number",), 1),
        (DEEP, ("--hook",), 1),
        (DEEP, ("--train-first",), 1),
        (DEEP, ("--train-first-of-group",), 1),
        (DEEP, ("--train-some",), 1),
        (DEEP, ("--freeze-state",), 1),
        (DEEP, ("--freeze-in-dict",), 1),
        ({**DENSE_FIRST, "num_hidden_layers": 24}, (), 1),
        ({**ALTERNATING, "num_hidden_layers": 24}, (), 1),
        (DEEP, (), 2),
    ],
)
def test_where_few_do_not_tell_all_are_rehearsed(
    config: dict[str, Any], words: tuple[str, ...], gpus: int, tmp_path: Path
) -> None:
    body = rehearsed(tmp_path, config, *words, gpus=gpus)
    assert body["depth"] == "whole" and body["complete"]
