"""The job that a plan counts on and a script does otherwise: adapters, length, loss, optimizer, saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import zerokit
from tests.support.scripts_read import (
    FIXED_TRAINER,
    PLANNED,
    RAW,
    TRAINER,
    agreed,
    held,
    joined,
    options,
)
from zerokit.domain.job import Lora
from zerokit.emit import plan_file
from zerokit.errors import InputError
from zerokit.launcher.plan_agreement import contradictions, made_by_script, of_job, other_optimizer
from zerokit.launcher.rehearsed_plan import Agreement
from zerokit.script.unlike_job import with_optimizer_of
from zerokit.values import replace

TRLS = """
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config
args, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
SFTTrainer(args=args, peft_config=get_peft_config(model))
"""
ALL = "--lora_target_modules all-linear"
ASKED = "give the script --use_peft --lora_r 16 --lora_target_modules all-linear"


@pytest.mark.parametrize(
    ("arguments", "method", "said"),
    [
        ("", "full", []),
        ("--use_peft", "full", ["--use_peft true: trained parameters lora, but the plan has full; "]),
        ("", "lora", [f"--use_peft is not given: trained parameters full, but the plan has lora; {ASKED}"]),
        (f"--use_peft {ALL}", "lora", []),
        ("--use_peft", "lora", ["so PEFT takes few layers: adapters' modules PEFT's default, but"]),
        (
            "--use_peft --lora_target_modules q_proj v_proj --lora_r 64",
            "qlora",
            [
                f"parameters lora, but the plan has qlora; {ASKED} --load_in_4bit --dtype bfloat16, or plan "
                "again with ⟨method⟩ lora",
                "--lora_r 64: adapters' rank 64, but the plan has 16",
                "--lora_target_modules q_proj v_proj: adapters' modules q_proj v_proj, but the plan has "
                "all-linear",
            ],
        ),
        (
            f"--use_peft --load_in_4bit {ALL}",
            "qlora",
            ["--dtype is float32 by default: trained parameters qlora with products in fp32, but"],
        ),
        (f"--use_peft --load_in_4bit --dtype bfloat16 {ALL}", "qlora", []),
    ],
)  # fmt: skip
def test_what_trls_arguments_ask_for_is_compared_with_the_plan(
    tmp_path: Path, arguments: str, method: str, said: list[str]
) -> None:
    plan = held(request={"method": method}, lora=None if method == "full" else Lora())
    found = of_job(options(tmp_path, TRLS, *arguments.split()), plan)
    assert len(found) == len(said), found
    assert all(part in one for part, one in zip(said, found, strict=True)), found


def test_trls_list_of_modules_is_compared_as_a_whole(tmp_path: Path) -> None:
    plan = held(lora=Lora(targets=("q_proj", "v_proj")))
    command = ["--use_peft", "--lora_target_modules", "v_proj", "q_proj"]
    assert of_job(options(tmp_path, TRLS, *command), plan) == []
    settings = tmp_path / "sft.yaml"
    settings.write_text("use_peft: true\nlora_r: 16\nlora_target_modules: [q_proj, v_proj]\n")
    assert of_job(options(tmp_path, TRLS, "--config", str(settings)), plan) == []


def with_loss(
    folder: Path, text: str, *given: str, loss: str = "liger", on_cpu: bool = False, **chosen: Any
) -> Agreement:
    plan = held({**chosen, "micro_batch": 4, "gradient_accumulation": 1}, {"loss": loss}, folder / "plan")
    return agreed(options(folder, text, *given), plan, on_cpu=on_cpu)


def warned(found: Agreement) -> list[str]:
    return [note for note in found.notes if "the plan counts on ⟨loss⟩" in note]


def test_a_trainer_is_told_to_fuse_head_and_loss(tmp_path: Path) -> None:
    found = with_loss(tmp_path, TRAINER)
    assert "--use_liger_kernel True" in " ".join(found.added) and not warned(found)
    assert "use_liger" not in " ".join(with_loss(tmp_path, TRAINER, loss="standard").added)
    # Liger's kernels are a GPU's
    assert "use_liger" not in " ".join(with_loss(tmp_path, TRAINER, on_cpu=True).added)
    given = with_loss(tmp_path, TRAINER, "--use_liger_kernel", "True")
    assert "use_liger" not in " ".join(given.added)
    # a script that was rehearsed was rehearsed with its own loss
    assert "use_liger" not in " ".join(with_loss(tmp_path, TRAINER, rehearsed={"script": "train.py"}).added)


def test_a_trainer_that_does_not_fuse_them_contradicts_the_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--use_liger_kernel False, but the plan has use_liger_kernel True"):
        with_loss(tmp_path, TRAINER, "--use_liger_kernel", "False")
    fixed = FIXED_TRAINER.replace("gradient_checkpointing=True", "bf16=True")
    with pytest.raises(InputError, match="use_liger_kernel is False by default"):
        with_loss(tmp_path, fixed)
    with_loss(tmp_path, fixed.replace("bf16=True", "bf16=True, use_liger_kernel=True"))


OF_8_BITS = replace(PLANNED, optimizer="adamw_8bit")
CONFIG = {"optimizer": {"type": "AdamW"}}
OF_CODE = """
    from transformers import Trainer, TrainingArguments
    args = TrainingArguments(output_dir="out", optim="{}")
    Trainer(args=args).train()
"""


def test_the_plans_optimizer_is_given_where_the_script_is_to_make_it(tmp_path: Path) -> None:
    assert "--optim adamw_8bit" in joined(options(tmp_path, TRAINER), optimizer="adamw_8bit")
    assert "--optim" not in joined(options(tmp_path, TRAINER))  # DeepSpeed's configuration has it
    given = options(tmp_path, TRAINER, "--optim", "adamw_torch")
    assert "--optim" not in joined(given, optimizer="adamw_8bit")


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (TRAINER, "--optim adamw_torch", "--optim adamw_torch, but the plan has optim adamw_8bit"),
        (TRAINER, "--optim=lion_8bit", "--optim lion_8bit, but the plan has optim adamw_8bit"),
        (TRAINER, "--optim adamw_bnb_8bit", None),  # transformers: two names of one optimizer
        (TRAINER, "", None),  # it is added
        (FIXED_TRAINER, "", "optim is adamw_torch_fused by default, but the plan has optim adamw_8bit"),
        (RAW, "--optim adamw_torch", None),  # the script's own matter
    ],
)
def test_another_optimizer_than_the_plans_is_refused(
    tmp_path: Path, text: str, arguments: str, said: str | None
) -> None:
    found = contradictions(options(tmp_path, text, *arguments.split()), OF_8_BITS, added=True)
    assert [one for one in found if "optim" in one] == ([said] if said else [])


def test_only_a_plan_without_deepspeeds_optimizer_leaves_it_to_the_script() -> None:
    request = {"optimizer": "adamw_8bit"}
    assert made_by_script(request, {}) == "adamw_8bit"
    assert made_by_script(request, {"optimizer": {"type": "AdamW"}}) is None
    assert made_by_script({"optimizer": "AdamW"}, {}) is None


def test_a_plan_for_a_script_takes_its_optimizer(tmp_path: Path) -> None:
    with_8_bits = options(tmp_path, TRAINER, "--optim", "adamw_8bit")
    assert with_optimizer_of(with_8_bits, {"gpus": "2"}) == {"gpus": "2", "optimizer": "adamw_8bit"}
    same = {"optimizer": "adamw_bnb_8bit"}
    assert with_optimizer_of(with_8_bits, same) == same
    assert with_optimizer_of(options(tmp_path, TRAINER, "--optim", "adamw_torch"), {}) == {}
    assert with_optimizer_of(options(tmp_path, RAW, "--optim", "adamw_8bit"), {}) == {}


@pytest.mark.parametrize(
    ("optim", "asked", "words"),
    [
        (
            "adamw_8bit",
            {"optimizer": "AdamW"},
            "⟨optimizer⟩ AdamW: --optim adamw_8bit; leave ⟨optimizer⟩ out",
        ),
        ("grokadamw", {}, "--optim grokadamw: not modelled: it keeps its states in host memory"),
    ],
)
def test_a_plan_for_a_script_with_another_optimizer_is_refused(
    tmp_path: Path, optim: str, asked: dict[str, str], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        with_optimizer_of(options(tmp_path, TRAINER, "--optim", optim), asked)
    assert caught.value.marked.startswith(words)


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (TRAINER, "--optim adafactor", "--optim adafactor, but the plan has AdamW"),
        (TRAINER, "--optim adamw_torch_fused", None),
        (TRAINER, "--optim adamw_8bit", "--optim adamw_8bit, but the plan has AdamW"),
        (TRAINER, "--optim adamw_torch_4bit", "--optim adamw_torch_4bit, but the plan has AdamW"),
        (OF_CODE.format("adamw_bnb_8bit"), "", "train.py sets optim adamw_bnb_8bit, but the plan has AdamW"),
        (OF_CODE.format("adamw_torch"), "", None),
        (RAW, "--optim adafactor", None),  # the script's own matter
    ],
)
def test_an_optimizer_that_deepspeeds_goes_before_is_named(
    tmp_path: Path, text: str, arguments: str, said: str | None
) -> None:
    found = other_optimizer(options(tmp_path, text, *arguments.split()), CONFIG)
    assert [said in one for one in found] == [True] if said else found == []


def test_an_optimizer_of_the_users_is_free_where_the_plan_has_none(tmp_path: Path) -> None:
    assert other_optimizer(options(tmp_path, TRAINER, "--optim", "adafactor"), {}) == []


CLASS = """
    from dataclasses import dataclass, field
    @dataclass
    class DataArguments:
        block_size: int | None = field(default={}, metadata={{"help": "the length"}})
"""


@pytest.mark.parametrize(
    ("default", "arguments", "said"),
    [
        ("None", "--block_size 2048", []),
        ("None", "--block_size=512", ["--block_size 512: sequence length 512, but the plan has 2048"]),
        (
            "128",
            "",
            [
                "--block_size is 128 by default: sequence length 128",
                "give the script --block_size 2048, or plan again with ⟨seq_len⟩ 128",
            ],
        ),
        ("2048", "", []),
    ],
)
def test_the_length_is_the_scripts(tmp_path: Path, default: str, arguments: str, said: list[str]) -> None:
    read = options(tmp_path, CLASS.format(default) + TRAINER, *arguments.split())
    found = of_job(read, held(seq_len=2048))
    assert len(found) == (1 if said else 0)
    assert all(part in found[0] for part in said)
    rehearsed = held({"micro_batch": 4, "rehearsed": {"script": "train.py"}}, seq_len=2048)
    assert of_job(read, rehearsed) == []  # that length is of the data, which may be shorter


def test_an_option_of_argparse_has_a_default_too(tmp_path: Path) -> None:
    text = RAW + "    parser.add_argument('--seq-len', type=int, default={})\n"
    (found,) = of_job(options(tmp_path, text.format(128)), held(seq_len=2048))
    assert "--seq-len is 128 by default" in found and "give the script --seq-len 2048, or plan again" in found
    assert of_job(options(tmp_path, text.format(128), "--seq-len", "2048"), held(seq_len=2048)) == []
    assert of_job(options(tmp_path, text.format("None")), held(seq_len=2048)) == []


def test_a_models_block_size_is_no_option(tmp_path: Path) -> None:
    """Of a class that no parser turns into options."""
    text = CLASS.format("1024") + "    import deepspeed\n    deepspeed.initialize(config='ds.json')\n"
    assert of_job(options(tmp_path, text), held(seq_len=2048)) == []


def test_the_plans_own_length_is_compared_where_nobody_gave_one(tmp_path: Path) -> None:
    """Of a model of 1,024 positions that is not 2,048, which plans for longer models have."""
    zerokit.plan(model="gpt2", gpus=1, gpu="l40s", out=tmp_path)
    length = plan_file.read(tmp_path).seq_len
    assert length == 1024
    assert of_job(options(tmp_path, TRAINER, "--max_length", "1024"), held(seq_len=length)) == []
    (said,) = of_job(options(tmp_path, TRAINER, "--max_length", "512"), held(seq_len=length))
    assert "the plan has 1024" in said and "give the script --max_length 1024, or" in said


def test_a_length_in_a_file_of_settings_is_no_option(tmp_path: Path) -> None:
    settings = tmp_path / "sft.yaml"
    settings.write_text("max_length: 512\n")
    (said,) = of_job(options(tmp_path, TRLS, "--config", str(settings)), held(seq_len=2048))
    assert f"{settings}: max_length: 512: sequence length 512, but the plan has 2048; plan again" in said
