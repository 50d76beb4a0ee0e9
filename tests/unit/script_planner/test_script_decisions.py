"""What a script decides of its plan, as its rehearsals show it; here they are played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.caches import own_cache_but_traces
from tests.support.played_rehearsals import CONFIG, PARAMETERS, play
from tests.support.ranks import write_script
from zerokit.catalog import models
from zerokit.domain.strategy import Strategy
from zerokit.emit import plan_file
from zerokit.errors import InputError
from zerokit.planner.plan_result import PlanResult
from zerokit.script.entry_points import Target
from zerokit.script_planner import plan_script

LOOP = """
    import argparse
    from accelerate import Accelerator
    from torch.utils.data import DataLoader
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--batch_size", type=int, default=4)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=1)
    loader = DataLoader(data, batch_size={batch})
"""
HARDWARE = {"gpus": "4", "gpu": "l40s", "zero": "1", "tp": "1", "offload_optimizer": "none"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache_but_traces(tmp_path, monkeypatch)


def planned(
    folder: Path, *arguments: str, batch: str = "args.batch_size", asked: dict[str, str] | None = None,
    **more: Any,
) -> PlanResult:  # fmt: skip
    script = write_script(folder, LOOP.format(batch=batch), "train.py")
    target = Target(script=str(script), module=None, arguments=arguments)
    options = {**(HARDWARE if "recipe" not in more else {}), **(asked or {})}
    return plan_script(target, options, seconds=0, out=folder / "plan", **more)


def of_arguments(strategy: Strategy, arguments: tuple[str, ...]) -> dict[str, Any]:
    """A script whose own options say its batch and its length."""
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    call = {"call": "Accelerator(gradient_accumulation_steps=1)", "location": "train.py:9"}
    steps = strategy.settings.gradient_accumulation
    return {
        "batch_rows": int(given.get("--batch_size", 4)),
        "batch_columns": int(given.get("--seq_len", 512)),
        "asked": [{"setting": "gradient_accumulation", "code": 1, "engine": steps, **call}],
    }


def test_what_the_script_decides_is_read_again_with_other_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, of_arguments)
    first = planned(tmp_path)
    assert (first.chosen.micro_batch, first.job.seq_len, first.global_batch) == (4, 512, 16)
    file = tmp_path / "plan" / "plan.yaml"
    kept = yaml.safe_load(file.read_text())["chosen"]["script"]
    assert {"model", "seq-len", "micro-batch", "gradient-accumulation"} < set(kept["decided"])
    again = planned(tmp_path, "--batch_size", "8", "--seq_len", "1024", recipe=str(file))
    assert (again.chosen.micro_batch, again.job.seq_len, again.global_batch) == (8, 1024, 32)
    # the hardware was the user's
    assert again.cluster == first.cluster and again.chosen.zero_stage == 1
    assert "gpu" not in yaml.safe_load(file.read_text())["chosen"]["script"]["decided"]
    with pytest.raises(InputError, match="micro_batch 4: the script feeds its engine 8 rows"):
        planned(tmp_path, "--batch_size", "8", recipe=str(file), overrides=["micro_batch=4"])


def test_a_plan_for_a_script_goes_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, of_arguments)
    named = planned(tmp_path).model_name
    assert named.startswith("train.py (llama, 18.7M ") and "parameters)" in named
    assert planned(tmp_path, recipe=str(tmp_path / "plan" / "plan.yaml")).model_name == named
    title = plan_file.read(tmp_path / "plan").title
    assert f"for {named} on 4 × l40s" in title and "script-models" not in title


@pytest.mark.slow
def test_a_model_like_one_of_the_catalogue_keeps_its_name_and_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = models.load("smollm2-135m")
    count = {"parameters": entry.parameters, "trainable_parameters": entry.parameters}

    def title(**config: Any) -> tuple[str, str]:
        model = {"config": {**entry.hf_config, **config}}
        played = play(monkeypatch, lambda *asked: {**of_arguments(*asked), **count}, model=model)
        result = planned(tmp_path)
        assert played
        return result.model_name, str(result.request["model"])

    size = "(llama, 135M parameters)"
    assert title(_name_or_path="./tiny") == (f"./tiny {size}", "smollm2-135m")
    assert title() == (f"train.py {size}", "smollm2-135m")
    assert title(_name_or_path="HuggingFaceTB/SmolLM2-135M") == ("smollm2-135m", "smollm2-135m")
    name, model = title(_name_or_path="./tiny", max_position_embeddings=256)
    assert name == f"./tiny {size}" and json.loads(Path(model).read_text())["max_position_embeddings"] == 256


@pytest.mark.slow
def test_all_weights_of_a_script_that_trained_adapters_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adapters(strategy: Strategy, arguments: tuple[str, ...]) -> dict[str, Any]:
        return {"trainable_parameters": PARAMETERS // 100}

    play(monkeypatch, adapters, model={"method": "lora", "lora_rank": 8, "lora_targets": ("q_proj",)})
    assert planned(tmp_path).job.method == "lora"
    play(monkeypatch, of_arguments)
    again = planned(tmp_path, recipe=str(tmp_path / "plan" / "plan.yaml"))
    assert again.job.method == "full" and "lora-rank" not in again.request


@pytest.mark.parametrize(
    ("asked", "saw", "words"),
    [
        ({"method": "lora"}, {}, "method lora: the script trains all weights"),
        ({"method": "qlora"}, {"method": "lora"}, "method qlora: the script trains LoRA"),
        ({"method": "full"}, {"method": "lora"}, "method full: the script trains LoRA"),
        ({"method": "lora", "lora_rank": "16"}, {"method": "lora"}, "lora_rank 16: the script's is 8"),
        ({"method": "lora", "lora_targets": "v_proj,q_proj"}, {"method": "lora"},
         "lora_targets v_proj,q_proj: the script's are q_proj"),
        ({"method": "lora", "lora_targets": "q_proj", "lora_rank": "8"}, {"method": "lora"}, ""),
    ],
)  # fmt: skip
def test_a_method_that_is_not_the_scripts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], saw: dict[str, str], words: str
) -> None:
    trained = PARAMETERS // 100 if saw else PARAMETERS
    adapters = {"lora_rank": 8, "lora_targets": ("q_proj",)} if saw else {}
    play(monkeypatch, lambda *_: {"trainable_parameters": trained}, model={**saw, **adapters})
    if not words:
        assert planned(tmp_path, asked=asked).job.method == "lora"
        return
    with pytest.raises(InputError, match=words):
        planned(tmp_path, asked=asked)


def test_the_switch_of_trls_scripts_is_named_where_adapters_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
        from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser
        args, model_args = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
        SFTTrainer(args=args).train()
    """
    target = Target(script=str(write_script(tmp_path, source, "train.py")), module=None, arguments=())
    play(monkeypatch, lambda *_: {"trainable_parameters": PARAMETERS})
    with pytest.raises(InputError, match="leave method out, or give the script --use_peft, after its name"):
        plan_script(target, {**HARDWARE, "method": "lora"}, seconds=0)


@pytest.mark.parametrize("asked", [{}, {"method": "lora"}, {"method": "lora", "lora_rank": "64"}])
def test_the_adapters_are_the_scripts_whoever_names_the_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str]
) -> None:
    model = {"method": "lora", "lora_rank": 64, "lora_targets": ("q_proj", "v_proj")}
    play(monkeypatch, lambda *_: {"trainable_parameters": PARAMETERS // 100}, model=model)
    lora = planned(tmp_path, asked=asked).job.lora
    assert lora is not None and (lora.rank, lora.targets) == (64, ("q_proj", "v_proj"))
    again = planned(tmp_path, recipe=str(tmp_path / "plan" / "plan.yaml")).job.lora
    assert again == lora


def test_weights_that_a_script_loads_in_4_bits_are_packed_by_the_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = {**CONFIG, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    model = {"method": "qlora", "lora_rank": 8, "lora_targets": ("q_proj",), "config": packed}
    play(monkeypatch, lambda *_: {"trainable_parameters": PARAMETERS // 100}, model=model)
    assert planned(tmp_path).job.method == "qlora"


def test_another_length_than_the_script_feeds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed = play(monkeypatch, of_arguments)
    words = "seq_len 512: the longest sequences that the script feeds its model have 1024 tokens; leave"
    with pytest.raises(InputError, match=words):
        planned(tmp_path, "--seq_len", "1024", asked={"seq_len": "512"})
    assert len(rehearsed) == 1
    assert planned(tmp_path, "--seq_len", "1024", asked={"seq_len": "1,024"}).job.seq_len == 1024


def test_a_batch_that_the_script_computes_is_not_the_one_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, lambda *_: {"batch_rows": 3})
    with pytest.raises(InputError, match=r"micro_batch 4: the script feeds its engine 3 rows at a time"):
        planned(tmp_path, batch="computed", asked={"micro_batch": "4"})
    assert planned(tmp_path, batch="computed").chosen.micro_batch == 3
    # both halves of each pair in one forward pass
    play(monkeypatch, lambda strategy, _: {"batch_rows": 2 * strategy.settings.micro_batch})
    assert planned(tmp_path, batch="computed", asked={"micro_batch": "4"}).chosen.micro_batch == 4


def asks_for(strategy: Strategy, _: tuple[str, ...]) -> dict[str, Any]:
    """A script whose plugin asks for ZeRO-3 and whose Accelerator accumulates five."""
    settings, where = strategy.settings, {"location": "train.py:9"}
    return {"asked": [
        {"setting": "zero_stage", "code": 3, "engine": settings.zero.stage, "call": "Plugin(zero_stage=3)",
         **where},
        {"setting": "gradient_accumulation", "code": 5, "engine": settings.gradient_accumulation,
         "call": "Accelerator(gradient_accumulation_steps=5)", **where},
    ]}  # fmt: skip


def test_what_the_code_asks_accelerate_for_is_planned_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, asks_for)
    hardware = {name: value for name, value in HARDWARE.items() if name != "zero"}
    script = write_script(tmp_path, LOOP.format(batch=4), "train.py")
    target = Target(script=str(script), module=None, arguments=())
    said: list[str] = []
    result = plan_script(target, hardware, seconds=0, out=tmp_path / "plan", say=said.append)
    assert (result.chosen.zero_stage, result.chosen.gradient_accumulation) == (3, 5)
    assert any("train.py trains with" in line and "gradient-accumulation 5" in line for line in said)
    assert any(
        "train.py:9: Accelerator(gradient_accumulation_steps=5)" in note for note in result.assumptions
    )
    with pytest.raises(
        InputError, match=r"zero 1: the script has 3 \(train.py:9: Plugin\(zero_stage=3\)\); leave"
    ):
        planned(tmp_path)


def test_another_model_than_the_scripts_is_refused_before_it_is_rehearsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    rehearsed = play(monkeypatch, of_arguments)
    said: list[str] = []
    with pytest.raises(InputError) as error:
        planned(tmp_path, asked={"model": "llama-3.1-8b"}, say=said.append)
    assert not rehearsed and not any("llama-3.1-8b" in line for line in said)
    refusal = str(error.value)
    unlike = "train.py's own --model tiny (its default) is another model than the plan's llama-3.1-8b"
    assert refusal.startswith(unlike) and "plan again" not in refusal
    assert refusal.endswith("; leave zerokit's model out: the rehearsal determines the script's model")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("title: t\nmodel: llama-3.1-8b\n")
    with pytest.raises(InputError) as error:
        planned(tmp_path, recipe=str(recipe))
    assert "; take it out of the recipe with model=: the rehearsal" in str(error.value)
