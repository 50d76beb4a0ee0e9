"""Whether a rank moves, which is how a hang is told, what it is busy with outside its steps, in words, and
its resident memory. All is read from /proc, without touching its counters.

Long phases look like hangs from outside: an operator that is compiled, a download, a tokeniser. They are
known by the functions on the training thread's stack, one row each; a compiler at work below the rank is
the rank's work, though its Python waits.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import NamedTuple

from zerokit.instrument.frames import frames_of_threads
from zerokit.launcher import processes

_STATUS = "/proc/self/status"
_IO = "/proc/self/io"  # rchar: N, wchar: N, …


class HostMemory:
    """Reads resident memory now and its high-water mark.

    The kernel's own high-water mark (``VmHWM``) is exact for the whole run and is never reset, so
    that a script reading ``ru_maxrss`` sees what it would see without us. Peaks of single phases come
    from samples, and from the mark whenever it rose.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def read(self) -> tuple[int, int]:
        """Resident bytes now, and their high-water mark since the process began."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(_STATUS, os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(self._descriptor, 8192, 0)
            return _kib(text, b"VmRSS:"), _kib(text, b"VmHWM:")
        except (OSError, ValueError):
            self._descriptor = None  # the script may close every descriptor (a daemon does)
            scale = 1 if sys.platform == "darwin" else 1024  # without /proc only the mark is known
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
            return peak, peak

    def moved_bytes(self) -> int:
        """Bytes that this process has read and written by system calls so far; 0 where nobody counts."""
        try:
            with open(_IO, "rb") as file:  # noqa: PTH123 - the ticker's: no Path objects
                fields = file.read().split()
            return int(fields[1]) + int(fields[3])
        except (OSError, ValueError, IndexError):
            return 0


def _kib(text: bytes, key: bytes) -> int:
    start = text.index(key) + len(key)
    return int(text[start : text.index(b"kB", start)]) * 1024


LOOK_SECONDS = 2.0
"""Between two looks, as each reads some files of ``/proc``."""
BUSY_CORE_SHARE = 0.1
"""Above what a monitor (psutil, wandb) takes, far below a compiler."""
MOVED_BYTES = 1 << 20
"""Read and written between two looks: a download, a conversion."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class _Look(NamedTuple):
    at: float
    cpu_ticks: int
    moved_bytes: int
    pids: frozenset[int]


class ChildWatch:
    """Whether this process's descendants make progress; cheap while nobody asks."""

    def __init__(self) -> None:
        self._before: _Look | None = None
        self._working = False

    def working(self, waiting: bool) -> bool:
        """Whether descendants used CPU or moved data since the last look.

        CPU time of children that ended stays in their parents' account (``cutime``, proc(5)), so a build of
        many short compilers counts as a whole. ``waiting``: the training thread waits for a child, and so a
        new descendant counts too (one whose work is done by a server, as sccache does).
        """
        now = time.monotonic()
        before = self._before
        if before is not None and now - before.at < LOOK_SECONDS:
            return self._working
        look = self._before = _look(now)
        self._working = False
        if before is not None and now - before.at < 5 * LOOK_SECONDS:
            seconds = (look.cpu_ticks - before.cpu_ticks) / _TICKS_PER_SECOND
            busy = seconds / (now - before.at) >= BUSY_CORE_SHARE
            has_moved = look.moved_bytes - before.moved_bytes >= MOVED_BYTES
            self._working = busy or has_moved or (waiting and not look.pids <= before.pids)
        return self._working


def _look(now: float) -> _Look:
    # our own account holds the children that we waited for
    times = os.times()
    ticks = int((times.children_user + times.children_system) * _TICKS_PER_SECOND)
    moved_bytes, pids = 0, set()
    for pid in _descendants(os.getpid()):
        with suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
                text = file.read()
            ticks += sum(map(int, text[text.rfind(b")") + 2 :].split()[11:15]))
            pids.add(pid)
            with open(f"/proc/{pid}/io", "rb") as file:  # noqa: PTH123
                fields = file.read().split()
            moved_bytes += int(fields[1]) + int(fields[3])
    return _Look(now, ticks, moved_bytes, frozenset(pids))


def _descendants(root: int) -> list[int]:
    """From the kernel's own lists of children where it keeps them, else from the whole process table."""
    pids: list[int] = []
    queue = [root]
    while queue:
        children = _children(queue.pop())
        if children is None:
            return [process.pid for process in processes.descendants(root)]
        pids += children
        queue += children
    return pids


def _children(pid: int) -> list[int] | None:
    """None where the kernel was built without these lists (CONFIG_PROC_CHILDREN)."""
    pids: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - the ticker's: no Path objects
    except OSError:
        return pids
    for thread in threads:
        name = f"/proc/{pid}/task/{thread}/children"
        try:
            with open(name, "rb") as file:  # noqa: PTH123
                pids += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.isdir(f"/proc/{pid}/task/{thread}"):  # noqa: PTH112
                return None
        except OSError:
            continue
    return pids


_DEEPEST = 128


def _operator(frame: FrameType) -> str:
    return f"building operator {frame.f_locals.get('name', '')}".rstrip()


def _lock(frame: FrameType) -> str:
    path = getattr(frame.f_locals.get("self"), "lock_file_path", "")
    return f"waiting for another build to release {path or 'its lock'}"


# end of the file's name, functions, words; the innermost frame that is listed wins. An import of a file is
# none of its functions: the hub's client is imported by scripts that download nothing.
_TABLE: tuple[tuple[str, frozenset[str], str | Callable[[FrameType], str]], ...] = (
    ("torch/utils/file_baton.py", frozenset({"wait"}), _lock),
    ("torch/utils/cpp_extension.py", frozenset({"_jit_compile"}), _operator),
    ("huggingface_hub/file_download.py",
     frozenset({"http_get", "xet_get", "get_hf_file_metadata", "_download_to_tmp_and_move"}), "downloading"),
    ("huggingface_hub/_snapshot_download.py", frozenset({"snapshot_download"}), "downloading"),
    ("datasets/download/download_manager.py", frozenset({"_download_batched", "_download_single"}),
     "downloading"),
    ("urllib/request.py", frozenset({"urlopen", "urlretrieve"}), "downloading"),
    ("datasets/builder.py", frozenset({"download_and_prepare", "as_dataset"}), "preparing data"),
    ("datasets/arrow_dataset.py", frozenset({"map", "filter", "from_generator", "_map_single"}),
     "preparing data"),
    ("torch/serialization.py", frozenset({"save"}), "saving"),
    ("safetensors/torch.py", frozenset({"save_file"}), "saving"),
    ("deepspeed/runtime/engine.py", frozenset({"save_checkpoint", "save_16bit_model"}), "saving"),
    ("deepspeed/runtime/engine.py", frozenset({"load_checkpoint"}), "loading a checkpoint"),
    ("transformers/modeling_utils.py", frozenset({"from_pretrained"}), "loading weights"),
    ("transformers/modeling_utils.py", frozenset({"save_pretrained"}), "saving"),
)  # fmt: skip

_Words = str | Callable[[FrameType], str] | None


class Activity:
    """Remembers which code means what, so that a look costs a dictionary's look-up a frame."""

    def __init__(self) -> None:
        self._known: dict[CodeType, _Words] = {}

    def of(self, frame: FrameType | None) -> str | None:
        """What the stack below ``frame`` is doing, if it is in the table."""
        depth = 0
        while frame is not None and depth < _DEEPEST:
            words = self._words(frame.f_code)
            if words is not None:
                return words if isinstance(words, str) else words(frame)
            frame, depth = frame.f_back, depth + 1
        return None

    def _words(self, code: CodeType) -> _Words:
        if code not in self._known:
            path = code.co_filename.replace("\\", "/")
            rows = (row for row in _TABLE if path.endswith(row[0]) and code.co_name in row[1])
            self._known[code] = next(rows, (None,))[-1]
        return self._known[code]


def waits_for_child(frame: FrameType | None) -> bool:
    """Whether the innermost Python function waits for a process of its own."""
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(("subprocess.py", "multiprocessing/popen_fork.py")):
            return True
        frame = frame.f_back
    return False


_STILL_SECONDS = 2.0  # without a move, before the processes below are looked at
_MOVES_BYTES = 1 << 18  # between two looks: a checkpoint that is written; our own lines are far below
_FRAMES = 32
_READS = ("wait_woken", "sk_wait", "unix_stream", "pipe_read", "anon_pipe_read")  # end with data alone
_SOCKETS = ("/socket.py", "/ssl.py")


def kernel_wait() -> str:
    """The function of the kernel that the main thread waits in (proc(5), wchan); empty where nobody tells."""
    with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/wchan", "rb") as file:  # noqa: PTH123
        return file.read(64).decode("ascii", "replace").strip("0\n")
    return ""


class Movement:
    """Watches the main thread's position, the bytes it moves, and the processes that it waits for.
    ``seconds``: of the monotonic clock, when it moved last; ``doing``: a long operation's name, while it
    lasts."""

    def __init__(self, thread: int, host: HostMemory) -> None:
        self.seconds = time.monotonic()
        self.doing: str | None = None
        self._thread = thread
        self._host = host
        self._position: list[tuple[int, int]] | None = None
        self._bytes = 0
        self._woken = 0
        self._children = ChildWatch()
        self._activity = Activity()

    def look(self, allocated: bool) -> None:
        """Called by the ticker. ``allocated``: the GPU's allocator was asked since the last look."""
        if allocated:
            self.seconds = time.monotonic()
        position, moved_bytes = self._main_thread(), self._host.moved_bytes()
        if position != self._position or moved_bytes - self._bytes > _MOVES_BYTES:
            self._position, self.seconds = position, time.monotonic()
        self._bytes = moved_bytes
        frame = frames_of_threads().get(self._thread)
        self.doing = self._activity.of(frame)
        if self._received(frame):
            self.seconds = time.monotonic()
        is_still = time.monotonic() - self.seconds > _STILL_SECONDS
        if is_still and self._children.working(waits_for_child(frame)):
            self.seconds = time.monotonic()

    def _received(self, frame: FrameType | None) -> bool:
        """Whether a blocking read got something: a loop of them is always at the same line."""
        before, self._woken = (
            self._woken,
            0,
        )  # how often the thread has waited and gone on, where it is counted
        name = f"/proc/self/task/{os.getpid()}/status"
        with suppress(OSError, ValueError, IndexError), open(name, "rb") as file:  # noqa: PTH123
            self._woken = int(file.read().split(b"\nvoluntary_ctxt_switches:")[1].split()[0])
        if self._woken == before or frame is None:
            return False
        return kernel_wait().startswith(_READS) or frame.f_code.co_filename.endswith(_SOCKETS)

    @contextmanager
    def own_reading(self) -> Iterator[None]:
        """What is read and written in here is our own doing, no sign that the script moves."""
        before = self._host.moved_bytes()
        try:
            yield
        finally:
            self._bytes += self._host.moved_bytes() - before

    def _main_thread(self) -> list[tuple[int, int]]:
        """Where each of its innermost frames is."""
        frame = frames_of_threads().get(self._thread)
        positions: list[tuple[int, int]] = []
        while frame is not None and len(positions) < _FRAMES:
            positions.append((id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        return positions
