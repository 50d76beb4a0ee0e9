"""A norm or an accumulation in a script's code, beside the file that counts in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit.linter.files import check_files

CALL = "clip_grad_norm_(model.parameters(), {})\n"
RAW = "deepspeed.initialize(model)\ntorch.nn.utils." + CALL
ACCELERATE = "accelerator = Accelerator()\naccelerator." + CALL
OPTION = "parser.add_argument('--norm', type=float, default=0.01)\n" + ACCELERATE.format("args.norm")


@pytest.mark.parametrize(
    ("script", "stage", "clipping", "is_found"),
    [
        (RAW.format(0.5), 2, {}, True),  # DeepSpeed's own 1.0 counts
        (RAW.format(1.0), 2, {}, False),
        (RAW.format(0.5), 2, {"gradient_clipping": 0.5}, False),
        (RAW.format(0.5), 0, {"gradient_clipping": 1.0}, False),  # gradients are whole
        (RAW.format("norm"), 2, {"gradient_clipping": 1.0}, False),  # nobody knows before the run
        (RAW.format("float('inf')"), 2, {}, False),
        (ACCELERATE.format(0.5), 0, {"gradient_clipping": 1.0}, True),
        (OPTION, 2, {"gradient_clipping": "auto"}, True),
        ("NORM = 0.3\n" + ACCELERATE.format("NORM"), 2, {}, True),
        ("NORM = 0.3\nNORM = 0.5\n" + ACCELERATE.format("NORM"), 2, {}, False),  # which one counts?
        ("def train(norm):\n    pass\nnorm = 0.3\n" + ACCELERATE.format("norm"), 2, {}, False),
        ("class C:\n    norm: float = field(default=0.3)\n" + ACCELERATE.format("C().norm"), 2, {}, True),
        ("given = {'norm': 0.3}\n" + ACCELERATE.format("float(given['norm'])"), 2, {}, True),
        (OPTION.replace("args.norm)", "norm)") + "norm = args.norm\n", 2, {}, True),
        ("trainer = Trainer()\n" + CALL.format(0.5), 2, {}, False),
    ],
)
def test_a_norm_in_code_is_held_to_the_file(
    script: str, stage: int, clipping: dict[str, object], is_found: bool, tmp_path: Path
) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, **clipping}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    (tmp_path / "train.py").write_text(script)
    (file,) = check_files([str(path)])
    found = [finding for finding in file.findings if finding.rule == "clipping-in-code"]
    assert len(found) == int(is_found)
    assert all("train.py:" in one.message and "gradient_clipping" in one.fix for one in found)


def test_a_script_that_names_another_file_is_not_held_to_this_one(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(
            json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}})
        )
    (tmp_path / "train.py").write_text("config = 'a.json'\n" + RAW.format(0.5))
    files = check_files([str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    found = [[one for one in file.findings if one.rule == "clipping-in-code"] for file in files]
    assert [len(one) for one in found] == [1, 0]


@pytest.mark.parametrize(("line", "clips"), [("", 1), ("  gradient_clipping: 1.0\n", 1)])
def test_so_is_it_to_accelerates_yaml(line: str, clips: float, tmp_path: Path) -> None:
    path = tmp_path / "zero2.yaml"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\n"
        f"num_processes: 4\ndeepspeed_config:\n  zero_stage: 2\n{line}"
    )
    (tmp_path / "train.py").write_text(OPTION)
    (file,) = check_files([str(path)])
    (found,) = [finding for finding in file.findings if finding.rule == "clipping-in-code"]
    assert f"clips at {clips}" in found.message and "0.01" in found.fix


@pytest.mark.parametrize(
    ("call", "is_found"),
    [
        ("Accelerator(gradient_accumulation_steps=4)", True),
        ("Accelerator(gradient_accumulation_steps=1)", False),
        ("Accelerator(gradient_accumulation_steps=2)", False),
        ("Accelerator(gradient_accumulation_steps=args.steps)", True),
        ("Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4))", True),
        ("Accelerator(gradient_accumulation_steps=int(sys.argv[1]))", False),
    ],
)
@pytest.mark.parametrize("name", ["ds.json", "zero2.yaml"])
def test_so_is_an_accumulation(call: str, is_found: bool, name: str, tmp_path: Path) -> None:
    text = {
        "ds.json": '{"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 2}',
        "zero2.yaml": "distributed_type: DEEPSPEED\nnum_processes: 4\n"
        "deepspeed_config:\n  zero_stage: 2\n  gradient_accumulation_steps: 2\n",
    }
    (tmp_path / name).write_text(text[name])
    option = "parser.add_argument('--steps', type=int, default=4)\n"
    (tmp_path / "train.py").write_text(f"{option}accelerator = {call}\n")
    (file,) = check_files([str(tmp_path / name)])
    found = [finding for finding in file.findings if finding.rule == "accumulation-in-code"]
    assert len(found) == int(is_found)
    assert all("train.py:2" in one.message and "give the code 2" in one.fix for one in found)
