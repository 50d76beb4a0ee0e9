"""500 hostile strings as argument, environment value, path and name, through every way to start ranks: each
arrives as it is or is refused, and no shell makes the marker file."""

from __future__ import annotations

import os
import string
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile import MARKER, SHOW, shown, strings
from zerokit.errors import InputError
from zerokit.launcher import command as commands
from zerokit.launcher import rank_start
from zerokit.launcher.backends import BOOTSTRAP
from zerokit.launcher.nodes.cluster import Host, SlurmJob, ssh_command
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Devices, Placement
from zerokit.launcher.rank.process import parse_arguments
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.script.reader import ScriptFacts

STRINGS = strings(500)
HOSTS = [Host(name="a", slots=1, line=1), Host(name="b", slots=1, line=2)]


def on_hosts(
    script: str, arguments: tuple[str, ...], run_dir: Path, base: dict[str, str]
) -> commands.LaunchCommand:
    target = Target(script=script, module=None, arguments=arguments)
    devices = Devices(kind="cpu", ranks=1, gpu_indexes=(), why="")
    return commands.build(
        LaunchOptions(target=target, hostfile="/hosts"),
        Placement(devices=devices, port=25000, hosts=tuple(HOSTS)),
        commands.ScriptSetup(script=ScriptOptions.read(ScriptFacts(path=Path("t.py")), "none", ())),
        run_dir=run_dir,
        base=base,
    )


def through_deepspeed_and_a_shell(
    command: commands.LaunchCommand, base: dict[str, str], echo: Path, folder: Path
) -> Any:
    """What the remote shell of DeepSpeed's own runner starts: its arguments and environment."""
    runners = pytest.importorskip("deepspeed.launcher.multinode_runner")
    from deepspeed.launcher import runner as deepspeed_runner

    at = command.argv.index(str(BOOTSTRAP))
    arguments = Namespace(
        user_args=command.argv[at + 1 :], user_script=command.argv[at], ssh_port=None, launcher_args="",
        master_addr="h", master_port=1, venv_script=None, no_python=False, module=False, no_local_rank=True,
        save_pid=False, enable_each_rank_log=None,
    )  # fmt: skip
    runner = runners.PDSHRunner(arguments, "e30=")
    environment = command.environment(base)
    for name, value in environment.items():  # as deepspeed/launcher/runner.py:main does
        if name.startswith((*deepspeed_runner.EXPORT_ENVS, "NCCL")):
            runner.add_export(name, value)
    for line in command.files["deepspeed_env"].splitlines(keepends=True):
        runner.add_export(*line.split("=", maxsplit=1))
    before = Path.cwd()
    os.chdir(rank_start.LAUNCHER_FOLDER)
    try:
        argv, _, _ = runner.get_cmd({}, {"a": [0], "b": [0]})
    finally:
        os.chdir(before)
    line = " ".join(argv[argv.index("a,b") + 1 :])
    line = line.replace(sys.executable, str(echo)).replace("%n", "0").replace("%h", "a").replace("%%", "%")
    done = subprocess.run(
        ["/bin/sh", "-c", line], cwd=folder, capture_output=True, check=True, env={"PATH": os.defpath}
    )
    return shown(done.stdout)


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("echo") / "python"
    program.write_text(SHOW)
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    "kind",
    ["argument", "path", *(pytest.param(k, marks=pytest.mark.slow) for k in ("folder", "environment"))],
)
def test_they_arrive_through_deepspeeds_pdsh_runner_or_are_refused(
    kind: str, echo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    batch = 1 if kind != "argument" else 25
    for number in range(0, len(STRINGS), batch):
        texts = STRINGS[number : number + batch]
        here = tmp_path
        if kind == "folder":
            name = texts[0].replace("/", "_")[:80] or "x"
            here = tmp_path / f"w{number}" / f"x{name}"
            here.mkdir(parents=True)
        monkeypatch.chdir(here)
        base = {"PATH": "/bin"}
        if kind == "environment":
            base |= {"NCCL_X": texts[0], "MLFLOW_X": texts[0], "HF_X": texts[0]}
        script = "./" + texts[0] if kind == "path" else "t.py"
        run_dir = here / "run" if kind == "folder" else tmp_path / "run"
        try:
            built = on_hosts(script, tuple(texts) if kind == "argument" else ("--x",), run_dir, base)
        except InputError:
            refused += 1
            continue
        argv, environment = through_deepspeed_and_a_shell(built, base, echo, here)
        arguments, changes = rank_start.unpack(argv[-1])
        target = parse_arguments(arguments)
        environment.update({n: v for n, v in changes.items() if v is not None})
        assert target.name == script
        assert target.arguments == (texts if kind == "argument" else ["--x"])
        assert environment["ZEROKIT_CWD"] == str(here) and environment["ZEROKIT_RUN_DIR"] == str(run_dir)
        if kind == "environment":
            assert environment["NCCL_X"] == environment["MLFLOW_X"] == texts[0]
    assert refused == 0
    assert not list(tmp_path.rglob(MARKER)) and not Path(MARKER).exists()


class _Template(string.Template):
    """torch/distributed/elastic/utils/api.py:58 of 2.13, on every argument of torchrun's script."""


def test_they_arrive_through_srun_and_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """srun hands arguments on as they are; torch's agent takes each for a template."""
    monkeypatch.chdir(tmp_path)
    job = SlurmJob(job_id="7", nodes=("a", "b"))
    devices = Devices(kind="cpu", ranks=2, gpu_indexes=(), why="")
    for number in range(0, len(STRINGS), 25):
        texts = tuple(STRINGS[number : number + 25])
        built = commands.build(
            LaunchOptions(target=Target(script=f"./{texts[0]}", module=None, arguments=texts)),
            Placement(devices=devices, port=25000, slurm=job),
            commands.ScriptSetup(script=ScriptOptions.read(ScriptFacts(path=Path("t.py")), "none", ())),
            run_dir=tmp_path / f"run {texts[0][:50]}",
            base={"HF_X": texts[0]},
        )
        words = built.argv[built.argv.index(str(BOOTSTRAP)) + 1 :]
        observed = [_Template(word).safe_substitute(local_rank="0") for word in words]
        if observed[0].startswith(rank_start.OPTION):
            observed = rank_start.unpack(observed[0])[0]
        target = parse_arguments(observed)
        assert (target.name, tuple(target.arguments)) == (f"./{texts[0]}", texts)
        assert built.environment({"HF_X": texts[0]})["HF_X"] == texts[0]


def test_they_arrive_through_ssh(echo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps, preflight and gathering: ssh joins the words, and the other machine's shell reads the line."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    for number in range(0, len(STRINGS), 100):
        texts = STRINGS[number : number + 100]
        command = ssh_command("-oProxyCommand=x", 5, str(echo), *texts)
        at = command.index("--")
        assert command[at + 1] == "-oProxyCommand=x"
        done = subprocess.run(
            ["/bin/sh", "-c", " ".join(command[at + 2 :])], cwd=tmp_path, capture_output=True, check=True,
            env={"PATH": os.defpath},
        )  # fmt: skip
        assert shown(done.stdout)[0] == texts
    assert not list(tmp_path.iterdir())
