"""The view of the machine that forgets: whatever a script does in it, the machine is the same afterwards."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rehearsals import SCRIPTS, rehearse

_ENTER = """
import os, runpy, sys
from pathlib import Path
from zerokit.rehearsal.process import sandbox

script, shared, user, *arguments = sys.argv[1:]
attack = runpy.run_path(script)["attack"]
if os.getuid() == 0 != int(user):
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
own, *folders = (Path(shared, name) for name in ("own", "first", "second"))
for folder in (own, *folders):
    folder.mkdir()
try:
    nest = sandbox.enter([own])
except sandbox.NoSandbox as refused:
    sys.exit(f"refused: {refused}")
if isinstance(nest, int):
    sys.exit(nest)
(own / "of the nest").write_text("kept")
before = nest.written()
for folder in folders:  # the second one finds what the first one found
    child = nest.fork([folder], own)
    if not child:
        assert (own / "of the nest").read_text() == "kept"
        (own / "of the nest").write_text("gone")
        (folder / "inside").write_text(str(os.getpid()))
        attack(int(arguments[0]))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        sys.exit(code)
assert nest.written() == before
Path("of the nest").write_text("gone")
assert nest.written() != before
"""
_MOUNTED = (
    "mount -t tmpfs none mounted && echo kept > mounted/kept && chmod -R a+rwX mounted && "
    'touch ../namespace && mount --bind /proc/self/ns/net ../namespace && exec "$@"'  # as of `ip netns`
)
NOBODY = 65534


def _machine(folder: Path, victim: int) -> dict[str, object]:
    """What must be the same afterwards; ``folder``: of the script."""
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    system_v = subprocess.run(["ipcs"], capture_output=True, text=True, check=False).stdout
    places = (
        "/",
        "/etc",
        "/tmp",
        "/run",
        "/dev",
        "/dev/shm",
        "/dev/mqueue",
        "/sys/fs/cgroup",
        str(Path.home()),
    )
    listed = {place: {path.name for path in Path(place).glob("*left*")} for place in places}
    files = {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.is_file() and path.read_bytes())
        for path in folder.rglob("*")
    }
    return {
        "files": files, "listed": listed, "daemons": processes.count(f"sleep 98765{victim}"),
        "system v": system_v, "host": socket.gethostname(),
        "swappiness": Path("/proc/sys/vm/swappiness").read_text(),
    }  # fmt: skip


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter; pytest closes its own to others, whenever a session begins."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def folder(place: Path, victim: subprocess.Popen[bytes]) -> Iterator[Path]:
    """A working folder with files, a pipe, and doors that somebody stands behind."""
    work = place / "work"
    for name in ("folder", "mounted"):
        (work / name).mkdir(parents=True)
    for name in ("kept", "folder/kept"):
        (work / name).write_text("kept")
    os.mkfifo(work / "pipe")
    reader = os.open(work / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with contextlib.ExitStack() as stack:
        for address in (str(work / "door"), f"\0left-behind-{victim.pid}"):
            door = stack.enter_context(socket.socket(socket.AF_UNIX))
            door.bind(address)
            door.listen()
            door.setblocking(False)
            stack.callback(_nobody_came, door)
        yield work
        assert not os.read(reader, 16)
        os.close(reader)


def _nobody_came(door: socket.socket) -> None:
    with pytest.raises(BlockingIOError):
        door.accept()


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process outside, which nobody may touch."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    assert process.poll() is None
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    process.kill()
    process.wait()


def _with_mount(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run it where a file system is mounted below the folder, if this user can mount one."""
    mounting = ["unshare", "--mount", "sh", "-c", _MOUNTED, "sh"] if os.getuid() == 0 else []
    return subprocess.run([*mounting, *command], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("user", [0, NOBODY])
def test_nothing_is_left(user: int, folder: Path, victim: subprocess.Popen[bytes], place: Path) -> None:
    if os.getuid() != 0 and user != os.getuid():
        user = os.getuid()
    shared = place / "shared"
    shared.mkdir()
    if os.getuid() == 0:
        for path in (shared, folder, *folder.rglob("*")):
            os.chown(path, user, user, follow_symlinks=False)
    before = _machine(folder, victim.pid)
    script = str(SCRIPTS / "leaves_things.py")
    done = _with_mount(
        folder, [sys.executable, "-c", _ENTER, script, str(shared), str(user), str(victim.pid)]
    )
    if "refused" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    for name in ("first", "second"):
        assert (shared / name / "inside").read_text() == "2"  # of a PID namespace of its own
    assert _machine(folder, victim.pid) == before


def test_a_mounted_folder_keeps_what_is_in_it(folder: Path, tmp_path: Path) -> None:
    """The tmpfs of a run is below its working folder; the script replaces, appends and removes there."""
    if os.getuid() != 0:
        pytest.skip("mounts a file system")
    (tmp_path / "shared").mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import os, shutil\nfrom pathlib import Path\n"
        "def attack(_):\n"
        "    Path('mounted/kept').write_text('new'); Path('kept').write_text('new'); os.remove('kept')\n"
        "    Path('folder/new').write_text('new'); shutil.rmtree('mounted', ignore_errors=True)\n"
    )
    enter = [sys.executable, "-c", _ENTER, str(script), str(tmp_path / "shared"), "0", "1"]
    both = 'find . -type f | sort | xargs cat; "$@" && find . -type f | sort | xargs cat'
    done = _with_mount(folder, ["sh", "-c", both, "sh", *enter])
    assert (done.returncode, done.stdout) == (0, "keptkeptkept\n" * 2), done.stderr


def test_a_rehearsal_leaves_nothing(folder: Path, victim: subprocess.Popen[bytes]) -> None:
    before = _machine(folder, victim.pid)
    code, said, err = rehearse(folder, "--gpu", "h200", str(SCRIPTS / "leaves_things.py"), str(victim.pid))
    if "no namespaces" in err:
        pytest.skip(err)
    assert (code, said["complete"], said["stopped"]) == (0, True, None)
    assert _machine(folder, victim.pid) == before
