"""A script run by the bootstrap file sees what it sees under plain Python, and prints the same."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import zerokit
from tests.support.ranks import BOOTSTRAP, rank_environment, run_rank, write_script
from zerokit.launcher.rank.process import parse_arguments, trainer_around

LOOK = """
    import inspect, os, pickle, sys, threading
    class Thing:
        pass
    print(sys.argv, __name__, __file__, __package__, __spec__, type(__loader__).__name__)
    print(sys.path[0], os.getcwd(), sorted(k for k in globals() if not k.startswith("_")))
    print(sys.modules["__main__"].__dict__ is globals(), threading.current_thread().name)
    print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, inspect.getsource(Thing))
    print([name for name in ("probe", "report", "collect", "torch") if name in sys.modules])
    import atexit
    atexit.register(lambda: print("bye", sys.modules["__main__"].Thing))
"""
CHAIN = """
    def inner():
        raise KeyError("inner")
    def outer():
        try:
            inner()
        except KeyError as error:
            raise RuntimeError("outer") from error
    outer()
"""


def plain(folder: Path, *arguments: str | Path) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False,
                          cwd=folder, env=rank_environment(folder))  # fmt: skip
    out, err = (re.sub(r"0x\w+", "0x…", text) for text in (done.stdout, done.stderr))
    return done.returncode, out, err


def measured(folder: Path, *arguments: str | Path) -> tuple[int, str, str]:
    return plain(folder, BOOTSTRAP, *arguments)


@pytest.mark.parametrize(
    "body",
    [
        LOOK,
        CHAIN,
        "x = (",
        "import sys; sys.exit('a message')",
        "import sys; sys.exit(300)",
        "raise KeyboardInterrupt",
        "import sys; sys.excepthook = lambda *a: print('own hook', a[0]); raise OSError(2, 'x')",
        "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
        "import threading; threading.Thread(target=lambda: 1 / 0).start()",
        "import probe",
        "import runpy; runpy.run_path('other.py', run_name='there')",
        "# -*- coding: latin-1 -*-\nprint('caf\\xe9')",
    ],
    ids=lambda body: body.strip().splitlines()[0][:30],
)
def test_a_script_behaves_as_without_us(tmp_path, body):
    if "ExceptionGroup" in body and sys.version_info < (3, 11):
        pytest.skip("ExceptionGroup came with Python 3.11")
    write_script(tmp_path, "print(__name__)", "other.py")
    write_script(tmp_path, body)
    expected = plain(tmp_path, "train.py", "--a", "--", "b c")
    assert measured(tmp_path, "--", "train.py", "--a", "--", "b c") == expected


def test_a_script_elsewhere_reached_through_a_link(tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    write_script(real, "import helper, sys; print(helper.__file__, sys.argv, __file__, sys.path[0])")
    write_script(real, "", "helper.py")
    (tmp_path / "link.py").symlink_to(real / "train.py")
    expected = plain(tmp_path, "link.py")
    assert expected[0] == 0
    assert measured(tmp_path, "--", "link.py") == expected


@pytest.mark.parametrize("module", ["pack", "pack.train", "pack.broken", "no_such_module"])
def test_a_module_behaves_as_without_us(tmp_path, module):
    package = tmp_path / "pack"
    package.mkdir()
    write_script(package, "", "__init__.py")
    write_script(package, LOOK, "__main__.py")
    write_script(package, "from . import __main__\nimport sys\nprint(sys.argv, __spec__.name)", "train.py")
    write_script(package, "from . import missing", "broken.py")
    expected = plain(tmp_path, "-m", module, "--x", "1")
    got = measured(tmp_path, "--", "-m", module, "--x", "1")
    assert got[:2] == expected[:2]
    if module != "no_such_module":
        assert [line for line in got[2].splitlines() if "runpy" not in line] == [
            line for line in expected[2].splitlines() if "runpy" not in line
        ]
    else:
        assert "No module named no_such_module" in got[2]


def test_a_folder_with_a_main_file(tmp_path):
    folder = tmp_path / "app"
    folder.mkdir()
    write_script(folder, "import sys, extra; print(sys.argv, __name__, sys.path[0])", "__main__.py")
    write_script(folder, "", "extra.py")
    expected = plain(tmp_path, "app", "x")
    assert expected[0] == 0
    assert measured(tmp_path, "--", "app", "x") == expected


def test_a_hostile_folder_shadows_nothing_of_ours(tmp_path):
    """Modules beside the script named like ours or like those we use are the script's alone."""
    for name in ("json.py", "zerokit.py", "ctypes.py", "probe.py", "statistics.py"):
        write_script(tmp_path, "print('imported', __name__)", name)
    write_script(tmp_path, "import time, probe; time.sleep(0.6); print('ran')")
    assert measured(tmp_path, "--", "train.py") == (0, "imported probe\nran\n", "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--", "t.py", "a"], ("t.py", False, ["a"])),
        (["t.py", "--", "a"], ("t.py", False, ["--", "a"])),
        (["--local_rank=1", "--", "t.py", "a"], ("t.py", False, ["--local_rank=1", "a"])),
        (
            ["--local_rank=1", "t.py", "--local_rank", "7"],
            ("t.py", False, ["--local_rank=1", "--local_rank", "7"]),
        ),
        (["--local-rank", "2", "--", "t.py"], ("t.py", False, ["--local-rank", "2"])),
        (["--", "--", "t.py", "--", "a"], ("t.py", False, ["--", "a"])),
        (["--local_rank=0", "--", "-m", "p.q", "--x"], ("p.q", True, ["--local_rank=0", "--x"])),
        (["-m", "p.q", "--x"], ("p.q", True, ["--x"])),
        (["--", "--", "-m", "p.q", "--", "x"], ("p.q", True, ["--", "x"])),
    ],
)
def test_the_launchers_arguments_go_where_a_script_expects_them(given, expected):
    target = parse_arguments(given)
    assert (target.name, target.is_module, target.arguments) == expected


def test_without_a_run_folder_or_rank_the_script_just_runs(tmp_path, monkeypatch):
    script = write_script(tmp_path, "import zerokit; print(zerokit.snapshot(), zerokit.compare(None))")
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(
        [sys.executable, BOOTSTRAP, "--", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "None None\n")
    assert run_rank(tmp_path / "missing", "--", script)[0] == 0  # a folder that cannot be written


def test_the_script_api_outside_a_launch():
    code = (
        "import sys, zerokit\n"
        "with zerokit.phase('eval'):\n    assert zerokit.snapshot('x') is None\n"
        "assert zerokit.compare({}) is None\n"
        "for bad in (3, '', 'x' * 99):\n"
        "    try: zerokit.phase(bad)\n"
        "    except (TypeError, ValueError): continue\n"
        "    raise SystemExit(bad)\n"
        "assert not {'torch', 'zerokit.launcher.rank.probe', 'pydantic'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_installed_version_is_not_mixed_in(tmp_path):
    copy = tmp_path / "checkout" / "zerokit"
    shutil.copytree(Path(zerokit.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    script = write_script(
        tmp_path, "import zerokit\nraise ValueError(zerokit.launcher.rank.process.__file__)\n"
    )
    _, _, shown = plain(tmp_path, copy / "launcher" / "rank" / "bootstrap.py", "--", script)
    assert shown.splitlines()[-1] == f"ValueError: {copy / 'launcher' / 'rank' / 'process.py'}"
    assert "bootstrap" not in shown


def test_a_trainers_training_is_known_by_its_class() -> None:
    """Whether ``os._exit`` was called from inside it: also in a class made from Transformers' Trainer."""
    trainer = type("Trainer", (), {"__module__": "transformers.trainer"})

    class OwnTrainer(trainer):
        def train(self) -> str | None:
            return self.callback()

        def callback(self) -> str | None:
            return trainer_around(sys._getframe())

    class Pet:
        def train(self) -> str | None:
            return trainer_around(sys._getframe())

    assert OwnTrainer().train() == "OwnTrainer.train"
    assert OwnTrainer().callback() is Pet().train() is None
