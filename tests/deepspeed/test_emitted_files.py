"""accelerate YAML, hostfile, sbatch, Kubernetes and plan.yaml: read back by their real readers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from zerokit.domain.deepspeed_settings import DeepSpeedSettings, Offload, ZeroSettings
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.emit import plan_file
from zerokit.emit.accelerate import accelerate_yaml, parallelism_environment
from zerokit.emit.deepspeed import deepspeed_config
from zerokit.emit.jobs import hostfile, kubernetes_manifest, sbatch_script
from zerokit.errors import FileInputError, InputError
from zerokit.strictload import parse_yaml, yamltext
from zerokit.strictload.yamltext import dump_yaml


def a_strategy(stage: int = 3, *, device: str = "none", data_parallel: int = 16, **degrees: int) -> Strategy:
    offload = Offload(device=device, nvme_path="/nvme" if device == "nvme" else None)
    zero = ZeroSettings(stage=stage, offload_optimizer=offload)
    return Strategy(
        settings=DeepSpeedSettings(
            precision="bf16",
            gradient_accumulation=4,
            gradient_clipping=1.0,
            zero=zero,
            autotp_size=degrees.get("tensor_parallel", 1),
        ),
        data_parallel=data_parallel,
        **degrees,
    )


def accelerates_launch(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment that the real ``accelerate launch --config_file`` would give the script."""
    launch = pytest.importorskip("accelerate.commands.launch")
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    parser = launch.launch_command_parser()
    args = parser.parse_args(["--config_file", str(path), "--main_process_port", "0", "train.py"])
    args, defaults, mixed_precision_from_file = launch._validate_launch_command(args)
    assert args.use_deepspeed
    fields = list(defaults.deepspeed_config)
    if mixed_precision_from_file:
        fields.append("mixed_precision")
    args.deepspeed_fields_from_accelerate_config = ",".join(fields)
    environment: dict[str, str] = prepare_deepspeed_cmd_env(args)[1]
    return environment


def accelerates_plugin(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    from accelerate.utils import DeepSpeedPlugin

    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        if name.startswith("ACCELERATE_"):
            monkeypatch.setenv(name, value)
    return DeepSpeedPlugin()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_accelerate_reads_the_deepspeed_file(
    stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = a_strategy(stage)
    ds_config = tmp_path / "ds_config.json"
    ds_config.write_text(json.dumps(deepspeed_config(strategy, Job(), variant="accelerate")))
    path = tmp_path / "accelerate.yaml"
    path.write_text(accelerate_yaml(strategy, 1, ds_config_path=str(ds_config)))
    plugin = accelerates_plugin(accelerates_launch(path, monkeypatch), monkeypatch)
    assert plugin.zero_stage == stage
    assert plugin.gradient_accumulation_steps == 4
    assert plugin.zero3_init_flag == (stage == 3)
    plugin.set_mixed_precision("no")
    assert plugin.deepspeed_config["bf16"]["enabled"] is True


@pytest.mark.parametrize("device", ["none", "cpu"])
def test_accelerate_reads_the_plugin_keys(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(accelerate_yaml(a_strategy(3, device=device), 1, ds_config_path=None))
    environment = accelerates_launch(path, monkeypatch)
    plugin = accelerates_plugin(environment, monkeypatch)
    assert (plugin.zero_stage, plugin.offload_optimizer_device) == (3, device)
    assert environment["ACCELERATE_MIXED_PRECISION"] == "bf16"


def test_accelerate_gets_sequence_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = a_strategy(3, data_parallel=4, sequence_parallel=4)
    path = tmp_path / "accelerate.yaml"
    text = accelerate_yaml(strategy, 1, ds_config_path="ds.json")
    path.write_text(text)
    environment = accelerates_launch(path, monkeypatch)
    assert environment["PARALLELISM_CONFIG_SP_SIZE"] == "4"
    assert environment["PARALLELISM_CONFIG_DP_REPLICATE_SIZE"] == "4"
    # what other launchers must set is what accelerate launch makes of the YAML
    assert parallelism_environment(strategy).items() <= environment.items()
    assert parallelism_environment(a_strategy()) == {}
    for name, value in environment.items():
        if name.startswith("PARALLELISM_CONFIG_"):
            monkeypatch.setenv(name, value)
    from accelerate.parallelism_config import ParallelismConfig

    parallelism = ParallelismConfig()
    assert (parallelism.sp_size, parallelism.data_parallel_size) == (4, 4)
    with pytest.raises(InputError, match="eager"):
        accelerate_yaml(strategy, 1, ds_config_path="ds.json", attention="eager")


def test_accelerate_refuses_what_it_cannot_say() -> None:
    with pytest.raises(InputError, match="pipeline"):
        accelerate_yaml(a_strategy(1, data_parallel=8, pipeline_parallel=2), 1, ds_config_path="x")
    with pytest.raises(InputError, match="tensor"):
        accelerate_yaml(a_strategy(1, data_parallel=8, tensor_parallel=2), 1, ds_config_path=None)


def test_accelerate_launch_drops_the_nvme_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the plugin keys refuse NVMe: `accelerate launch` passes the device on, and not the path."""
    strategy = a_strategy(3, device="nvme")
    with pytest.raises(InputError, match="NVMe"):
        accelerate_yaml(strategy, 1, ds_config_path=None)
    text = accelerate_yaml(a_strategy(3, device="cpu"), 1, ds_config_path=None)
    path = tmp_path / "accelerate.yaml"
    nvme = "offload_optimizer_device: nvme\n  offload_optimizer_nvme_path: /nvme"
    path.write_text(text.replace("offload_optimizer_device: cpu", nvme))
    plugin = accelerates_plugin(accelerates_launch(path, monkeypatch), monkeypatch)
    assert (plugin.offload_optimizer_device, plugin.offload_optimizer_nvme_path) == ("nvme", "none")


def test_hostfile_is_read_by_deepspeeds_parser() -> None:
    runner = pytest.importorskip("deepspeed.launcher.runner")
    text = hostfile(["node-a", "node-b.example"], a_strategy(), 2)
    assert dict(runner._parse_hostfile(text.splitlines())) == {"node-a": 8, "node-b.example": 8}


@pytest.mark.parametrize("hosts", [["a"], ["a", "a"], ["a", "-oProxyCommand=x"], ["a", "b c"], ["a", "b\n"]])
def test_hostfile_refuses(hosts: list[str]) -> None:
    with pytest.raises(InputError):
        hostfile(hosts, a_strategy(), 2)


def stub(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text("#!/bin/bash\n" + body)
    file.chmod(0o755)


AWKWARD = ["train.py", "--text", 'it\'s $HOME `id` "two words"', "--empty", ""]


@pytest.mark.parametrize("style", ["raw", "trainer", "accelerate"])
def test_sbatch_script_runs_torchrun_on_every_node(style: str, tmp_path: Path) -> None:
    script = sbatch_script(
        a_strategy(),
        2,
        AWKWARD,
        ds_config_path="plan/ds_config.json",
        style=style,
        environment={"NCCL_DEBUG": "it's $fine"},
        time_limit="12:00:00",
    )
    stub(tmp_path, "scontrol", "printf 'node-1\\nnode-2\\n'\n")
    stub(
        tmp_path,
        "srun",
        'printf "%s\\0" "$@"; printf "%s\\0" "$NCCL_DEBUG" "${ACCELERATE_USE_DEEPSPEED:-}"\n',
    )
    path = tmp_path / "job.sh"
    path.write_text(script)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "41000",
        "SLURM_JOB_NODELIST": "x",
    }
    done = subprocess.run(["bash", str(path)], env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.split("\0")[:-1]
    assert words[1].startswith("--cpus-per-task=") and words[2] == "torchrun"
    assert "--nnodes=2" in words and "--nproc-per-node=8" in words
    assert "--rdzv-endpoint=node-1:21000" in words
    start = words.index("train.py")
    raw = ["--deepspeed", "--deepspeed_config", "plan/ds_config.json"] if style == "raw" else []
    templated = [word.replace("$", "$$") for word in AWKWARD]  # torchrun takes arguments as templates
    assert words[start:-2] == [*templated, *raw]
    assert words[-2:] == ["it's $fine", "" if style == "raw" else "true"]
    assert "#SBATCH --time=12:00:00\n" in script


def threads_of_ranks(folder: Path, job: str, environment: dict[str, str], **offload: str) -> str:
    """OMP_NUM_THREADS of the torchrun that a job of 8 ranks a node starts, on nodes of 96 cores."""
    strategy = a_strategy(**offload)
    stub(folder, "torchrun", 'echo "threads ${OMP_NUM_THREADS-unset}"\n')
    stub(folder, "srun", 'shift 2\nexec "$@"\n')
    stub(folder, "scontrol", "echo node-1\n")
    stub(folder, "nproc", "echo 96\n")
    if job == "slurm":
        command = ["bash", "-c", sbatch_script(strategy, 2, ["t.py"], ds_config_path="d.json")]
    else:
        text = kubernetes_manifest(strategy, 2, ["t.py"], image="i", ds_config={})
        *_, manifest = yaml.safe_load_all(text)
        words = manifest["spec"]["template"]["spec"]["containers"][0]["command"]
        command = [word.replace("$$", "$") for word in words]  # as a kubelet does
    base = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n",
            "JOB_COMPLETION_INDEX": "0"}  # fmt: skip
    done = subprocess.run(command, env=base | environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("job", ["slurm", "kubernetes"])
def test_an_offloaded_optimizer_gets_each_ranks_share_of_the_cores(job: str, tmp_path: Path) -> None:
    """As the predicted time assumes; torchrun alone leaves each rank one."""
    assert threads_of_ranks(tmp_path, job, {}, device="cpu") == "threads 12"
    assert threads_of_ranks(tmp_path, job, {"OMP_NUM_THREADS": "5"}, device="cpu") == "threads 5"
    assert threads_of_ranks(tmp_path, job, {}) == "threads unset"
    if job == "slurm":
        assert threads_of_ranks(tmp_path, job, {"SLURM_CPUS_PER_TASK": "64"}, device="cpu") == "threads 8"
        assert threads_of_ranks(tmp_path, job, {"SLURM_CPUS_PER_TASK": "2"}, device="cpu") == "threads 1"


def test_a_jobs_own_threads_stay() -> None:
    text = sbatch_script(
        a_strategy(device="cpu"), 2, ["t.py"], ds_config_path="d", environment={"OMP_NUM_THREADS": "3"}
    )
    assert text.count("OMP_NUM_THREADS") == 1 and "export OMP_NUM_THREADS=3\n" in text


def test_sbatch_refuses_what_slurm_would_misread() -> None:
    for wrong in ({"job_name": "a b"}, {"job_name": "a\n#SBATCH --x"}, {"time_limit": "soon"}):
        with pytest.raises(InputError):
            sbatch_script(a_strategy(), 2, ["t.py"], ds_config_path="d", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        sbatch_script(a_strategy(), 2, ["t.py"], ds_config_path="d", environment={"A B": "1"})


def test_kubernetes_manifest(tmp_path: Path) -> None:
    strategy = a_strategy()
    text = kubernetes_manifest(
        strategy,
        2,
        AWKWARD,
        image="registry.example/train:1",
        ds_config=deepspeed_config(strategy, Job()),
        style="raw",
    )
    config_map, service, job = yaml.safe_load_all(text)
    assert json.loads(config_map["data"]["ds_config.json"])["zero_optimization"]["stage"] == 3
    assert service["spec"]["clusterIP"] == "None"
    assert (job["spec"]["completions"], job["spec"]["completionMode"]) == (2, "Indexed")
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    stub(tmp_path, "torchrun", 'printf "%s\\0" "$@"\n')
    done = subprocess.run(
        container["command"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.split("\0")[:-1]
    assert "--node-rank=1" in words and "--master-addr=zerokit-0.zerokit" in words
    twice = [word.replace("$", "$$$$") for word in AWKWARD]  # a kubelet halves each $$, then torchrun does
    assert words[words.index("train.py") :][: len(AWKWARD)] == twice


CHOSEN = {
    "zero_stage": 3, "data_parallel": 8, "tensor_parallel": 1, "pipeline_parallel": 1, "sequence_parallel": 1,
    "micro_batch": 1, "gradient_accumulation": 4, "precision": "bf16",
    "deepspeed_config": {"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}},
}  # fmt: skip

yaml_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(
        ["5e8", "no", "0o7", "1_000", "~", "null", ".5", "1e-5", "<<", "=", "2001-01-01", "010"]
    ),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=15,
)


@given(request_=st.dictionaries(st.text(), yaml_values))
@hypothesis_settings(max_examples=100, deadline=None)
def test_plan_file_round_trips(tmp_path_factory: Any, request_: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("plan")
    path = plan_file.write(folder, request_, CHOSEN, reasons={"a.b": "why"}, files={"x": "y.json"})
    read = plan_file.read(folder)
    assert (read.path, read.request, read.chosen) == (path, request_, CHOSEN)
    assert (read.reasons, read.files, read.world_size) == ({"a.b": "why"}, {"x": "y.json"}, 8)


@given(yaml_values)
@hypothesis_settings(max_examples=150, deadline=None)
def test_written_yaml_means_the_same_to_both_readers(value: Any) -> None:
    text = dump_yaml(value)
    assert parse_yaml(text).value == yaml.safe_load(text) == value


@given(st.dictionaries(st.text(), yaml_values) | st.lists(yaml_values))
@hypothesis_settings(max_examples=60, deadline=None)
def test_libyaml_and_python_write_the_same_text(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fast = dump_yaml(value, header="h")
        patch.setattr(yamltext, "_DUMPERS", [yamltext._PythonDumper])  # as where libyaml is missing
        assert dump_yaml(value, header="h") == fast


def test_libyaml_writes_what_plans_hold() -> None:
    pytest.importorskip("yaml._yaml")
    assert yamltext._DUMPERS[-1] is not yamltext._PythonDumper
    text = "a sentence: × and – are written, # no comment; " * 9
    assert yamltext._alike({"a": [text, "", {"é": None}], "b.c": 1e-5})
    assert not yamltext._alike({"a": "line\nbreak"})


def test_plan_file_names_what_is_wrong(tmp_path: Path) -> None:
    path = plan_file.write(tmp_path, {}, CHOSEN)
    good = path.read_text()
    for old, new, message in (
        ("schema: zerokit.planfile/1", "schema: other/1", r"plan.yaml:3:1: is not a plan"),
        ("zero_stage: 3", "zero_stage: three", r"plan.yaml:\d+:3: chosen.zero_stage must be a whole number"),
        ("data_parallel: 8", "data_parallel: 0", r"plan.yaml:\d+:3: chosen.data_parallel: 0 must be"),
        ("precision: bf16", "", r"chosen.precision is missing"),
        ("micro_batch: 1", "micro_batch: 1\n  micro_batch: 2", r"duplicate key 'micro_batch'"),
    ):
        assert old in good
        path.write_text(good.replace(old, new))
        with pytest.raises(FileInputError, match=message):
            plan_file.read(tmp_path)


def test_an_older_plan_survives_a_failed_write(tmp_path: Path) -> None:
    path = plan_file.write(tmp_path, {"params": "70b"}, CHOSEN)
    with pytest.raises(InputError):
        plan_file.write(tmp_path, {"params": float("nan")}, CHOSEN)
    assert plan_file.read(tmp_path).request == {"params": "70b"}
    assert list(tmp_path.iterdir()) == [path]
