"""The length at which a script cuts its sequences, held to a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

import zerokit
from tests.support.scripts_read import RAW, TRAINER, options
from zerokit.emit import plan_file
from zerokit.script.option_list import unknown_option
from zerokit.script.sequence_length import length_warnings

CLASS = """
    from dataclasses import dataclass, field
    @dataclass
    class DataArguments:
        block_size: int | None = field(default={}, metadata={{"help": "the length"}})
"""


@pytest.mark.parametrize(
    ("default", "arguments", "said"),
    [
        ("None", "", ["--block_size is not given", "2,048 tokens: give --block_size 2048"]),
        ("None", "--block_size 2048", []),
        ("None", "--block_size=512", ["at 512 tokens (--block_size 512)", "2,048", "less memory"]),
        (
            "128",
            "",
            [
                "at 128 tokens (--block_size by default)",
                "predicted; give the script --block_size 2048, or plan again with ⟨seq_len⟩ 128",
            ],
        ),
        ("2048", "", []),
    ],
)
def test_the_length_is_the_scripts(tmp_path: Path, default: str, arguments: str, said: list[str]) -> None:
    found = length_warnings(options(tmp_path, CLASS.format(default) + TRAINER, *arguments.split()), 2048)
    assert len(found) == (1 if said else 0)
    assert all(part in found[0] for part in said)


def test_an_option_of_argparse_has_a_default_too(tmp_path: Path) -> None:
    text = RAW + "    parser.add_argument('--seq-len', type=int, default={})\n"
    (found,) = length_warnings(options(tmp_path, text.format(128)), 2048)
    assert "give the script --seq-len 2048, or plan again" in found
    assert "cuts sequences at 128 tokens (--seq-len by default), but the plan has 2,048" in found
    assert length_warnings(options(tmp_path, text.format(128), "--seq-len", "2048"), 2048) == []
    assert length_warnings(options(tmp_path, text.format("None")), 2048) == []


FIELDS = """
    from dataclasses import dataclass
    from transformers import HfArgumentParser, Trainer, TrainingArguments
    @dataclass
    class Data:
        seq_len: int = {}
    data, arguments = HfArgumentParser((Data, TrainingArguments)).parse_args_into_dataclasses()
    Trainer(args=arguments).train()
"""


@pytest.mark.parametrize("name", ["sequence_len", "max_seq_length", "max-length"])
def test_a_length_by_an_option_that_the_script_has_not_is_told_by_its_warning_alone(
    tmp_path: Path, name: str
) -> None:
    """The script ends there, and no other value of the option is any better."""
    read = options(tmp_path, FIELDS.format(512), f"--{name}", "4096")
    assert length_warnings(read, 2048) == []
    refused = unknown_option("train.py", read.facts.option_list, read.user_arguments, {})
    assert refused is not None and refused.endswith("did you mean --seq_len?")
    (said,) = length_warnings(options(tmp_path, FIELDS.format(512), "--seq_len", "4096"), 2048)
    assert "at 4,096 tokens (--seq_len 4096)" in said


def test_a_models_block_size_is_no_option(tmp_path: Path) -> None:
    """Of a class that no parser turns into options."""
    text = CLASS.format("1024") + "    import deepspeed\n    deepspeed.initialize(config='ds.json')\n"
    assert length_warnings(options(tmp_path, text), 2048) == []


def test_the_plans_own_length_is_compared_where_nobody_gave_one(tmp_path: Path) -> None:
    """Of a model of 1,024 positions that is not 2,048, which plans for longer models have."""
    zerokit.plan(model="gpt2", gpus=1, gpu="l40s", out=tmp_path)
    length = plan_file.read(tmp_path).seq_len
    assert length == 1024
    assert length_warnings(options(tmp_path, TRAINER, "--max_length", "1024"), length) == []
    (said,) = length_warnings(options(tmp_path, TRAINER, "--max_length", "512"), length)
    assert "the plan has 1,024" in said and "give the script --max_length 1024, or" in said


def test_a_length_in_a_file_of_settings_is_changed_there(tmp_path: Path) -> None:
    settings = tmp_path / "sft.yaml"
    settings.write_text("max_length: 512\n")
    trls = """
        from trl import SFTConfig, SFTTrainer, TrlParser
        (args,) = TrlParser((SFTConfig,)).parse_args_and_config()
        SFTTrainer(args=args)
    """
    (said,) = length_warnings(options(tmp_path, trls, "--config", str(settings)), 2048)
    assert f"write max_length: 2048 in {settings}, or plan again" in said
    (said,) = length_warnings(options(tmp_path, trls, "--max_length", "512"), 2048)
    assert "give the script --max_length 2048, or plan again" in said
