"""The launcher's command line and environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zerokit.catalog import gpus
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, ZeroSettings
from zerokit.domain.hardware import Cluster
from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError, NodeUnusable
from zerokit.launcher import command as commands
from zerokit.launcher import rank_start
from zerokit.launcher.backends import BOOTSTRAP
from zerokit.launcher.command import bootstrap_argv
from zerokit.launcher.nodes.cluster import Host, slurm_job
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Devices, Placement
from zerokit.planner.documents import environment
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.script.reader import ScriptFacts

GPUS = Devices(kind="cuda", ranks=2, gpu_indexes=(1, 3), why="")
CPUS = Devices(kind="cpu", ranks=2, gpu_indexes=(), why="")
CONFIG = Path("/run/ds_config.json")


def build(tmp_path: Path, base: Any = None, **changed: Any) -> commands.LaunchCommand:
    """The command; ``changed`` goes to whichever of options, placement and setup has a field of that name."""
    options = {"target": Target(script="train.py", module=None, arguments=("--lr", "1"))}
    placement = {"devices": GPUS, "port": 25000}
    script = {"style": "none", "facts": ScriptFacts(path=Path("train.py"))}
    script |= {name: changed.pop(name) for name in script.keys() & changed.keys()}
    arguments = changed.get("target", options["target"]).arguments
    setup = {"script": ScriptOptions.read(arguments=arguments, **script), "config": CONFIG}
    parts = ((LaunchOptions, options), (Placement, placement), (commands.ScriptSetup, setup))
    for kind, values in parts:
        values.update({name: value for name, value in changed.items() if name in kind.__dataclass_fields__})
    built = [kind(**values) for kind, values in parts]
    return commands.build(*built, run_dir=tmp_path, base=base or {})


def test_gpus_are_given_by_index(tmp_path: Path) -> None:
    base = {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-3"}
    built = build(tmp_path, base=base)
    assert "--include=localhost:1,3" in built.argv and "--master_port=25000" in built.argv
    environment = built.environment(base)
    assert "CUDA_VISIBLE_DEVICES" not in environment  # deepspeed would crash on the UUIDs
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("listed", "given"),
    [
        ("7.5 8.0 9.0a 10.0 12.0+PTX", "7.5;8.0;9.0;10.0;12.0+PTX"),  # as on images made for several GPUs
        ("9.0a+PTX", "9.0+PTX"),
        ("Hopper", ""),  # DeepSpeed then asks the GPUs
        ("9.0;10.0", None),
        ("", None),
    ],
)
def test_architectures_that_deepspeed_cannot_read_are_numbers(
    tmp_path: Path, listed: str, given: str | None
) -> None:
    base = {"TORCH_CUDA_ARCH_LIST": listed}
    assert build(tmp_path, base=base, style="raw").set_variables.get("TORCH_CUDA_ARCH_LIST") == given
    assert "TORCH_CUDA_ARCH_LIST" not in build(tmp_path, base=base, style="none").set_variables
    assert "TORCH_CUDA_ARCH_LIST" not in build(tmp_path, base=base, style="raw", devices=CPUS).set_variables


def test_threads_reach_the_ranks_where_they_were_decided(tmp_path: Path) -> None:
    assert (
        build(tmp_path, thread_variables={"OMP_NUM_THREADS": "8"}).environment({})["OMP_NUM_THREADS"] == "8"
    )
    assert "OMP_NUM_THREADS" not in build(tmp_path).environment({})


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_other_launchers_get_them_by_the_environment(tmp_path: Path, launcher: str) -> None:
    base = {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-3"}
    assert build(tmp_path, launcher=launcher, base=base).environment(base)["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_cpu_ranks(tmp_path: Path) -> None:
    environment = build(tmp_path, devices=CPUS).environment({})
    assert environment["DS_ACCELERATOR"] == "cpu" and environment["CUDA_VISIBLE_DEVICES"] == ""
    assert int(environment["OMP_NUM_THREADS"]) >= 1
    assert build(tmp_path, devices=CPUS, base={"OMP_NUM_THREADS": "7"}).environment({"OMP_NUM_THREADS": "7"})[
        "OMP_NUM_THREADS"
    ] == "7"  # fmt: skip
    assert not any("ALLOC_CONF" in name for name in environment)


def test_accelerate_is_told_of_cpu_ranks_that_no_deepspeed_joins(tmp_path: Path) -> None:
    """Or it runs the script once in each rank, alone, and that looks well."""
    base = {"ACCELERATE_USE_CPU": "false"}

    def told(**changed: Any) -> bool:
        parts = {"devices": CPUS, "style": "accelerate", "config": None, **changed}
        return build(tmp_path, base=base, **parts).environment(base).get("ACCELERATE_USE_CPU") == "true"

    assert told() and told(style="trainer")
    assert not told(config=CONFIG) and not told(devices=GPUS) and not told(style="none")
    words = ("--deepspeed", "ds.json")
    assert not told(target=Target(script="train.py", module=None, arguments=words), style="trainer")
    plugin = ScriptFacts(path=Path("train.py"), mentions={"Accelerator", "DeepSpeedPlugin"})
    assert not told(facts=plugin)


def test_an_outer_launchers_variables_are_taken_away(tmp_path: Path) -> None:
    base = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "x", "TORCHELASTIC_RUN_ID": "1", "PATH": "/bin",
            "ACCELERATE_USE_FSDP": "true", "HF_TOKEN": "hf_x"}  # fmt: skip
    assert set(build(tmp_path, base=base).environment(base)) & set(base) == {"PATH", "HF_TOKEN"}


def test_degrees_that_no_deepspeed_json_can_say_reach_the_ranks(tmp_path: Path) -> None:
    settings = DeepSpeedSettings(zero=ZeroSettings(stage=1))
    cluster = Cluster(gpu=gpus.lookup("h200"), gpus=8)
    for degrees in ({"sequence_parallel": 4}, {"pipeline_parallel": 4}):
        planned = environment(cluster, Strategy(settings=settings, data_parallel=2, **degrees), "sdpa")
        base = {"PARALLELISM_CONFIG_SP_SIZE": "8", "ACCELERATE_USE_PARALLELISM_CONFIG": "false"}
        built = build(tmp_path, plan_environment=planned, base=base).environment(base)
        assert planned.items() <= built.items()
        assert ("PARALLELISM_CONFIG_SP_SIZE" in built) == ("sequence_parallel" in degrees)


def test_accelerate_and_trainer_take_it_from_the_environment(tmp_path: Path) -> None:
    for style in ("accelerate", "trainer"):
        setting = build(tmp_path, style=style).set_variables
        assert setting["ACCELERATE_USE_DEEPSPEED"] == "true"
        assert setting["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == str(CONFIG)
    assert "ACCELERATE_USE_DEEPSPEED" not in build(tmp_path, style="raw").set_variables
    assert "ACCELERATE_USE_DEEPSPEED" not in build(tmp_path, style="trainer", config=None).set_variables


def test_the_allocator_is_the_plans_unless_the_users(tmp_path: Path) -> None:
    planned = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
    setting = build(tmp_path, plan_environment=planned).set_variables
    assert setting["PYTORCH_ALLOC_CONF"] == setting["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:False"
    assert build(tmp_path).set_variables["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        base = {name: "max_split_size_mb:64"}
        assert build(tmp_path, base=base, plan_environment=planned).environment(base) | base == build(
            tmp_path, base=base
        ).environment(base)
        assert "expandable" not in str(build(tmp_path, base=base).set_variables)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "PYTHONPATH", "HF_TOKEN", "NCCL_X\n", "cuda_x"])
def test_a_plan_may_not_set_everything(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="may not set"):
        build(tmp_path, plan_environment={name: "1"})


def test_a_plan_sets_what_the_user_has_not(tmp_path: Path) -> None:
    planned = {"NCCL_NVLS_ENABLE": 0, "OMP_NUM_THREADS": "3"}
    base = {"OMP_NUM_THREADS": "5"}
    environment = build(tmp_path, base=base, plan_environment=planned).environment(base)
    assert environment["NCCL_NVLS_ENABLE"] == "0" and environment["OMP_NUM_THREADS"] == "5"


def test_our_options_go_before_a_double_dash() -> None:
    target = Target(script="t.py", module=None, arguments=("a", "--", "b"))
    assert bootstrap_argv(target, ["--x"])[1:] == ["--", "--", "t.py", "a", "--x", "--", "b"]
    module = Target(script=None, module="p.t", arguments=("a",))
    assert bootstrap_argv(module, ["--x"])[1:] == ["--", "--", "-m", "p.t", "a", "--x"]


def test_local_rank_only_for_scripts_that_take_it(tmp_path: Path) -> None:
    assert "--no_local_rank" in build(tmp_path).argv
    facts = ScriptFacts(path=Path("t.py"), options={"--local_rank"})
    assert "--no_local_rank" not in build(tmp_path, facts=facts).argv


def test_other_machines(tmp_path: Path) -> None:
    hosts = [Host(name="a", slots=2, line=1), Host(name="b", slots=2, line=2)]
    built = build(tmp_path, hosts=hosts, hostfile="/hosts", base={"HF_TOKEN": "hf_secret_value"})
    assert "--hostfile=/hosts" in built.argv and "--num_nodes=2" in built.argv
    lines = built.files["deepspeed_env"].splitlines()
    arguments, environment = rank_start.unpack(built.argv[-1])
    assert arguments == ["--", "--", "train.py", "--lr", "1"] and environment["ZEROKIT_RUN_DIR"] == str(
        tmp_path
    )
    assert "hf_secret_value" not in "".join(lines) + str(environment) and all("=" in line for line in lines)
    assert built.set_variables["DS_ENV_FILE"] == str(tmp_path / "deepspeed_env")
    with pytest.raises(InputError, match="launcher accelerate"):
        build(tmp_path, hosts=hosts, hostfile="/hosts", launcher="accelerate")


def test_an_unknown_launcher(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="torchrun"):
        build(tmp_path, launcher="mpirun")


# ---- Slurm


@pytest.fixture
def slurm_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("srun", "scontrol"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\n[ "$3" = "n[1-2]" ] && printf "n1\\nn2\\n" || exit 1\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


BATCH = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}


def test_under_slurm_torchrun_goes_through_srun(tmp_path: Path, slurm_programs: None) -> None:
    job = slurm_job(BATCH)
    assert job is not None and job.nodes == ("n1", "n2")
    argv = build(tmp_path, slurm=job).argv
    assert argv[0] == "srun" and "--ntasks=2" in argv and "--kill-on-bad-exit=1" in argv
    assert argv.index("--nproc_per_node=2") < argv.index(str(BOOTSTRAP))
    assert "--rdzv_endpoint=n1:25000" in argv and "--rdzv_id=77" in argv


def test_what_is_no_slurm_job_of_several_nodes(slurm_programs: None) -> None:
    assert slurm_job({}) is None
    assert slurm_job(BATCH | {"SLURM_JOB_NUM_NODES": "1"}) is None
    assert slurm_job(BATCH | {"SLURM_STEP_NODELIST": "n1"}) is None  # inside an srun already
    with pytest.raises(NodeUnusable, match="scontrol"):
        slurm_job(BATCH | {"SLURM_JOB_NODELIST": "x"})
