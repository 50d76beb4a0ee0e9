"""What a script's own code fixes, read from its source and held to a plan."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import zerokit
from tests.support.ranks import write_script
from tests.support.scripts_read import FIXED_TRAINER, NO_TRAINER, RAW, TRAINER, held, joined, options
from zerokit import cli
from zerokit.emit import plan_file
from zerokit.script.agreement import of_batch
from zerokit.script.argument_warnings import refused_bf16_of_code
from zerokit.script.arguments import ScriptOptions
from zerokit.script.code_values import code_values, decided_options, loader_batch, unlike_plan
from zerokit.script.reader import read_script
from zerokit.script.unlike_job import HeldTo

SCRIPT = """
    import argparse
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import GradientAccumulationPlugin
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=6)
    args = parser.parse_args()
    STEPS = 3
    {}
"""


@pytest.mark.parametrize(
    ("code", "steps"),
    [
        ("Accelerator(gradient_accumulation_steps=1)", 1),
        ("Accelerator(gradient_accumulation_steps=STEPS)", 3),
        ("Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4))", 4),
        ("Accelerator(deepspeed_plugin=DeepSpeedPlugin(gradient_accumulation_steps=2))", 2),
        ("Accelerator()", None),
        ("Accelerator(gradient_accumulation_steps=2 * STEPS)", None),
        ("Accelerator(gradient_accumulation_steps=args.accumulate)", None),  # a plan fills it in
        # which of them?
        ("Accelerator(gradient_accumulation_steps=2) if STEPS else Accelerator()", None),
    ],
)
def test_the_accumulation_is_what_accelerate_is_given(tmp_path: Path, code: str, steps: int | None) -> None:
    found = code_values(options(tmp_path, SCRIPT.format(code))).get("gradient_accumulation")
    assert (found.value if found is not None else None) == steps
    assert found is None or f"={steps}" in found.where


@pytest.mark.parametrize(
    ("code", "values"),
    [
        ("DeepSpeedPlugin(zero_stage=0)", {"zero_stage": 0}),
        ("DeepSpeedPlugin(zero_stage=STEPS, offload_param_device='cpu', offload_optimizer_device='none')",
         {"zero_stage": 3, "offload_param": "cpu", "offload_optimizer": "none"}),
        ("DeepSpeedPlugin(zero_stage=args.accumulate)", {}),  # a plan fills it in
        ("DeepSpeedPlugin(zero_stage=True, offload_param_device='disk')", {}),
        ("Accelerator(mixed_precision='bf16')", {"precision": "bf16"}),
        ("Accelerator(mixed_precision='no')", {"precision": "fp32"}),
        ("Accelerator(mixed_precision='fp8')", {}),
    ],
)  # fmt: skip
def test_the_rest_is_read_as_the_plan_writes_it(
    tmp_path: Path, code: str, values: dict[str, int | str]
) -> None:
    found = code_values(options(tmp_path, SCRIPT.format(code)))
    assert {name: one.value for name, one in found.items()} == values


def test_a_trainers_arguments_are_read_elsewhere(tmp_path: Path) -> None:
    text = TRAINER + "    Accelerator(gradient_accumulation_steps=2)\n"
    assert code_values(options(tmp_path, text)) == {}


def test_an_option_that_accelerate_gets_is_filled_in_from_the_plan(tmp_path: Path) -> None:
    script = SCRIPT.format("Accelerator(gradient_accumulation_steps=args.accumulate)")
    assert "--accumulate 2" in joined(options(tmp_path, script))
    assert "--accumulate" not in joined(options(tmp_path, script, "--accumulate", "5"))


CHOSEN = {
    "micro_batch": 4, "gradient_accumulation": 2, "precision": "bf16", "zero_stage": 1,
    "activation_checkpointing": "full", "deepspeed_config": {"optimizer": {"type": "AdamW"}},
}  # fmt: skip
BATCH = "loader = torch.utils.data.DataLoader(rows, batch_size=4)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SCRIPT.format(f"Accelerator(gradient_accumulation_steps=4); {BATCH}"),
         {"micro-batch": "4", "gradient-accumulation": "4"}),
        (SCRIPT.format(f"Accelerator(gradient_accumulation_steps=2); {BATCH}"), {}),
        (SCRIPT.format("DeepSpeedPlugin(zero_stage=2, offload_optimizer_device='cpu')"), {"zero": "2"}),
        (SCRIPT.format("Accelerator(mixed_precision='no')"), {"precision": "fp32"}),
        (FIXED_TRAINER, {"micro-batch": "4", "gradient-accumulation": "1", "precision": "fp32"}),
    ],
)  # fmt: skip
def test_what_differs_from_a_plan_is_said_as_its_options(
    tmp_path: Path, text: str, said: dict[str, str]
) -> None:
    assert decided_options(options(tmp_path, text), CHOSEN, on_cpu=True) == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--gradient_checkpointing False", {"checkpointing": "none"}),
        ("--gradient_checkpointing True --optim adamw_torch", {}),
        ("--optim adafactor", {"optimizer": "adafactor"}),
    ],
)
def test_for_cpu_ranks_a_trainers_checkpointing_and_optimizer_are_options_too(
    tmp_path: Path, given: str, said: dict[str, str]
) -> None:
    arguments = ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2", "--bf16", "True"]
    found = options(tmp_path, TRAINER, *arguments, *given.split())
    assert decided_options(found, CHOSEN, on_cpu=True) == said
    assert decided_options(found, CHOSEN, on_cpu=False) == {}  # a plan is made with the script


PLAN = {"zero_stage": 2, "gradient_accumulation": 2, "offload_optimizer": "none", "offload_param": "none"}
PLUGIN = "Accelerator(deepspeed_plugin=DeepSpeedPlugin({}))"
MADE_HERE = "transformers.Trainer(args=transformers.TrainingArguments('out', {})).train()"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (PLUGIN.format("zero_stage=1, gradient_accumulation_steps=1"),
         ["t.py:5: DeepSpeedPlugin(zero_stage=1), but the plan has zero_stage 2",
          "t.py:5: DeepSpeedPlugin(gradient_accumulation_steps=1), but the plan has gradient_acc"]),
        (PLUGIN.format("zero_stage=2, offload_optimizer_device='cpu'"),
         ["DeepSpeedPlugin(offload_optimizer_device='cpu'), but the plan has offload_optimizer_device none"]),
        (PLUGIN.format("zero_stage=STAGE"), ["DeepSpeedPlugin(zero_stage=3), but the plan has zero_stage 2"]),
        (PLUGIN.format("zero_stage=stage"), []),  # an argument
        ("Accelerator(mixed_precision='bf16', gradient_accumulation_steps=4)",
         ["Accelerator(mixed_precision='bf16'), but the plan has mixed_precision no",
          "Accelerator(gradient_accumulation_steps=4), but the plan has gradient"]),
        ("Accelerator(mixed_precision='no', gradient_accumulation_steps=2)", []),
        ("Accelerator(mixed_precision=args.precision)", []),
        ("Accelerator(mixed_precision='bf16') if stage else Accelerator()", []),  # only the run tells
    ],
)  # fmt: skip
def test_what_the_code_asks_for_is_held_to_the_plan(tmp_path: Path, code: str, said: list[str]) -> None:
    text = "import transformers\nfrom accelerate import Accelerator, DeepSpeedPlugin\nSTAGE = 3\n"
    facts = read_script(write_script(tmp_path, text + f"def train(stage=None):\n    {code}\n", "t.py"), None)
    found = unlike_plan(ScriptOptions.read(facts, facts.style, ()), PLAN, "fp32")
    assert len(found) == len(said), found
    assert all(part in one for part, one in zip(said, found, strict=True)), found


@pytest.mark.parametrize(
    ("arguments", "is_refused"),
    [
        ("bf16=True", True),
        ("bf16=False", False),
        ("bf16=args.bf16", False),
        ("bf16=True, use_cpu=True", False),
        ("bf16=True, use_cpu=not torch.cuda.is_available()", False),
        ("", False),
    ],
)
def test_bf16_that_the_code_fixes_is_of_code(tmp_path: Path, arguments: str, is_refused: bool) -> None:
    text = f"import transformers\n{MADE_HERE.format(arguments)}\n"
    said = refused_bf16_of_code(read_script(write_script(tmp_path, text, "t.py"), None).code_settings)
    assert (said is not None) is is_refused
    assert said is None or said.endswith(
        "TrainingArguments(bf16=True): refused on CPU ranks; add use_cpu=True beside it"
    )


ACCELERATE = """
    import argparse
    from accelerate import Accelerator
    from torch.utils.data import DataLoader
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=6)
    args = parser.parse_args()
    SIZE = 3
    train_dataloader = DataLoader({})
    accelerator = Accelerator({})
"""


def accelerate(loader: str, more: str = "", keywords: str = "") -> str:
    return ACCELERATE.format(loader, keywords) + more


@pytest.mark.parametrize(
    ("text", "arguments", "sequences"),
    [
        (accelerate("data, batch_size=2"), "", 2),
        (accelerate("data, 5, shuffle=True"), "", 5),
        (accelerate("data, batch_size=SIZE"), "", 3),
        (accelerate("data, batch_size=args.batch_size"), "", 6),
        (accelerate("data, batch_size=args.batch_size"), "--batch-size 9", 9),
        (accelerate("data, batch_size=args.batch_size"), "--batch-size {micro_batch}", None),
        (accelerate("data, batch_size=2", "    eval_dataloader = DataLoader(data, batch_size=16)\n"), "", 2),
        (
            accelerate("data, batch_size=2", "    DataLoader(data, batch_size=16)\n"),
            "",
            None,
        ),  # which of them?
        (accelerate("data, batch_size=2", "    DataLoader(data)\n"), "", None),
        (accelerate("data, batch_size=2 * SIZE"), "", None),
        (accelerate("data, batch_sampler=sampler"), "", None),
        (accelerate("data, batch_size=8", keywords="split_batches=True"), "", None),  # shared by the ranks
        (TRAINER + "    DataLoader(data, batch_size=2)\n", "", None),  # its arguments decide
        (RAW + "    DataLoader(data, batch_size=2)\n", "", 2),
        (RAW + "    DataLoader(data, batch_size=engine.train_micro_batch_size_per_gpu())\n", "", None),
        (
            RAW + "    a = parser.parse_args()\n    DataLoader(data, batch_size=a.micro_batch_size)\n",
            "",
            None,
        ),
    ],
)
def test_the_batch_is_what_the_trainings_loader_is_given(
    tmp_path: Path, text: str, arguments: str, sequences: int | None
) -> None:
    found = loader_batch(options(tmp_path, text, *arguments.split()))
    assert (found.value if found is not None else None) == sequences


def planned(micro_batch: int, *, rehearsed: bool, folder: Path | None = None) -> HeldTo:
    chosen = {"micro_batch": micro_batch, "gradient_accumulation": 1, "data_parallel": 1}
    if rehearsed:
        chosen["rehearsed"] = {"script": "train.py"}
    return held(chosen, {"gpus": "2"}, folder or Path("/tmp/zerokit-plan"))


def test_another_batch_than_the_plans_is_said_of_batch(tmp_path: Path) -> None:
    script = options(tmp_path, accelerate("data, batch_size=2"))
    assert of_batch(script, planned(2, rehearsed=False)) == []
    (said,) = of_batch(script, planned(8, rehearsed=False))
    assert "DataLoader(batch_size=2) gives each rank 2 at a time" in said
    assert "the plan has micro-batch 8" in said and "--micro-batch 2" in said
    (said,) = of_batch(script, planned(8, rehearsed=True))
    assert said.endswith("; change the script")
    for words in ((), ("--batch-size", "9")):  # its option sets it, typed or not
        by_option = options(tmp_path, accelerate("data, batch_size=args.batch_size"), *words)
        (said,) = of_batch(by_option, planned(8, rehearsed=True))
        assert said.endswith("; give --batch-size 8")
    computed = options(tmp_path, accelerate("data, batch_size=2 * SIZE"))
    assert of_batch(computed, planned(8, rehearsed=True)) == []
    (said,) = of_batch(computed, planned(8, rehearsed=False))
    assert "micro-batch 8" in said and "only the run tells" in said
    # the option is filled in from the plan
    assert of_batch(options(tmp_path, NO_TRAINER), planned(8, rehearsed=False)) == []


@pytest.mark.parametrize(
    ("asked", "loaded", "batch"),
    [
        ({"global_batch": 16}, 2, 16),
        ({"global_batch": 16}, 6, 12),  # 16 cannot be 6 on each of two GPUs
        ({"global_batch": 16, "gradient_accumulation": 1, "micro_batch": 8}, 2, 4),
        ({}, 3, None),
    ],
)
def test_the_command_that_plans_for_the_loader_works_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: dict[str, int], loaded: int, batch: int | None
) -> None:
    """Also where the plan left one of the GPUs idle, and its recipe names both."""
    folder = tmp_path / "the plan"
    plan = zerokit.plan(params="125m", gpus=2, gpu="l40s", seq_len=128, **asked)  # type: ignore[arg-type]
    plan.write(folder)
    read = plan_file.read(folder)
    script = options(tmp_path, accelerate(f"data, batch_size={loaded}"))
    (said,) = of_batch(script, held(read.chosen, read.request, read.folder))
    command = shlex.split(said[said.index("zerokit plan") :])
    assert cli.run([*command[1:], "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)["chosen"]
    assert chosen["micro_batch"] == loaded
    trained = loaded * chosen["gradient_accumulation"] * chosen["data_parallel"]
    wanted = plan.chosen.micro_batch * plan.chosen.gradient_accumulation * plan.chosen.data_parallel
    assert trained == batch if batch is not None else abs(trained - wanted) <= loaded
