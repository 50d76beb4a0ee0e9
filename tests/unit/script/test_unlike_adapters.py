"""Adapters and 4-bit weights that a plan counts on and a script does not make, or makes otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import RAW, TRAINER, options
from zerokit.domain.job import Lora
from zerokit.script.unlike_adapters import warnings

OWN = """
from dataclasses import dataclass
from peft import LoraConfig, get_peft_model
from transformers import BitsAndBytesConfig, HfArgumentParser, Trainer, TrainingArguments
@dataclass
class Job:
    lora_rank: int = 16
    four_bit: bool = False
job, args = HfArgumentParser((Job, TrainingArguments)).parse_args_into_dataclasses()
Trainer(args=args)
"""
TRLS = """
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config
args, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
SFTTrainer(args=args, peft_config=get_peft_config(model))
"""
ARGPARSE = RAW + "    import peft\n    parser.add_argument('--use-lora', action='store_true')\n"
ADDS = (
    OWN
    + """
def load():
    return get_peft_model(model, LoraConfig())
def main():
    model = load()
if __name__ == "__main__":
    main()
"""
)
BY_OPTION = ADDS.replace("    model = load()", "    model = load() if args.adapters else base()")
ALL = "--lora_target_modules all-linear"


@pytest.mark.parametrize(
    ("text", "arguments", "method", "said"),
    [
        (OWN, "", "full", []),
        (OWN, "", "lora", []),
        (ADDS, "", "full", ["get_peft_model adds adapters, and the plan trains all weights"]),
        (ADDS, "", "lora", []),
        (BY_OPTION, "", "full", []),  # an option of a name that tells nothing may decide
        (ADDS.replace("    return", "    if args.rank: return"), "", "full", []),
        (OWN.replace("four_bit", "qlora"), "", "lora", []),  # adapters all the same: it only quantises
        (
            OWN.replace("four_bit", "qlora"),
            "--qlora",
            "lora",
            ["--qlora is given, and the plan does not hold"],
        ),
        (OWN, "", "qlora", ["4 bits, and --four_bit is not given"]),
        (OWN, "--four_bit", "qlora", []),
        (OWN, "--four_bit false", "qlora", ["--four_bit is not given"]),
        (
            OWN,
            "--four_bit",
            "lora",
            ["plan does not hold the weights in 4 bits: leave it out, or plan again with ⟨method⟩ qlora"],
        ),
        (
            OWN.replace("four_bit", "qlora"),
            "--qlora",
            "full",
            [
                "all weights, and --qlora is given: leave it out, or plan again with ⟨method⟩ qlora",
                "4 bits: leave it out, or plan again with ⟨method⟩ qlora",
            ],
        ),
        (
            OWN,
            "--lora_rank 8",
            "lora",
            ["of rank 16: give the script --lora_rank 16, or plan again with ⟨lora_rank⟩ 8"],
        ),
        (
            OWN.replace("int = 16", "int = 64"),
            "",
            "lora",
            ["--lora_rank is 64 by default, but the plan has adapters of rank 16"],
        ),
        (TRLS, "", "full", []),
        (
            TRLS,
            "",
            "lora",
            [
                "without --use_peft the script trains all weights, which takes more memory than predicted: "
                "give the script --use_peft --lora_target_modules all-linear"
            ],
        ),
        (TRLS, f"--lora_r 8 {ALL}", "lora", ["give the script --use_peft --lora_r 16"]),
        (TRLS, f"--use_peft {ALL}", "lora", []),
        (
            TRLS,
            "--use_peft",
            "lora",
            [
                "--lora_target_modules is not given, so PEFT takes few layers, but the plan has adapters on "
                "all linear layers (all-linear): give the script --lora_target_modules all-linear"
            ],
        ),
        (
            TRLS,
            "--use_peft --lora_target_modules q_proj v_proj --lora_r 64",
            "qlora",
            [
                "--load_in_4bit is not given: they take four times as much; give the script --load_in_4bit",
                "--lora_r 64, but the plan",
                "--lora_target_modules q_proj v_proj, but the plan has adapters on all linear layers "
                "(all-linear): give the script --lora_target_modules all-linear, or plan again with "
                "⟨lora_targets⟩ q_proj,v_proj",
            ],
        ),
        (
            TRLS,
            f"--use_peft {ALL} --lora_r 64",
            "lora",
            ["--lora_r 64, but the plan has adapters of rank 16"],
        ),
        (TRLS, f"--use_peft {ALL}", "qlora", ["--load_in_4bit is not given"]),
        (TRLS, f"--use_peft --load_in_4bit {ALL}", "qlora", ["--dtype is float32 by default: products"]),
        (TRLS, f"--use_peft --load_in_4bit --dtype bfloat16 {ALL}", "qlora", []),
        (
            ARGPARSE,
            "",
            "lora",
            ["--use-lora is not given: give it to the script, or plan again with ⟨method⟩ full"],
        ),
        (ARGPARSE, "--use-lora", "lora", []),
        (
            ARGPARSE,
            "--use-lora",
            "full",
            ["--use-lora is given: leave it out, or plan again with ⟨method⟩ lora"],
        ),
        (TRAINER, "", "lora", ["nothing in the script's source adds adapters"]),
        (TRAINER, "", "full", []),
    ],
)
def test_what_the_plan_trains_and_the_script_does_not_is_named(
    tmp_path: Path, text: str, arguments: str, method: str, said: list[str]
) -> None:
    lora = None if method == "full" else Lora()
    found = warnings(options(tmp_path, text, *arguments.split()), method, lora)
    assert len(found) == len(said), found
    assert all(part in one for part, one in zip(said, found, strict=True)), found


@pytest.mark.parametrize(
    ("written", "planned", "said"),
    [
        (
            '"all-linear"',
            ("q_proj", "v_proj"),
            "is all-linear, but the plan has adapters on q_proj, v_proj: write "
            'target_modules=["q_proj", "v_proj"] there, or plan again with ⟨lora_targets⟩ all-linear',
        ),
        (
            '["q_proj"]',
            ("all-linear",),
            "is q_proj, but the plan has adapters on all linear layers (all-linear): write "
            'target_modules="all-linear" there, or plan again with ⟨lora_targets⟩ q_proj',
        ),
        ('["v_proj", "q_proj"]', ("q_proj", "v_proj"), None),
        ('"all-linear"', ("all-linear",), None),
        ("job.targets", ("q_proj",), None),  # computed
        ('".*q_proj"', ("q_proj",), None),  # a pattern
    ],
)
def test_other_targets_than_the_plans_are_named(
    tmp_path: Path, written: str, planned: tuple[str, ...], said: str | None
) -> None:
    text = ADDS.replace("LoraConfig()", f"LoraConfig(r=16, target_modules={written})")
    found = warnings(options(tmp_path, text), "lora", Lora(targets=planned))
    assert len(found) == (said is not None), found
    if said is not None:
        assert f"target_modules {said}" in found[0] and ".py:13: " in found[0]


def test_trls_list_of_modules_is_compared_as_a_whole(tmp_path: Path) -> None:
    lora = Lora(targets=("q_proj", "v_proj"))
    command = ["--use_peft", "--lora_r", "16", "--lora_target_modules"]
    assert warnings(options(tmp_path, TRLS, *command, "v_proj", "q_proj"), "lora", lora) == []
    (said,) = warnings(options(tmp_path, TRLS, *command, "q_proj"), "lora", lora)
    assert "give the script --lora_target_modules q_proj v_proj, or" in said
    settings = tmp_path / "sft.yaml"
    settings.write_text("use_peft: true\nlora_r: 16\nlora_target_modules: [q_proj, v_proj]\n")
    assert warnings(options(tmp_path, TRLS, "--config", str(settings)), "lora", lora) == []


def test_a_file_of_settings_counts_as_given(tmp_path: Path) -> None:
    settings = tmp_path / "sft.yaml"
    settings.write_text("use_peft: true\nlora_r: 16\nlora_target_modules: all-linear\n")
    assert warnings(options(tmp_path, TRLS, "--config", str(settings)), "lora", Lora()) == []
