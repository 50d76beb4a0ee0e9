"""launch.sh itself: which Python it takes, when it installs, what it survives.

The shell script, virtual environments, locks and signals are real; pip is replaced by a
stand-in that records its call, so that no package index is needed. The real installation
is what runs this suite.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# `pip install` of the stand-in: notes how it was called, waits for a file where the test
# asks it to, then provides the zerokit command.
FAKE_PIP = """
import json, os, pathlib, sys, time
log = pathlib.Path(os.environ["FAKE_PIP_LOG"])
names = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_USER", "PIP_CONSTRAINT", "DS_BUILD_OPS")
with log.open("a") as file:
    file.write(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(),
                           "environment": {n: os.environ.get(n) for n in names}}) + "\\n")
hold = os.environ.get("FAKE_PIP_HOLD")
while hold and pathlib.Path(hold).exists():
    time.sleep(0.02)
if os.environ.get("FAKE_PIP_FAILS"):
    sys.exit("no route to the index")
command = pathlib.Path(sys.executable).parent / "zerokit"
shell = "printf 'zerokit in %s:' \\"$PWD\\"; printf ' <%s>' \\"$@\\"; echo"
command.write_text("#!/bin/sh\\n" + shell + "\\n")
command.chmod(0o755)
"""

# Stands for a python3 on PATH; what it makes with `-m venv` has the stand-in pip.
WRAPPER = """#!/bin/sh
case "$*" in
    *"-m venv"*)
        for last; do :; done
        "{python}" -I -m venv --without-pip "$last" || exit
        for site in "$last"/lib/python*/site-packages; do
            mkdir "$site/pip" && cp "{fake_pip}" "$site/pip/__main__.py"
        done ;;
    *) exec "{python}" "$@" ;;
esac
"""


def write_command(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class Checkout:
    """A copy of what launch.sh needs, in a folder whose name has a space in it."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.root = folder / "a checkout"
        self.root.mkdir()
        for name in ("launch.sh", "pyproject.toml", "constraints.txt"):
            shutil.copy2(ROOT / name, self.root / name)
        self.log = folder / "pip.log"
        fake_pip = folder / "fake_pip.py"
        fake_pip.write_text(FAKE_PIP)
        self.bin = folder / "bin"
        text = WRAPPER.format(python=python, fake_pip=fake_pip)
        write_command(self.bin / "python3", text)
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "FAKE_PIP_LOG": str(self.log),
        }

    def start(self, *args: str, script: Path | None = None, cwd: Path | None = None, **more: str):
        return subprocess.Popen(
            [str(script or self.root / "launch.sh"), *args],
            cwd=cwd or self.root,
            env=self.environment | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *args: str, **more) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, **more)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def installations(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def wait_for_installations(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.installations()) < count:
            assert time.monotonic() < deadline, "pip was never started"
            time.sleep(0.02)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_installs_once_and_passes_arguments_on_verbatim(checkout: Checkout, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    first = checkout.run("plan", "--params", "7 b", "*", cwd=elsewhere)
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"zerokit in {elsewhere}: <plan> <--params> <7 b> <*>\n"
    second = checkout.run("gpus")
    assert (second.returncode, second.stderr) == (0, "")
    (call,) = checkout.installations()
    assert call["argv"][-2:] == ["-e", ".[train]"]
    assert Path(call["cwd"]) == checkout.root


def test_the_callers_python_and_pip_settings_do_not_leak_into_the_installation(checkout: Checkout) -> None:
    done = checkout.run("gpus", PYTHONPATH="/nowhere", PIP_TARGET="/nowhere", PIP_USER="1", DS_BUILD_OPS="1")
    assert done.returncode == 0, done.stderr
    (call,) = checkout.installations()
    assert call["environment"] == {
        "PYTHONPATH": None,
        "PYTHONHOME": None,
        "PIP_TARGET": None,
        "PIP_USER": "0",
        "PIP_CONSTRAINT": "constraints.txt",
        "DS_BUILD_OPS": "0",
    }


def test_works_through_a_chain_of_links(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "one").symlink_to("../a checkout/launch.sh")
    (tmp_path / "two").symlink_to("links/one")
    done = checkout.run("gpus", script=tmp_path / "two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (checkout.root / ".venv" / "bin" / "zerokit").exists()


def test_the_test_extras_serve_for_training_too(checkout: Checkout) -> None:
    assert checkout.run("gpus").returncode == 0
    checkout.run("test")  # the stand-in environment has no pytest; the installation is what counts
    assert checkout.run("gpus").returncode == 0
    assert [call["argv"][-1] for call in checkout.installations()] == [".[train]", ".[train,dev]"]


def test_changed_pins_are_installed(checkout: Checkout) -> None:
    assert checkout.run("gpus").returncode == 0
    kept = checkout.root / ".venv" / "kept"
    kept.touch()
    with (checkout.root / "constraints.txt").open("a") as file:
        file.write("more==1\n")
    assert checkout.run("gpus").returncode == 0
    assert len(checkout.installations()) == 2
    assert kept.exists(), "an intact environment is brought up to date, not thrown away"


def test_a_failed_installation_says_so_and_is_done_anew(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    checkout = Checkout(tmp_path, str(tmp_path / "bare" / "bin" / "python"))
    failed = checkout.run("gpus", FAKE_PIP_FAILS="1")
    assert failed.returncode == 2
    assert "no route to the index" in failed.stderr
    missing = re.findall(r"does not have them either: (click .*\btorch deepspeed.*)", failed.stderr)
    assert missing and "matplotlib" not in missing[0]
    assert "run the same command to try again" in failed.stderr
    half = checkout.root / ".venv" / "half-installed"
    half.touch()
    assert checkout.run("gpus").returncode == 0
    assert not half.exists()


def test_without_an_index_charts_can_be_done_without(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    checkout = Checkout(tmp_path, str(bare / "bin" / "python"))
    (names,) = re.findall(r"have them either: (.*)", checkout.run("gpus", FAKE_PIP_FAILS="1").stderr)
    (site,) = bare.glob("lib/python*/site-packages")
    for name in names.split():
        (site / f"{name}-1.dist-info").mkdir()
        (site / f"{name}-1.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
    said = checkout.run("gpus", FAKE_PIP_FAILS="1").stderr
    assert "without matplotlib, pages have no charts" in said
    assert "going on with the packages that" in said


def test_without_an_index_the_packages_of_this_python_are_taken(checkout: Checkout) -> None:
    if not all(map(importlib.util.find_spec, ("torch", "deepspeed", "peft"))):
        pytest.skip("these packages are not installed here")
    (checkout.root / "zerokit").symlink_to(ROOT / "zerokit")
    first = checkout.run("gpus", "h200", FAKE_PIP_FAILS="1")
    assert first.returncode == 0 and "h200" in first.stdout, first.stderr
    assert "no route to the index" in first.stderr
    assert "going on with the packages that python3 has" in first.stderr
    assert checkout.run("gpus", "h200").stderr == ""
    assert len(checkout.installations()) == 1
    python = checkout.root / ".venv" / "bin" / "python"
    code = "import deepspeed, zerokit; print(zerokit.__file__)"
    where = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert Path(where.splitlines()[-1]).is_relative_to(checkout.root)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_installation_is_done_anew(checkout: Checkout, tmp_path: Path, number: int) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    process = checkout.start("gpus", FAKE_PIP_HOLD=str(hold))
    checkout.wait_for_installations(1)
    half = checkout.root / ".venv" / "half-installed"
    half.touch()
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    done = checkout.run("gpus")
    assert done.returncode == 0, done.stderr
    assert len(checkout.installations()) == 2
    assert not half.exists()


def test_two_at_once_install_once(checkout: Checkout, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    first = checkout.start("gpus", FAKE_PIP_HOLD=str(hold))
    checkout.wait_for_installations(1)
    second = checkout.start("models", FAKE_PIP_HOLD=str(hold))
    assert second.stderr is not None
    assert "waiting for it" in second.stderr.readline()
    hold.unlink()
    for process, command in ((first, "gpus"), (second, "models")):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert f"<{command}>" in out
    assert len(checkout.installations()) == 1


def test_a_moved_checkout_is_installed_anew(checkout: Checkout, tmp_path: Path) -> None:
    assert checkout.run("gpus").returncode == 0
    checkout.root = checkout.root.rename(tmp_path / "moved")
    assert checkout.run("gpus").returncode == 0
    assert [Path(call["cwd"]).name for call in checkout.installations()] == ["a checkout", "moved"]


def test_another_python_asked_for_by_name_gets_its_own_environment(
    checkout: Checkout, tmp_path: Path
) -> None:
    assert checkout.run("gpus").returncode == 0
    # the same interpreter under another base is as good as another version of it
    python3 = (checkout.bin / "python3").read_text()
    answers = '*realpath*) echo "9.9.9 /opt" ;;\n    *) exec'
    other = write_command(tmp_path / "other-python", python3.replace("*) exec", answers))
    assert checkout.run("gpus", PYTHON=str(other)).returncode == 0
    assert len(checkout.installations()) == 2


def python_that(exits: int, version: str) -> str:
    return f"""#!/bin/sh
case "$*" in
    --version) echo "Python {version}.0" ;;
    *version_info\\[:2\\]*) echo {version} ;;
    *) exit {exits} ;;
esac
"""


def isolated(checkout: Checkout, tmp_path: Path) -> dict[str, str]:
    """A PATH with the shell's tools and no Python at all."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "dirname", "readlink", "cat", "cmp", "env", "rm", "mv", "grep", "mkdir", "cp"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    (checkout.bin / "python3").unlink()
    return {"PATH": f"{checkout.bin}:{tools}"}


def test_no_python_at_all(checkout: Checkout, tmp_path: Path) -> None:
    done = checkout.run("gpus", **isolated(checkout, tmp_path))
    assert done.returncode == 2
    assert "no Python 3.10 or newer on PATH" in done.stderr
    assert "PYTHON=/path/to/python3" in done.stderr


def test_only_an_old_python(checkout: Checkout, tmp_path: Path) -> None:
    path = isolated(checkout, tmp_path)
    write_command(checkout.bin / "python3", python_that(3, "3.8"))
    done = checkout.run("gpus", **path)
    assert done.returncode == 2
    assert "found only python3 (Python 3.8.0)" in done.stderr


def test_a_python_without_venv(checkout: Checkout, tmp_path: Path) -> None:
    path = isolated(checkout, tmp_path)
    write_command(checkout.bin / "python3", python_that(4, "3.12"))
    done = checkout.run("gpus", **path)
    assert done.returncode == 2
    assert "without the venv and ensurepip modules" in done.stderr
    if Path("/etc/debian_version").exists():
        assert "apt-get install python3.12-venv" in done.stderr


def test_a_usable_python_behind_unusable_ones_is_found(checkout: Checkout, tmp_path: Path) -> None:
    good = (checkout.bin / "python3").read_text()
    path = isolated(checkout, tmp_path)
    write_command(checkout.bin / "python3", python_that(3, "3.8"))
    write_command(checkout.bin / "python3.13", python_that(4, "3.13"))
    write_command(checkout.bin / "python3.12", "#!/bin/sh\nexit 127\n")
    write_command(checkout.bin / "python3.11", good)
    done = checkout.run("gpus", **path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (python_that(3, "3.9"), "is Python 3.9.0; zerokit needs 3.10 or newer"),
        ("#!/bin/sh\nexit 127\n", "does not run as a Python interpreter"),
    ],
)
def test_an_unusable_choice_of_python_is_not_replaced_by_another(
    checkout: Checkout, tmp_path: Path, text: str, message: str
) -> None:
    chosen = write_command(tmp_path / "chosen", text)
    done = checkout.run("gpus", PYTHON=str(chosen))
    assert done.returncode == 2
    assert message in done.stderr
    assert checkout.installations() == []
