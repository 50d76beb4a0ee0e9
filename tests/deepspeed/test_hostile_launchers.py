"""500 hostile strings through the launchers of one machine: their own code up to the start of a rank, and
real runs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.support.hostile import MARKER, strings
from zerokit.errors import InputError
from zerokit.launcher import command as commands
from zerokit.launcher import rank_start
from zerokit.launcher.backends import BOOTSTRAP
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Devices, Placement
from zerokit.launcher.rank.process import parse_arguments
from zerokit.launcher.run_folder import ACCELERATE_FILE, make_run_folder
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.script.reader import ScriptFacts

STRINGS = strings(500)


class StartedError(Exception):
    """In place of a process: what it would be."""

    def __init__(self, command: list[str], **options: Any) -> None:
        super().__init__(command)
        self.command, self.environment = command, dict(options.get("env") or os.environ)


def _started(call: Any, *arguments: Any) -> StartedError:
    with pytest.raises(StartedError) as caught:
        call(*arguments)
    return caught.value


def _through_torchs_agent(call: Any, arguments: Any) -> tuple[list[str], dict[str, str]]:
    """What the agent of ``torch.distributed.run`` starts as a rank; each word is a template to it."""
    import torch.distributed.run as torchrun
    from torch.distributed.elastic.utils import macros

    def launch(config: Any, entrypoint: str) -> Any:
        def start(*words: str) -> None:
            raise StartedError([entrypoint, *macros.substitute(list(words), "0")])

        return start

    with mock.patch.object(torchrun, "elastic_launch", launch):
        started = _started(call, arguments)
    return started.command, started.environment


def _through_torchrun(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    import torch.distributed.run as torchrun

    return _through_torchs_agent(torchrun.main, argv[argv.index("--nnodes=1") :])


def _through_accelerate(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    from accelerate.commands import launch

    arguments = launch.launch_command_parser().parse_args(argv[argv.index("launch") + 1 :])
    return _through_torchs_agent(launch.launch_command, arguments)


def _through_deepspeed(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """deepspeed starts a launcher for the machine, and that the ranks."""
    from deepspeed.launcher import launch, runner

    def start(command: list[str], **options: Any) -> None:
        raise StartedError(command, **options)

    process = SimpleNamespace(Popen=start)
    with mock.patch.object(runner, "subprocess", process), mock.patch.object(launch, "subprocess", process):
        first = _started(runner.main, argv[argv.index("--hostfile=/dev/null") - 1 :])
        words = first.command[first.command.index("deepspeed.launcher.launch") :]
        with (
            mock.patch.object(sys, "argv", words),
            mock.patch.dict(os.environ, first.environment, clear=True),
        ):
            second = _started(launch.main)
    return second.command, second.environment


LAUNCHERS = {
    "deepspeed": _through_deepspeed, "accelerate": _through_accelerate, "torchrun": _through_torchrun,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not list(tmp_path.rglob(MARKER))


@pytest.mark.slow  # DeepSpeed's launcher takes over this process, which ends a worker of pytest-xdist
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_string_as_path_name_argument_and_variable(launcher: str, folder: Path) -> None:
    """The script's path, an argument, a variable, the run folder and the working folder, of one rank."""
    pytest.importorskip("deepspeed")
    pytest.importorskip("accelerate")
    devices, refused = Devices(kind="cpu", ranks=2, gpu_indexes=(), why=""), 0
    for number, text in enumerate(STRINGS):
        here = folder / f"w{number}" / f"x{text.replace('/', '_')[:80]}"
        here.mkdir(parents=True)
        os.chdir(here)
        with ExitStack() as locks:
            try:
                run_dir = make_run_folder(text, "t.py", locks)
            except InputError:  # no name of a folder
                refused += 1
                run_dir = here
        (run_dir / ACCELERATE_FILE).write_text(
            json.dumps({"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED",
                        "num_machines": 1, "machine_rank": 0, "num_processes": 2, "use_cpu": False,
                        "main_training_function": "main", "rdzv_backend": "static", "same_network": True,
                        "downcast_bf16": "no"})
        )  # fmt: skip
        base = {"PATH": os.defpath, "HF_X": text}
        built = commands.build(
            LaunchOptions(
                target=Target(script=f"./{text}", module=None, arguments=(text, "x")), launcher=launcher
            ),
            Placement(devices=devices, port=25000),
            commands.ScriptSetup(script=ScriptOptions.read(ScriptFacts(path=Path("t.py")), "none", ())),
            run_dir=run_dir,
            base=base,
        )
        with mock.patch.dict(os.environ, built.environment(base), clear=True):
            argv, environment = LAUNCHERS[launcher](built.argv)
        words = argv[argv.index(str(BOOTSTRAP)) + 1 :]
        if words[0].startswith(rank_start.OPTION):
            words, changes = rank_start.unpack(words[0])
            environment |= {name: value for name, value in changes.items() if value is not None}
        target = parse_arguments(words)
        assert (target.name, target.arguments) == (f"./{text}", [text, "x"])
        assert environment["HF_X"] == text
        assert environment["ZEROKIT_CWD"] == str(here) and environment["ZEROKIT_RUN_DIR"] == str(run_dir)
    assert refused <= 2  # 3,000 characters; nothing


@pytest.mark.parametrize(
    "launcher",
    ["deepspeed", *(pytest.param(name, marks=pytest.mark.slow) for name in ("accelerate", "torchrun"))],
)
def test_they_arrive_with_every_launcher_of_one_machine(launcher: str, tmp_path: Path) -> None:
    """Real launchers, two ranks; the working folder, the script and the run folder are hostile too."""
    pytest.importorskip("deepspeed")
    here = tmp_path / f'w $(touch {MARKER}) `touch {MARKER}` it\'s;touch {MARKER} %n "q" ä\udcff'
    here.mkdir()
    name = f"-t $(touch {MARKER}).py"
    (here / name).write_text(
        "import os, pathlib, sys\n"
        "seen = sys.argv, {n: v for n, v in os.environ.items() if n.startswith('X_')}\n"
        "pathlib.Path('seen-' + os.environ['RANK']).write_text(ascii(seen))\n"
    )
    texts = [text for text in STRINGS if text != "--"]
    root = str(Path(__file__).parents[2])
    main = f"import sys; sys.path[:1] = [{root!r}]; from zerokit.cli import main; main()"
    command = [sys.executable, "-c", main, "launch", "--device", "cpu", "--num-ranks", "2", "--style", "none",
               "--launcher", launcher, "--run-dir", f"r $(touch {MARKER})\udcff", f"./{name}",
               *texts]  # fmt: skip
    variables = {f"X_{number}": text for number, text in enumerate(STRINGS)}
    done = subprocess.run(
        command, cwd=here, env={**os.environ, **variables}, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    for rank in (0, 1):
        observed = ast.literal_eval((here / f"seen-{rank}").read_text())
        assert observed == ([f"./{name}", *texts], variables)
    assert not list(tmp_path.rglob(MARKER))
