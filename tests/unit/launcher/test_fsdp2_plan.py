"""A plan for FSDP2 is launched through Accelerate, with its file, or is refused with the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.fsdp2_plans import write_fsdp2_plan
from zerokit.errors import InputError
from zerokit.launcher import fsdp2_plan
from zerokit.launcher.attempts import dry_run
from zerokit.launcher.given_plan import read_plan_file
from zerokit.launcher.job_files import JobScript, kubernetes_manifest, sbatch_script
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Devices, Placement, threads_of_rank
from zerokit.launcher.rank_start import cores_per_rank
from zerokit.notes import with_level
from zerokit.script.entry_points import Target
from zerokit.strictload import load_yaml

ACCELERATE = "from accelerate import Accelerator\naccelerator = Accelerator()\naccelerator.prepare(1)\n"
RAW = "import deepspeed\ndeepspeed.initialize()\n"
TRAINER = (
    "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
    "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    "Trainer(args=args).train()\n"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_fsdp2_plan(Path("plan"))
    return tmp_path


def started(source: str, *arguments: str, **options: Any) -> tuple[tuple[str, ...], str]:
    """The command of a dry run on CPU ranks, and what was said."""
    Path("train.py").write_text(source)
    target, said = Target(script="train.py", module=None, arguments=arguments), []
    asked = LaunchOptions(target=target, plan="plan", device="cpu", **options)
    argv = dry_run(asked, said.append).argv
    return argv, "\n".join(map(str, said))


def test_accelerate_starts_it_whichever_engine_is_installed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "zerokit.launcher.preflight.installed", lambda name: {"deepspeed": None}.get(name, "2")
    )
    argv, said = started(ACCELERATE)
    assert "launch" in argv and "--num_processes=2" in argv
    assert any(word.startswith("--config_file=") and word.endswith("/accelerate.yaml") for word in argv)
    assert "Accelerate divides nothing on CPU ranks" in said and "DeepSpeed" not in said


def test_a_trainer_gets_the_batch_and_the_precision(here: Path) -> None:
    argv, _ = started(TRAINER, "--output_dir", "out")
    added = " ".join(argv).partition("--output_dir out ")[2]
    assert added == "--per_device_train_batch_size 2 --bf16 True --use_cpu True"


@pytest.mark.parametrize(
    ("source", "arguments", "options", "said"),
    [
        (ACCELERATE, (), {"launcher": "torchrun"}, "a plan for FSDP2 is started by accelerate"),
        (RAW, (), {}, "the script calls DeepSpeed itself: divide the model with shard"),
        (TRAINER, ("--deepspeed", "x.json"), {}, "x.json: the script would train under DeepSpeed"),
        (TRAINER, ("--fsdp", "full_shard"), {}, "the Trainer's own FSDP goes before the plan's"),
        (TRAINER, ("--gradient_checkpointing", "True"), {}, "but the plan has gradient_checkpointing False"),
    ],
)  # fmt: skip
def test_what_fsdp2_cannot_reach_is_refused(
    here: Path, source: str, arguments: tuple[str, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        started(source, *arguments, **options)
    assert said in str(refused.value)


def test_a_loop_of_ones_own_is_told_what_divides_it(here: Path) -> None:
    _, said = started("import torch\n")
    assert (
        "ends with exit code 9 if it does not divide its model itself; shard() of plan/fully_shard.py" in said
    )


def test_a_plan_for_nodes_names_what_starts_it(here: Path) -> None:
    write_fsdp2_plan(Path("plan"), ranks=4, nodes=2)
    _, said = started(ACCELERATE)
    assert "on one machine: `zerokit emit sbatch` shows the job" in said and "hostfile" not in said


def test_the_file_is_the_plans_with_what_its_user_changed(here: Path) -> None:
    plan = read_plan_file("plan", engines=("fsdp2",))
    written = load_yaml(Path("plan/accelerate.yaml")).value
    assert fsdp2_plan.accelerate_file(plan, 2) == (written, ())
    assert fsdp2_plan.accelerate_file(plan, 4)[0] == {**written, "num_processes": 4}
    written["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"] = "LlamaDecoderLayer"
    Path("plan/accelerate.yaml").write_text(json.dumps({**written, "main_process_ip": "10.0.0.1"}))
    file, notes = fsdp2_plan.accelerate_file(plan, 2)
    assert file == written
    (note,) = notes
    assert with_level(note) == (
        "warning: plan/accelerate.yaml: fsdp_config changed since the plan was made; the run has it so"
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"fsdp_config": 7}, "fsdp_config is 7: it must be a mapping"),
        ({"parallelism_config": {"parallelism_config_dp_shard_size": 3}}, "the sizes multiply to 3"),
        ({"mixed_precision": "half"}, "mixed_precision is 'half'"),
    ],
)
def test_errors_in_the_users_file_stop_the_launch_and_the_job(
    here: Path, changed: dict[str, Any], said: str
) -> None:
    written = load_yaml(Path("plan/accelerate.yaml")).value
    Path("plan/accelerate.yaml").write_text(yaml.safe_dump({**written, **changed}))
    with pytest.raises(InputError, match=said):
        started(ACCELERATE)
    with pytest.raises(InputError, match=said):
        job = JobScript(command="emit sbatch", folder="plan", script=["train.py"])
        sbatch_script(job, job_name="zerokit", time_limit=None, say=print)


def test_an_optimizer_on_the_host_gets_its_cores(tmp_path: Path) -> None:
    devices, cores = Devices(kind="cuda", ranks=2, gpu_indexes=(0, 1), why=""), []
    for name in ("kept", "moved"):
        plan = read_plan_file(
            str(write_fsdp2_plan(tmp_path / name, offload=name == "moved")), engines=("fsdp2",)
        )
        offload = fsdp2_plan.offload(fsdp2_plan.accelerate_file(plan, 2)[0])
        cores.append(threads_of_rank(offload, Placement(devices=devices, port=1), {}).variables)
    assert cores == [{}, {"OMP_NUM_THREADS": str(cores_per_rank(2))}]


def test_groups_of_ranks_need_as_many_ranks(tmp_path: Path) -> None:
    plan = read_plan_file(str(write_fsdp2_plan(tmp_path, ranks=4, replicas=2)), engines=("fsdp2",))
    assert fsdp2_plan.accelerate_file(plan, 4)[0]["parallelism_config"]
    with pytest.raises(InputError, match="of 4 ranks, and this run has 2: plan again"):
        fsdp2_plan.accelerate_file(plan, 2)


def test_other_commands_say_what_takes_such_a_plan(here: Path) -> None:
    with pytest.raises(InputError, match=r"a plan for FSDP2: .* and `convert` take it"):
        read_plan_file("plan")


@pytest.mark.parametrize("source", [ACCELERATE, TRAINER])
def test_a_job_starts_it_with_accelerate_on_every_node(here: Path, source: str) -> None:
    write_fsdp2_plan(Path("plan"), ranks=16, nodes=2, replicas=2)
    Path("train.py").write_text(source)
    job, said = JobScript(command="emit sbatch", folder="plan", script=["train.py"]), list[str]()
    text = sbatch_script(job, job_name="zerokit", time_limit=None, say=said.append)
    assert "--config_file plan/accelerate.yaml" in text and "torchrun" not in text
    assert "DEEPSPEED" not in text
    for words in ("--num_machines 2", "--num_processes 16", '--machine_rank "$SLURM_NODEID"'):
        assert words in text
    added = "--per_device_train_batch_size 2 --bf16 True" if source == TRAINER else ""
    assert text.rstrip().endswith(f"train.py {added}".rstrip())
    manifest = kubernetes_manifest(job, image="i", name="z", gpu_resource="g/pu", say=said.append)
    config, _, pods = yaml.safe_load_all(manifest)
    body = json.loads(config["data"]["accelerate.yaml"])
    assert (body["num_machines"], body["num_processes"]) == (2, 16)
    assert body["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 8,
    }  # fmt: skip
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    assert "accelerate launch --config_file /etc/zerokit/accelerate.yaml" in container["command"][2]


def test_a_job_of_a_script_that_calls_deepspeed_is_refused(here: Path) -> None:
    Path("train.py").write_text(RAW)
    job = JobScript(command="emit sbatch", folder="plan", script=["train.py"], style="raw")
    with pytest.raises(InputError, match="the script calls DeepSpeed itself"):
        sbatch_script(job, job_name="zerokit", time_limit=None, say=print)
