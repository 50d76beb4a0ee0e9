"""A plan gives a trainer's file back with the lines that it changes, and no others."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
import yaml

import zerokit
from tests.support.trainer_files import LLAMA_FACTORY, QLORA, SWIFT, written
from zerokit.errors import InputError
from zerokit.strictload import parse_yaml
from zerokit.trainer_files.giving_back import Change, changed_text


@pytest.fixture(autouse=True)
def fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def changed(text: str, **asked: object) -> str:
    value = yaml.safe_load(text)
    changes = [Change(key=key, before=value.get(key), after=after, why="") for key, after in asked.items()]
    return changed_text(parse_yaml(text, "x.yml"), changes)


@pytest.mark.parametrize(
    ("text", "asked", "expected"),
    [
        ("a: 1  # why\nb: 2\n", {"a": 8}, "a: 8  # why\nb: 2\n"),
        ("a:\nb: 2\n", {"a": 8}, "a: 8\nb: 2\n"),
        ("a: 'x # y'  # z\n", {"a": "d/e.json"}, "a: d/e.json  # z\n"),
        ("b: 2", {"a": True}, "b: 2\na: true\n"),
        ("a:\n  x: 1\n  y: [2]\n\n# of b\nb: 2\n", {"a": None}, "\n# of b\nb: 2\n"),
        ("a:\n- x\n- y\nb: 2\n", {"a": None}, "b: 2\n"),
        ("b: 2\na:\n  x: 1\n", {"a": "f.json"}, "b: 2\na: f.json\n"),
        ('"a": 1\r\nb: 2\r\n', {"b": 3}, '"a": 1\r\nb: 3\r\n'),
    ],
)
def test_one_line_changes(text: str, asked: dict[str, object], expected: str) -> None:
    assert changed(text, **asked) == expected


def test_what_cannot_be_changed_by_lines_is_an_error() -> None:
    for text in ("{a: 1, b: 2}\n", "x: &v 1\na: *v\n", "a: >\n  folded\n  text\nb: 2\n"):
        try:
            found = changed(text, a=8)
        except InputError as error:
            assert "change it by hand" in str(error)
        else:
            assert yaml.safe_load(found) == {**yaml.safe_load(text), "a": 8}


@pytest.mark.parametrize("text", [QLORA, LLAMA_FACTORY, SWIFT], ids=["axolotl", "LLaMA-Factory", "ms-swift"])
def test_the_file_is_the_plan(text: str) -> None:
    plan = zerokit.plan(file=written(text), gpus=2, gpu="h200", out="p")
    given_back = Path(plan.files["trainer_file"]).read_text(encoding="utf-8")
    lines = [line for line in difflib.ndiff(text.splitlines(), given_back.splitlines()) if line[0] in "+-"]
    assert {line[2:].partition(":")[0] for line in lines} == {change.key for change in plan.changes}
    assert all(change.why for change in plan.changes)
    # an estimate of what was given back is the plan
    again = zerokit.estimate(file=plan.files["trainer_file"], gpus=2, gpu="h200")
    for name in ("zero_stage", "micro_batch", "gradient_accumulation", "activation_checkpointing"):
        assert getattr(again.planned, name) == getattr(plan.chosen, name), name
    assert again.planned.strategy.global_batch == plan.global_batch
    body = plan.to_dict()["trainer_file"]
    assert [change["key"] for change in body["changes"]] == [change.key for change in plan.changes]


def test_what_goes_with_checkpointing_alone_goes_with_it() -> None:
    """axolotl refuses activation_offloading without it (utils/schemas/validation.py, 0.19)."""
    path = written(f"{QLORA}activation_offloading: true\n")
    plan = zerokit.plan(file=path, gpus=1, gpu="h200", checkpointing="none", out="p")
    given_back = yaml.safe_load(Path(plan.files["trainer_file"]).read_text(encoding="utf-8"))
    assert given_back["gradient_checkpointing"] is False and "activation_offloading" not in given_back


MUON = """\
base_model: NousResearch/Llama-3.2-1B
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 1
optimizer: muon
bf16: auto
fsdp_version: 2
fsdp_config: {offload_params: false}
"""


def test_a_file_that_its_trainer_would_refuse_is_not_written() -> None:
    with pytest.raises(
        InputError, match=r"muon does not go with DeepSpeed, once the plan has changed"
    ) as caught:
        zerokit.plan(file=written(MUON), gpus=2, gpu="h200", zero=2, out="p")
    assert caught.value.exit_code == 2 and not Path("p").exists()


def test_nobodys_file_is_replaced() -> None:
    written(QLORA)
    Path("p").mkdir()
    Path("p/job.yml").write_text("mine\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"holds a job\.yml that no plan wrote"):
        zerokit.plan(file="job.yml", gpus=2, gpu="h200", out="p")
    with pytest.raises(InputError, match=r"holds a job\.yml that no plan wrote"):
        zerokit.plan(file="job.yml", gpus=2, gpu="h200", out=".")
    assert Path("p/job.yml").read_text(encoding="utf-8") == "mine\n"
    Path("p/job.yml").unlink()
    for _ in range(2):  # its own it replaces
        zerokit.plan(file="job.yml", gpus=2, gpu="h200", out="p")


TRL = """\
model_name_or_path: Qwen/Qwen2.5-1.5B
dataset_name: data
output_dir: out
max_length: 2048
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
gradient_checkpointing: false
bf16: true
dtype: bfloat16
"""


def test_what_is_as_fast_as_the_fastest_stays_as_it_is() -> None:
    job = {"gpus": 4, "gpu": "h200", "no_calibration": True}
    fastest = zerokit.plan(model="qwen2.5-1.5b", trainer="trl", seq_len=2048, global_batch=128, **job)
    plan = zerokit.plan(file=written(TRL), **job)
    assert plan.chosen.micro_batch == 8 != fastest.chosen.micro_batch
    assert [change.key for change in plan.changes] == ["deepspeed"]
    times = [one.chosen.estimate.step_seconds for one in (plan, fastest)]
    assert times[0] == pytest.approx(times[1], rel=0.02)


def test_a_file_without_an_engine_gets_none_that_would_divide_nothing() -> None:
    text = TRL.replace("Qwen/Qwen2.5-1.5B", "HuggingFaceTB/SmolLM2-135M") + "use_peft: true\n"
    path = written(text)
    plan = zerokit.plan(file=path, gpus=2, gpu="h200", out="p")
    assert plan.chosen.engine == "ddp"
    assert "deepspeed" not in {change.key for change in plan.changes}
    assert "deepspeed" not in yaml.safe_load(Path(plan.files["trainer_file"]).read_text(encoding="utf-8"))
    words = f"trl sft --config {plan.files['trainer_file']}"
    assert plan.run_command("p", plan.launched_words) == f"zerokit launch --no-plan --gpus 2 {words}"
    nodes = zerokit.plan(file=path, gpus=16, nodes=2, gpu="h200", out="q")
    there = f"--hostfile hosts {words.replace('p/', 'q/', 1)}"
    assert nodes.run_command("q", nodes.launched_words) == f"zerokit launch --no-plan {there}"
    asked = zerokit.plan(file=path, gpus=2, gpu="h200", engine="deepspeed")
    assert asked.chosen.zero_stage == 0
    assert "deepspeed" in {change.key for change in asked.changes}


@pytest.mark.parametrize(
    ("engine", "own"),
    [("fsdp2", "fsdp: full_shard\nfsdp_config: {version: 2}\n"), ("ddp", "deepspeed: zero.json\n")],
)
def test_an_engine_that_the_plan_does_not_bring_is_taken_out(engine: str, own: str) -> None:
    Path("zero.json").write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}')
    plan = zerokit.plan(file=written(TRL + own), gpus=2, gpu="h200", engine=engine, out="p")
    given_back = yaml.safe_load(Path(plan.files["trainer_file"]).read_text(encoding="utf-8"))
    assert plan.chosen.engine == engine
    # a Trainer's own goes before what a launch gives it
    assert not given_back.keys() & {"deepspeed", "fsdp", "fsdp_config"}


def test_a_shell_scripts_command_is_told_with_the_changes() -> None:
    Path("train.sh").write_text(
        "CUDA_VISIBLE_DEVICES=0,1 trl sft --model_name_or_path Qwen/Qwen2.5-1.5B --dataset-name data "
        "--gradient-checkpointing true --max_length 2048 --per_device_train_batch_size=8 --deepspeed z.json\n"
    )
    plan = zerokit.plan(file="train.sh", gpus=2, gpu="h200", engine="ddp", out="p")
    command = plan.run_command("p", plan.launched_words)
    begin = "zerokit launch --no-plan --gpus 2 trl sft --model_name_or_path Qwen/Qwen2.5-1.5B"
    assert command.startswith(f"{begin} --dataset-name data --max_length 2048")
    assert "--gradient_checkpointing false" in command and "deepspeed" not in command


@pytest.mark.parametrize(
    ("own", "engine"), [("fsdp: full_shard\nfsdp_config: {version: 2}\n", "fsdp2"), ("", "deepspeed")]
)
def test_the_files_own_engine_stays_where_it_is_as_fast(own: str, engine: str) -> None:
    text = TRL.replace("Qwen/Qwen2.5-1.5B", "meta-llama/Llama-3.1-8B").replace("size: 8", "size: 1")
    plan = zerokit.plan(file=written(text + own), gpus=8, gpu="h100-sxm-80gb", no_calibration=True)
    assert plan.chosen.engine == engine
