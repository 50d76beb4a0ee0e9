"""Trainers' files are the options that a person would give for them, and every key is accounted for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import zerokit
from tests.support.trainer_files import HANDBOOK, LLAMA_FACTORY, QLORA, SWIFT, written
from zerokit.cli import run
from zerokit.errors import InputError
from zerokit.trainer_files import KEPT, NOT_MODELLED, UNKNOWN_KEY
from zerokit.trainer_files.reading import as_arguments, read_trainer_file

# the script's own bucket sizes do not matter to stage 0
ZERO_2 = {
    "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {
        "stage": 2, "overlap_comm": False, "contiguous_gradients": True, "reduce_bucket_size": 2e8,
        "allgather_bucket_size": 2e8,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


HARDWARE: Mapping[str, Any] = {"gpus": 4, "gpu": "h200"}
ADAPTED: Mapping[str, Any] = {"method": "lora", "lora_rank": 8, "micro_batch": 1, "seq_len": 2048}


@pytest.mark.parametrize(
    ("text", "by_hand"),
    [
        (
            QLORA,
            {"model": "llama-3.2-1b", "method": "qlora", "lora_rank": 32, "lora_dropout": 0.05,
             "seq_len": 2048, "micro_batch": 2, "gradient_accumulation": 4, "optimizer": "adamw_bnb_8bit",
             "checkpointing": "full", "attention": "flash_attention_2", "trainer": "axolotl"},
        ),
        (
            LLAMA_FACTORY,
            {**ADAPTED, "model": "qwen3-4b", "gradient_accumulation": 2, "checkpointing": "full",
             "trainer": "llamafactory", "deepspeed": "ds.json"},
        ),
        (
            SWIFT,
            {**ADAPTED, "model": "qwen2.5-7b", "gradient_accumulation": 8, "checkpointing": "full",
             "trainer": "swift", "deepspeed": "ds.json"},
        ),
        (
            HANDBOOK,
            {"model": "mistral-7b-v0.1", "seq_len": 2048, "micro_batch": 16, "checkpointing": "full",
             "optimizer": "adamw_torch", "trainer": "trl"},
        ),
    ],
    ids=["axolotl", "LLaMA-Factory", "ms-swift", "alignment-handbook"],
)  # fmt: skip
def test_a_file_is_what_a_person_types_for_it(text: str, by_hand: dict[str, Any]) -> None:
    Path("ds.json").write_text(json.dumps(ZERO_2), encoding="utf-8")
    # without an engine memory is that of DDP, which is traced: tests/torch/test_plain_training.py
    engine = {} if "deepspeed" in by_hand else {"engine": "deepspeed"}
    of_file = zerokit.estimate(file=written(text), **HARDWARE, **engine).to_dict()
    typed = zerokit.estimate(**by_hand, **HARDWARE).to_dict()
    for key in ("min_vram_bytes", "peak_allocated_bytes", "step_seconds", "components_by_phase"):
        assert of_file[key] == typed[key], key


def test_a_plan_keeps_the_global_batch_and_what_is_typed_wins() -> None:
    plan = zerokit.plan(file=written(QLORA), gpus=2, gpu="rtx-4090")
    assert plan.global_batch == 2 * 4 * 2 and plan.chosen.job.lora.rank == 32
    typed = zerokit.plan(file="job.yml", gpus=2, gpu="rtx-4090", lora_rank=8, global_batch=32)
    assert typed.global_batch == 32 and typed.chosen.job.lora.rank == 8
    assert {row.method for row in zerokit.size(file="job.yml", gpu="rtx-4090").sizes} == {"qlora"}


def test_what_counts_and_is_not_counted_is_named() -> None:
    text = QLORA + "tiled_mlp: true\nquantize_moe_experts: false\nlora_targget_linear: true\n"
    text = text.replace("adamw_bnb_8bit", "muon_of_mine")
    found = zerokit.estimate(file=written(text), gpus=1, gpu="l40s", engine="deepspeed")
    notes = {note.id: str(note) for note in found.notes}
    assert "tiled_mlp" in notes[NOT_MODELLED] and "optimizer (muon_of_mine" in notes[NOT_MODELLED]
    assert not {"quantize_moe_experts", "wandb_project", "lora_r"} & {*notes[NOT_MODELLED].split()}
    assert "lora_targget_linear" in notes[UNKNOWN_KEY]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (QLORA + "rl: gdpo\n", "rl: gdpo"),
        (QLORA + "diffusion: {eps: 0.1}\n", "diffusion: {'eps': 0.1}"),
        (LLAMA_FACTORY.replace("sft", "ppo"), "stage: ppo"),
        (LLAMA_FACTORY.replace("type: lora", "type: oft"), "finetuning_type: oft"),
        (SWIFT + "rlhf_type: ppo\n", "rlhf_type: ppo"),
        (HANDBOOK.replace("max_length: 2048", "lmbda: 0.5"), "lmbda: 0.5"),
    ],
)
def test_what_no_plan_is_made_for_is_refused_by_its_key(text: str, key: str) -> None:
    with pytest.raises(InputError, match=f"job.yml: {key}: .* not modelled; `zerokit rehearse"):
        zerokit.plan(file=written(text), gpus=2, gpu="h200")


def test_one_module_stands_for_a_list_of_them() -> None:
    adapted = HANDBOOK + "use_peft: true\nlora_target_modules: all-linear\ndtype: bfloat16\n"
    file = read_trainer_file(written(adapted))
    assert (file.options["lora_targets"], file.options["load_dtype"]) == ("all-linear", "bf16")
    assert not file.not_modelled


def test_defaults_are_those_of_the_stage() -> None:
    text = "\n".join(line for line in HANDBOOK.splitlines() if not line.startswith("max_length"))
    assert read_trainer_file(written(text), "trl").options["seq_len"] == 1024  # trl/trainer/sft_config.py
    off = read_trainer_file(written(text.replace("bf16: true", "bf16: false")), "trl")
    assert off.options["precision"] == "fp32"  # trl/trainer/base_config.py:108: on where nobody says
    # only its new trainer trains in bf16 where nobody says (v1/config/training_args.py)
    of_full = LLAMA_FACTORY.replace("bf16: true\n", "").replace("type: lora", "type: full")
    assert read_trainer_file(written(of_full)).options["precision"] == "fp32"  # model/adapter.py:316
    plain = read_trainer_file(written(QLORA.replace("bf16: auto", "bf16: false")))
    assert plain.options["precision"] == "fp32"  # axolotl/utils/config/__init__.py:203
    wide = read_trainer_file(
        written(SWIFT.replace("bfloat16", "float32"))
    )  # under autocast (model_args.py:133)
    assert (wide.options["precision"], wide.options["load_dtype"]) == ("fp16", "fp32")


def test_fsdp_of_a_file_is_what_the_trainer_gets() -> None:
    full = QLORA.replace("adapter: qlora\nload_in_4bit: true\n", "").replace("adamw_bnb_8bit", "adamw_torch")
    # bf16 is auto, and gives way (axolotl 0.19, utils/config/__init__.py, resolve_dtype)
    half = full.replace("bf16: auto", "fp16: true") + "fsdp_config: {version: 2, fsdp_offload_params: true}\n"
    strategy = zerokit.estimate(file=written(half), **HARDWARE).planned.strategy
    assert strategy.settings.precision == "fp16"
    assert strategy.settings.offloads  # by FSDP_OFFLOAD_PARAMS (utils/trainer.py:599)
    # a block without a version is FSDP 1's (utils/schemas/validation.py:1227)
    with pytest.raises(InputError, match="FSDP version 1 is not modelled"):
        zerokit.estimate(file=written(full + "fsdp_config: {offload_params: true}\n"), **HARDWARE)
    swift = SWIFT.replace("deepspeed: zero2", "fsdp: fsdp2").replace(
        "lora_rank", "gradient_checkpointing: false\nlora_rank"
    )
    planned = zerokit.estimate(file=written(swift), **HARDWARE).planned.strategy
    assert planned.engine == "fsdp2" and planned.checkpointing == "full"  # swift 4.6, config/fsdp2.json


def test_casts_of_a_checkpoint_in_another_dtype_are_named() -> None:
    assert not read_trainer_file(written(LLAMA_FACTORY)).not_modelled
    # benchmarks/trainer_files/rehearsed.jsonl, lf.fp16.lora: backward takes 17 % more than the answer
    half = read_trainer_file(written(LLAMA_FACTORY.replace("bf16: true", "fp16: true")))
    assert "bf16 is cast" in half.not_modelled["fp16"]


def test_adapters_that_nobody_places_are_on_pefts_own_modules() -> None:
    adapted = HANDBOOK + "use_peft: true\n"
    of_file = zerokit.estimate(file=written(adapted), **HARDWARE, engine="deepspeed")
    assert of_file.planned.job.lora is not None
    assert of_file.planned.job.lora.targets == ("q_proj", "v_proj")  # peft 0.21, utils/constants.py:96
    with pytest.raises(InputError, match="none for glm4"):
        zerokit.estimate(model="glm-4-9b", method="lora", lora_targets="peft", **HARDWARE)


def test_trl_keeps_its_own_loss_beside_liger() -> None:
    file = read_trainer_file(written(HANDBOOK + "use_liger_kernel: true\n"))
    assert "loss" not in file.options and "use_liger_kernel" in file.not_modelled  # sft_trainer.py:1140
    assert read_trainer_file(written(SWIFT + "use_liger_kernel: true\n")).options["loss"] == "liger"


def test_llama_factory_leaves_ligers_loss_out_where_it_reads_logits() -> None:
    liger = LLAMA_FACTORY + "enable_liger_kernel: true\n"
    assert read_trainer_file(written(liger)).options["loss"] == "liger"
    for stage in ("dpo", "kto", "rm"):  # model/loader.py:144, require_logits
        file = read_trainer_file(written(liger.replace("sft", stage)))
        assert "loss" not in file.options and "enable_liger_kernel" in file.not_modelled


def test_reward_models_of_llama_factory_trained_whole_stop_under_zero_3() -> None:
    whole = LLAMA_FACTORY.replace("sft", "rm").replace("type: lora", "type: full")
    assert read_trainer_file(written(whole)).options["trainer"] == "llamafactory-reward"
    for stage in (2, 3):  # rehearsed: deepspeed/runtime/zero/utils.py:218
        Path("ds.json").write_text(
            json.dumps({"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}})
        )
        file = written(whole)
        if stage == 2:
            assert zerokit.estimate(file=file, gpus=2, gpu="h200").planned.strategy.settings.zero_stage == 2
        else:
            with pytest.raises(InputError, match="a head in fp32"):
                zerokit.estimate(file=file, gpus=2, gpu="h200")


def test_constants_of_4_bit_weights_that_are_not_the_default_are_named() -> None:
    packed = LLAMA_FACTORY + "quantization_bit: 4\ndouble_quantization: "
    assert not read_trainer_file(written(packed + "true\n")).not_modelled
    assert "8 bits" in read_trainer_file(written(packed + "false\n")).not_modelled["double_quantization"]


def test_batches_of_axolotl_are_padded_unless_they_are_packed() -> None:
    for packed in (True, False):
        text = yaml.safe_dump(
            {**yaml.safe_load(QLORA), "pad_to_sequence_len": True, "sample_packing": packed}
        )
        assert ("padding" in read_trainer_file(written(text), "axolotl").options) is not packed


@pytest.mark.parametrize(
    ("keys", "trainer", "named"),
    [
        ("", "axolotl", ()),
        ("trust_remote_code: true\n", "axolotl-peft", ()),
        ("lora_mlp_kernel: false\n", "axolotl-peft", ()),
        ("lora_mlp_kernel: true\n", "axolotl-peft", ("lora_mlp_kernel",)),
        ("lora_mlp_kernel: true\nlora_qkv_kernel: true\nlora_o_kernel: true\n", "axolotl", ()),
        ("lora_target_modules: [q_proj, embed_tokens]\n", "axolotl", ("lora_embedding_kernel",)),
    ],
)
def test_kernels_of_axolotl_are_on_where_no_key_says(keys: str, trainer: str, named: tuple[str, ...]) -> None:
    text = QLORA.replace("lora_target_linear: true\n", "") if "lora_target" in keys else QLORA
    file = read_trainer_file(written(text + keys), "axolotl")
    assert file.options["trainer"] == trainer
    assert {key for key in file.not_modelled if key.endswith("_kernel")} == {*named}


def test_preferences_of_trl_are_told_by_their_arguments() -> None:
    file = read_trainer_file(written(HANDBOOK + "beta: 0.01\nuse_liger_kernel: false\nloss_type: sigmoid\n"))
    assert (file.options["trainer"], file.command) == ("trl-dpo", ("trl", "dpo", "--config", "job.yml"))
    file = read_trainer_file(written(HANDBOOK + "beta: 0.1\ndesirable_weight: 1.0\n"))
    assert (file.options["trainer"], file.command) == ("trl-kto", ("trl", "kto", "--config", "job.yml"))


@pytest.mark.parametrize(
    ("text", "trainer", "named"),
    [
        (QLORA + "rl: ipo\nrl_beta: 0.1\n", "axolotl-dpo", set()),
        (QLORA + "rl: dpo\nlora_mlp_kernel: true\n", "axolotl-dpo", {"lora_mlp_kernel"}),
        (QLORA + "rl: dpo\ndpo_loss_type: [sft]\n", "axolotl-dpo", {"dpo_loss_type"}),
        (QLORA + "rl: kto\nrl_beta: 0.5\nkto_desirable_weight: 0.2\n", "axolotl-kto", set()),
        (QLORA + "rl: simpo\n", "axolotl-orpo", set()),
        (QLORA + "rl: grpo\ntrl: {beta: 0.04, num_generations: 4, max_completion_length: 256}\n",
         "axolotl-grpo-beta", set()),
        (QLORA + "rl: grpo\ntrl: {use_vllm: true, vllm_mode: server}\n", "axolotl-grpo-server", set()),
        (QLORA + "rl: grpo\ntrl: {num_iterations: 3}\n", "axolotl-grpo", {"trl.num_iterations"}),
        (QLORA + "rl: simpo\ncpo_alpha: 0\n", "axolotl-orpo", {"cpo_alpha"}),
        (QLORA + "rl: orpo\nplugins: [axolotl.integrations.liger.LigerPlugin]\n"
         "liger_fused_linear_cross_entropy: true\n", "axolotl-orpo", {"plugins"}),
        (QLORA + "reward_model: true\nnum_labels: 1\n", "axolotl-reward", {"reward_model"}),
        (QLORA + "reward_model: true\nlora_mlp_kernel: false\n", "axolotl-reward", set()),
        (QLORA + "process_reward_model: true\nnum_labels: 2\n", "axolotl-process",
         {"process_reward_model", "lora_target_linear"}),
        (SWIFT + "rlhf_type: dpo\nbeta: 0.1\nrpo_alpha: 0.1\n", "swift-dpo", set()),
        (SWIFT + "rlhf_type: kto\n", "swift-kto", set()),
        (SWIFT + "rlhf_type: grpo\nreward_funcs: [format]\n", "swift-grpo-beta", set()),
        (SWIFT + "rlhf_type: grpo\nbeta: 0.0\n", "swift-grpo", set()),
        (SWIFT + "rlhf_type: grpo\nuse_vllm: true\nvllm_mode: server\n", "swift-grpo-beta-server", set()),
        (SWIFT + "rlhf_type: grpo\nuse_vllm: true\nvllm_mode: colocate\nsleep_level: 1\n",
         "swift-grpo-beta-server", {"use_vllm"}),
        (SWIFT + "rlhf_type: cpo\nuse_liger_kernel: true\n", "swift-orpo", {"use_liger_kernel"}),
        (SWIFT + "rlhf_type: rm\ntask_type: seq_cls\nnum_labels: 1\n", "swift-reward", set()),
    ],
)  # fmt: skip
def test_preferences_are_counted_by_rows_of_their_own(text: str, trainer: str, named: set[str]) -> None:
    file = read_trainer_file(written(text))
    assert (file.options["trainer"], {*file.not_modelled}, file.refused) == (trainer, named, "")
    assert file.options["padding"]  # answers differ in length


def test_kto_of_trl_stops_where_a_batch_has_one_row() -> None:
    """So it says itself (TRL 1.9, trainer/kto_trainer.py:807); ms-swift's runs, rehearsed."""
    job = {"model": "llama-3.2-1b", "gpus": 2, "gpu": "h200", "engine": "deepspeed", "method": "lora",
           "seq_len": 512}  # fmt: skip
    assert zerokit.plan(**job, global_batch=2, trainer="swift-kto").chosen is not None
    for trainer in ("axolotl-kto", "trl-kto"):
        with pytest.raises(InputError, match=r"micro_batch 1: .* stops below 2"):
            zerokit.plan(**job, micro_batch=1, trainer=trainer)
        with pytest.raises(InputError, match="use global_batch 4 or 8"):
            zerokit.plan(**job, global_batch=2, trainer=trainer)
        chosen = zerokit.plan(**job, trainer=trainer).chosen
        assert chosen is not None and chosen.strategy.settings.micro_batch >= 2


GRPO = HANDBOOK.replace(
    "max_length: 2048", "num_generations: 8\nmax_completion_length: 1024\nreward_funcs: [think_format_reward]"
)


def test_generation_of_trl_is_told_by_its_arguments() -> None:
    file = read_trainer_file(written(GRPO))
    assert file.command == ("trl", "grpo", "--config", "job.yml") and not file.not_modelled
    assert (file.options["trainer"], file.options["new_tokens"]) == ("trl-grpo", 1024)
    assert file.options["seq_len"] == 512 + 1024
    # the batch that is generated is a step's, unless it says otherwise (trl/trainer/grpo_config.py)
    more = read_trainer_file(written(GRPO + "num_iterations: 2\nbeta: 0.04\n"))
    assert (more.options["trainer"], [*more.not_modelled]) == ("trl-grpo-beta", ["num_iterations"])
    engine = GRPO + "use_vllm: true\nsteps_per_generation: 16\nvllm_mode: "
    server = read_trainer_file(written(engine + "server\n"))
    assert (server.options["trainer"], server.not_modelled) == ("trl-grpo-server", {})
    beside = read_trainer_file(written(engine + "colocate\n"))
    assert beside.not_modelled == {"use_vllm": "the engine's 30% of each GPU, which a plan leaves free"}
    assert beside.options["margin"] == pytest.approx(0.32)


def test_an_evaluation_is_taken_and_of_preferences_a_larger_one_is_named() -> None:
    every = "eval_strategy: steps\nper_device_eval_batch_size: "
    for text in (SWIFT, LLAMA_FACTORY, HANDBOOK):
        file = read_trainer_file(written(text + every + "4\n"))
        assert file.options["eval_batch"] == 4 and not file.not_modelled
        assert "eval_batch" not in read_trainer_file(written(text)).options
    rows = read_trainer_file(written(LLAMA_FACTORY + "val_size: 0.1\n"))
    assert "eval_batch" not in rows.options and not rows.not_modelled
    # the Trainer's default (transformers/training_args.py)
    assert read_trainer_file(written(LLAMA_FACTORY + "eval_strategy: steps\n")).options["eval_batch"] == 8
    pairs = LLAMA_FACTORY.replace("sft", "dpo") + every
    assert (
        "4 sequences" in read_trainer_file(written(pairs + "4\n")).not_modelled["per_device_eval_batch_size"]
    )
    assert not read_trainer_file(written(pairs + "1\n")).not_modelled


def test_the_command_of_a_shell_script_is_read_and_not_run() -> None:
    text = "export A=1\n# swift infer\nCUDA_VISIBLE_DEVICES=0,1 \\\nNPROC_PER_NODE=2 \\\nswift sft \\\n" + (
        "    --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora \\\n    --dataset 'a#1' 'b#2' \\\n"
        "    --lora_rank=4 --max_length $LENGTH --gradient_accumulation_steps $(expr 16 / $n) \\\n"
        "    --deepspeed zero3 2>&1 | tee log && touch ran\n"
    )
    file = read_trainer_file(written(text, "job.sh"))
    assert file.options["lora_rank"] == 4 and file.document.value["dataset"] == ["a#1", "b#2"]
    assert file.engine["deepspeed"]["zero_optimization"]["stage"] == 3
    assert {"max_length", "gradient_accumulation_steps"} <= file.not_modelled.keys()
    assert file.command[:3] == ("swift", "sft", "--model") and not Path("ran").exists()
    with pytest.raises(InputError, match="no command of axolotl, llamafactory, swift, trl that trains"):
        read_trainer_file(written("swift infer --model x\n", "other.sh"))


def test_whose_file_it_is_can_be_said() -> None:
    name = written("model_name_or_path: gpt2\nbf16: true\nlearning_rate: 1.0e-4\n")
    with pytest.raises(InputError, match="say whose file it is with from"):
        read_trainer_file(name)
    assert read_trainer_file(name, "trl").options["model"] == "gpt2"
    with pytest.raises(InputError, match="from swfit: use one of axolotl"):
        read_trainer_file(name, "swfit")


def test_a_deepspeed_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InputError, match=r"job\.yml: deepspeed: ds\.json: there is no such file"):
        zerokit.estimate(file=written(LLAMA_FACTORY), gpus=4, gpu="h200")


def test_fsdp_of_a_file_is_estimated_as_fsdp2() -> None:
    block = (
        "gradient_checkpointing_kwargs: {use_reentrant: false}\nfsdp_version: 2\n"
        "fsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    )
    full = QLORA.replace("adapter: qlora\nload_in_4bit: true\n", "").replace("adamw_bnb_8bit", "adamw_torch")
    found = zerokit.estimate(file=written(full + block), gpus=2, gpu="h200")
    assert found.planned.strategy.engine == "fsdp2" and found.planned.strategy.world_size == 2
    block += "  activation_checkpointing: true\n"
    with pytest.raises(InputError, match=r"adamw_bnb_8bit: bitsandbytes' kernels take no DTensors"):
        zerokit.estimate(file=written(QLORA + block), gpus=2, gpu="h200")
    packed = QLORA.replace("adamw_bnb_8bit", "adamw_torch_8bit") + block
    found = zerokit.estimate(file=written(packed), gpus=2, gpu="h200")
    assert found.planned.strategy.checkpointing == "full"


def test_arguments_of_a_worker_are_those_that_ms_swift_makes() -> None:
    # swift/cli/main.py, parse_yaml_args: lists word by word, mappings as JSON, ENV apart
    written("model: m\ndataset:\n  - a#500\n  - b\nmodel_kwargs: {x: 1}\npacking: true\nENV: {A: 1}\n")
    words = ("--model", "m", "--dataset", "a#500", "b", "--model_kwargs", '{"x": 1}', "--packing", "True")
    assert as_arguments("job.yml") == words


def test_refusals_name_the_file_and_its_key() -> None:
    name = written(QLORA.replace("micro_batch_size: 2", "micro_batch_size: -3"))
    with pytest.raises(InputError, match=r"^job\.yml: micro_batch_size: cannot read '-3'"):
        zerokit.plan(file=name, gpus=2, gpu="h200")
    assert zerokit.plan(file=name, gpus=2, gpu="h200", micro_batch=1).chosen.micro_batch == 1


def test_values_of_another_shape_are_named() -> None:
    odd = QLORA + "plugins: axolotl.x\nfsdp_config: true\ndatasets: 1\n1: 2\n"
    file = read_trainer_file(written(odd.replace("sequence_len: 2048", "sequence_len: {x: 1}")))
    assert {"plugins": "x", "fsdp_config": "it takes no single value"}.items() <= file.not_modelled.items()
    assert {"sequence_len"} <= file.not_modelled.keys()
    assert "seq_len" not in file.options and file.unknown == ("1",)


def test_a_file_beside_a_script_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="leave one of them out"):
        zerokit.plan("train.py", file=written(QLORA), gpus=2, gpu="h200")
    assert run(["plan", "job.yml", "--gpus", "2", "--gpu", "h200", "--", "train.py"]) == 2
    assert "job.yml: a script after -- says the job itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({}, ""),
        ({"model": "meta-llama/Llama-3.2-1B", "seq_len": 2048, "lora_rank": 32, "micro_batch": 1}, ""),
        ({"global_batch": 64, "checkpointing": "none"}, ""),
        ({"model": "qwen2.5-1.5b"}, "base_model: NousResearch/Llama-3.2-1B (--model qwen2.5-1.5b)"),
        ({"trainer": "trl"}, "still says axolotl (--trainer trl)"),
        (
            {"seq_len": 1024, "loss": "liger", "method": "lora"},
            "sequence_len: 2048 (--seq-len 1024), adapter: qlora (--method lora), "
            "no such line (--loss liger)",
        ),
    ],
)
def test_what_is_typed_otherwise_than_the_file_that_is_given_back_is_said(
    typed: Mapping[str, Any], said: str
) -> None:
    """A plan is for what is typed, and the trainer's file would train something else."""
    notes = zerokit.plan(file=written(QLORA), **{**HARDWARE, **typed}).to_dict()["notes"]
    kept = [note for note in notes if note["id"] == KEPT]
    assert [note["level"] for note in kept] == ["warning"] * bool(said)
    parts = [part.strip(", ") for part in said.split("), ") if part]
    assert all(part in note["text"] for note in kept for part in parts)
    assert all(note["text"].count("(--") == len(parts) for note in kept)


def test_a_plan_for_another_job_is_never_said_to_run_as_the_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = written(QLORA)
    run(["plan", path, "--gpus", "1", "--gpu", "h200", "--dry-run", "--lora-rank", "8"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"{path} still says lora_r: 32 (--lora-rank 8): change it there" in told
    assert "it runs as the plan does" not in told


@pytest.mark.parametrize("command", [["plan", "--dry-run"], ["estimate"], ["size"]])
def test_of_two_files_one_is_too_many(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = written(QLORA)
    Path("second.yaml").write_text(QLORA)
    assert run([*command, path, "second.yaml"]) == 2
    said = capsys.readouterr()
    assert (
        not said.out and f"second.yaml: one file is answered for, and {path} is named before it" in said.err
    )
