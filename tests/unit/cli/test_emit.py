"""``zerokit emit``, and the files that ``zerokit plan`` writes for each consumer."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
import yaml

from tests.support.command import call, move_elsewhere
from tests.support.packages import needs
from zerokit.cli import run
from zerokit.emit import plan_file
from zerokit.emit.files import DEEPSPEED_NAMES
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.files import check_files
from zerokit.script.reader import STYLE_WORDS

REQUESTS = {
    "stage 1": ("--params", "8b", "--gpus", "8", "--gpu", "h100-sxm-80gb"),
    "offload": ("--params", "13b", "--gpus", "2", "--gpu", "a100-40gb"),
    "nodes": ("--params", "70b", "--gpus", "32", "--nodes", "4", "--gpu", "h100-sxm-80gb", "--zero", "3"),
    "tensor": ("--params", "8b", "--gpus", "8", "--gpu", "h100-sxm-80gb", "--tp", "2"),
    "sequence": ("--params", "8b", "--gpus", "8", "--gpu", "h100-sxm-80gb", "--sp", "4"),
    "fp16": ("--params", "1b", "--gpus", "2", "--gpu", "t4", "--precision", "fp16"),
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


def emit(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return call(capsys, "emit", *arguments)


def make_plan(capsys: pytest.CaptureFixture[str], request: str = "nodes") -> None:
    assert run(["plan", *REQUESTS[request]]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_file_for_every_consumer_and_emit_gives_them_again(
    request_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_plan(capsys, request_)
    folder = Path("zerokit-plan")
    for variant, name in DEEPSPEED_NAMES.items():
        code, out, err = emit(capsys, "deepspeed", "--variant", variant)
        assert code == 0, err
        assert out == (folder / name).read_text()
    # Accelerate refuses an optimizer in the file beside the script's own
    assert "optimizer" not in json.loads((folder / DEEPSPEED_NAMES["accelerate"]).read_text())
    assert json.loads((folder / DEEPSPEED_NAMES["trainer"]).read_text())["gradient_clipping"] == "auto"
    accelerate = yaml.safe_load((folder / "accelerate.yaml").read_text())
    # whole, so that it is found from any folder
    named = accelerate["deepspeed_config"]["deepspeed_config_file"]
    assert named == str(Path("zerokit-plan/ds_config.accelerate.json").absolute())
    assert ("parallelism_config" in accelerate) == (request_ == "sequence")
    assert emit(capsys, "accelerate")[1] == (folder / "accelerate.yaml").read_text()
    plan = plan_file.read(folder)
    assert {"--per_device_train_batch_size", "--gradient_accumulation_steps"} <= set(plan.trainer_arguments)
    for file in check_files([str(path) for path in folder.iterdir()], Context(world_size=plan.world_size)):
        assert not [finding for finding in file.findings if finding.severity != "note"], file


def test_the_plugins_keys(capsys: pytest.CaptureFixture[str]) -> None:
    make_plan(capsys)
    code, out, _ = emit(capsys, "accelerate", "--form", "plugin", "--out", "conf/plugin.yaml")
    assert (code, out) == (0, "")
    text = Path("conf/plugin.yaml").read_text()
    body = yaml.safe_load(text)
    assert body["deepspeed_config"]["zero_stage"] == 3 and "deepspeed_config_file" not in text
    assert (body["num_machines"], body["num_processes"], body["mixed_precision"]) == (4, 32, "bf16")
    assert "batch_size of the script's DataLoader" in text
    assert emit(capsys, "accelerate", "--form", "plugin", "--deepspeed", "x")[0] == 2


RAW = "import argparse, deepspeed\nparser = argparse.ArgumentParser()\n"
SCRIPTS = {
    "raw": RAW + "deepspeed.add_config_arguments(parser)\ndeepspeed.initialize(args=parser.parse_args())\n",
    "trainer": "from transformers import Trainer\nTrainer().train()\n",
    "accelerate": "from accelerate import Accelerator\nAccelerator()\n",
    "none": "print(1)\n",
}


@pytest.mark.parametrize("style", SCRIPTS)
def test_sbatch_gives_the_script_its_configuration(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_plan(capsys)
    Path("train.py").write_text(SCRIPTS[style])
    code, out, err = emit(capsys, "sbatch", "--time", "1:00:00", "--env", "A=b c", "train.py", "--lr", "1")
    if style == "none":
        assert code == 2 and "--style" in err
        return
    assert code == 0 and f"taken as {STYLE_WORDS[style]}" in err
    assert "#SBATCH --nodes=4\n" in out and "export A='b c'\n" in out and "PYTORCH_CUDA_ALLOC_CONF" in out
    last = out.splitlines()[-1].strip()
    if style == "raw":
        assert last == "train.py --lr 1 --deepspeed --deepspeed_config zerokit-plan/ds_config.json"
        assert "ACCELERATE" not in out
    else:
        assert last == "train.py --lr 1"
        assert f"ACCELERATE_DEEPSPEED_CONFIG_FILE=zerokit-plan/{DEEPSPEED_NAMES[style]}\n" in out
    assert ("--per_device_train_batch_size" in err) == (style == "trainer")


PARSES = (
    "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
    "args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\nTrainer(args=args).train()\n"
)


@pytest.mark.parametrize("kind", [("sbatch",), ("kubernetes", "--image", "r/i:1")])
def test_a_job_of_a_trainer_carries_the_plans_arguments(
    kind: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    make_plan(capsys)
    chosen = plan_file.read("zerokit-plan").chosen
    Path("train.py").write_text(PARSES)
    planned = {
        "--per_device_train_batch_size": str(chosen["micro_batch"]),
        "--gradient_accumulation_steps": str(chosen["gradient_accumulation"]),
        "--gradient_checkpointing": str(chosen["activation_checkpointing"] == "full"),
        "--bf16": "True",
    }
    # what Transformers' own defaults are already need not be told (8 sequences, 1 step, neither flag)
    defaults = {"--gradient_accumulation_steps": "1", "--gradient_checkpointing": "False"}
    told = {name: value for name, value in planned.items() if defaults.get(name) != value}

    def words(*arguments: str) -> list[str]:
        code, out, err = emit(capsys, *kind, *arguments)
        assert code == 0, err
        if kind[0] == "sbatch":
            return out.splitlines()[-1].split()
        command = list(yaml.safe_load_all(out))[-1]["spec"]["template"]["spec"]["containers"][0]["command"]
        return [str(word) for word in command]

    line = words("train.py", "--lr", "1")
    assert dict(itertools.pairwise(line)).items() >= told.items()
    assert line.index("--lr") == line.index("train.py") + 1
    assert words("--no-arguments", "--accept-mismatch", "train.py", "--lr", "1")[-2:] == ["--lr", "1"]
    other = str(chosen["micro_batch"] + 1)
    mismatch = ("train.py", "--per_device_train_batch_size", other)
    code, out, err = emit(capsys, *kind, *mismatch)
    assert (code, out) == (2, "")
    assert f"--per_device_train_batch_size {other}, but the plan has" in err and "--accept-mismatch" in err
    assert words("--accept-mismatch", *mismatch).count("--per_device_train_batch_size") == 1


@pytest.mark.parametrize("kind", [("sbatch",), ("kubernetes", "--image", "r/i:1")])
def test_a_job_is_held_to_its_plan_as_a_launch_is(
    kind: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Another model and length, a script that does not train, and a plan that was not rehearsed with it."""
    assert run(["plan", "--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "h200"]) == 0
    needs("deepspeed")
    Path("train.py").write_text(
        "import argparse, deepspeed\np = argparse.ArgumentParser()\ndeepspeed.add_config_arguments(p)\n"
        "p.add_argument('--model_name_or_path')\np.add_argument('--max_seq_length', type=int, default=77)\n"
        "p.parse_args()\ndeepspeed.initialize()\n"
    )
    script = ("train.py", "--model_name_or_path", "qwen2.5-0.5b")
    capsys.readouterr()
    code, _, said = emit(capsys, *kind, *script)
    assert code == 0
    assert run(["launch", "--dry-run", "--device", "cuda", *script]) == 0
    of_launch = capsys.readouterr().err
    for words in ("another model than the plan's llama-3.1-8b", "sequence length 77, but the plan has",
                  "the plan was not rehearsed with this script"):  # fmt: skip
        assert words in " ".join(said.split()) and words in " ".join(of_launch.split())
    Path("train.py").write_text(PARSES.replace("Trainer(args", "args.do_train and Trainer(args"))
    assert "no training step will be seen" in emit(capsys, *kind, "train.py")[2]


def test_nothing_is_said_of_a_script_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    make_plan(capsys)
    code, _, said = emit(capsys, "sbatch", "--style", "raw", "absent.py")
    assert code == 0 and "checkpointing" not in said and "rehearsed" not in said


def test_sequence_parallel_reaches_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    make_plan(capsys, "sequence")
    code, out, _ = emit(capsys, "sbatch", "--style", "trainer", "elsewhere.py")
    assert code == 0 and "export PARALLELISM_CONFIG_SP_SIZE=4\n" in out


def test_kubernetes_holds_the_variant_of_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    make_plan(capsys)
    for style in ("raw", "trainer"):
        code, out, _ = emit(capsys, "kubernetes", "--image", "r/i:1", "--style", style, "/app/train.py", "-x")
        assert code == 0
        config_map, _, job = yaml.safe_load_all(out)
        held = json.loads(config_map["data"]["ds_config.json"])
        assert held == json.loads(Path("zerokit-plan", DEEPSPEED_NAMES[style]).read_text())
        container = job["spec"]["template"]["spec"]["containers"][0]
        assert (job["spec"]["completions"], container["image"]) == (4, "r/i:1")
        named = "--deepspeed_config" in container["command"]
        assert named == (style == "raw")
        names = {variable["name"] for variable in container["env"]}
        assert ("ACCELERATE_DEEPSPEED_CONFIG_FILE" in names) == (style == "trainer")
    assert emit(capsys, "kubernetes", "train.py")[0] == 2  # no image


def test_out_is_written_through_a_link_and_never_replaces_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    make_plan(capsys)
    text = emit(capsys, "accelerate")[1]
    Path("link").symlink_to("file")
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for out in ("link", "pipe"):
            assert emit(capsys, "accelerate", "--out", out)[0] == 0
        assert os.read(reader, 1 << 16).decode() == text
    finally:
        os.close(reader)
    assert Path("pipe").is_fifo() and Path("link").is_symlink() and Path("file").read_text() == text


def test_a_pipeline_is_for_raw_scripts_alone(capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = ("--params", "8b", "--gpus", "8", "--gpu", "h200", "--pipeline-module", "--pp", "4")
    assert run(["plan", *pipeline]) == 0
    capsys.readouterr()
    assert {path.name for path in Path("zerokit-plan").iterdir()} == {"ds_config.json", "plan.yaml"}
    assert emit(capsys, "sbatch", "--style", "raw", "t.py")[0] == 0
    for arguments in (("sbatch", "--style", "trainer", "t.py"), ("accelerate",)):
        code, _, err = emit(capsys, *arguments)
        assert code == 2 and "PipelineModule" in err


def test_a_plan_for_cpu_ranks_has_no_job_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--params", "20m", "--gpus", "2", "--device", "cpu", "--seq-len", "64"]) == 0
    capsys.readouterr()
    code, _, err = emit(capsys, "sbatch", "--style", "raw", "t.py")
    assert code == 2 and "CPU ranks" in err


def test_a_dry_run_on_one_machine_says_that_the_plan_is_for_several(
    capsys: pytest.CaptureFixture[str],
) -> None:
    needs("deepspeed")
    make_plan(capsys)
    Path("train.py").write_text("import deepspeed\ndeepspeed.initialize()\n")
    assert run(["launch", "--dry-run", "--device", "cuda", "train.py"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "warning: the plan is for 4 nodes × 8 GPUs, and this launch starts 32 ranks on one machine" in said
