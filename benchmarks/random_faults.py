"""Random faults in real launches of two CPU ranks: is the verdict true, and is anything left?

    python -m benchmarks.random_faults                          # 300, some 20 minutes on two busy cores
    python -m benchmarks.random_faults --only 17 --count 1      # one of them again
    python -m benchmarks.random_faults --log FILE               # a line of JSON for each

A fault is a signal to one process of the launch (a rank, both ranks, zerokit, its guard, the launcher or the
launcher's child) at a moment of the run, with or without trouble of the run folder's disk or of zerokit's
own output. Most ranks import no torch and stand below a stand-in for ``deepspeed``; the last ``--real`` of
them train with DeepSpeed, and the fault strikes in one of its phases.

Ranks leave a word of their own when they come to their end, so what is true is known without zerokit. After
each run nothing may be left: processes, shared memory, temporary files, locks that are held.
"""

from __future__ import annotations

import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import append, options_of
from benchmarks.random_faults_system import (
    command_has,
    command_of,
    fill,
    is_locked,
    is_rank,
    mount,
    take_own_mounts,
)
from tests.faults.conftest import Run, make_stub_python

PROGRAM = Path(__file__).with_name("random_faults_program.py")
SECONDS = 1.2  # of a healthy run's work
HEARTBEAT, HEARTBEAT_REAL = 3.0, 20.0  # a busy machine is quiet for long while it imports torch
LIMIT_SECONDS = 60.0
LIMIT_REAL_SECONDS = 240.0
LEFT_SECONDS = 10.0
KINDS = ("plain", "noisy", "lockstep", "saves", "deaf", "workers", "long", "raises")
PHASES = ("load", "init", "forward", "backward", "step", "save")
MOMENTS = ("launching", "starting", "running", "running", "ending")
TARGETS = ("rank", "rank", "rank", "ranks", "zerokit", "zerokit", "guard", "outer", "inner")
TROUBLES = ("none",) * 8 + ("full", "read-only", "removed", "file", "report-folder", "no-stdout", "no-stderr")
FATAL = ("KILL", "TERM", "INT", "HUP", "QUIT", "SEGV", "ABRT", "BUS", "FPE", "ALRM", "XCPU")
HARMLESS = ("CONT", "URG", "WINCH", "PIPE", "USR1", "USR2")
CATCHABLE = ("TERM", "INT", "HUP", "QUIT")  # by zerokit, which ends the run then
UNWRITABLE = ("full", "read-only", "file", "report-folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is to happen; drawn from its number alone."""

    number: int
    kind: str
    phase: str
    target: str
    rank: int
    signal: str
    moment: str
    delay: float
    trouble: str

    @property
    def ignored(self) -> bool:
        """Whether the ranks take no notice of the signal."""
        return self.signal in HARMLESS or (self.kind == "deaf" and self.signal in ("TERM", "INT", "HUP"))


def draw(number: int, real: bool) -> Fault:
    """The fault of a number."""
    chance = random.Random(number)
    target = chance.choice(TARGETS)
    signals = [*FATAL, *FATAL, *HARMLESS, "STOP", "STOP", "STOP"]
    return Fault(
        number=number, kind="train" if real else chance.choice(KINDS), phase=chance.choice(PHASES),
        target=target, rank=chance.randrange(2), signal=chance.choice(signals),
        moment="phase" if real else chance.choice(MOMENTS), delay=chance.uniform(0, 0.6),
        trouble=chance.choice(TROUBLES),
    )  # fmt: skip


class Injection:
    """One launch with its fault."""

    def __init__(self, fault: Fault, python: Path, folder: Path) -> None:
        self.fault, self.folder = fault, folder
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.mounted = False
        if fault.trouble in ("full", "read-only"):
            mount("tmpfs", self.disk, "size=512k")
            self.mounted = True
        heartbeat = HEARTBEAT_REAL if fault.kind == "train" else HEARTBEAT
        options = ["--num-ranks", "2", "--heartbeat", str(heartbeat), "--grace", "2", "--style", "none"]
        script = [str(PROGRAM), fault.kind, str(SECONDS), *([fault.phase] if fault.kind == "train" else [])]
        arguments = [*options, "--run-dir", str(self.disk / "run"), *script]
        self.limit = LIMIT_REAL_SECONDS if fault.kind == "train" else LIMIT_SECONDS
        self.run = Run(
            python,
            folder,
            arguments,
            {
                "TMPDIR": str(self.temporary),
                "OMP_NUM_THREADS": "1",
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # PyTorch's own, made at its import
            },
        )
        self.run.run_dir = self.disk / "run"
        self.before = done_ranks(folder)
        self.hit = False

    # ---- the fault

    def strike(self) -> None:
        """Wait for the moment, and do it."""
        fault = self.fault
        if fault.moment != "launching":
            awaited = {"starting": "began", "running": "began", "ending": "done", "phase": "there"}[
                fault.moment
            ]
            self._await(
                lambda: len(list(self.folder.glob(f"{awaited}-*"))) >= (1 if awaited == "done" else 2)
            )
        self._make_trouble()
        time.sleep(fault.delay * (0.1 if fault.moment == "ending" else 1))
        for pid in self._targets():
            with_error = signal.Signals[f"SIG{fault.signal}"]
            try:
                os.kill(pid, with_error)
                self.hit = True
            except ProcessLookupError:
                continue
        self.before = done_ranks(self.folder)  # to look for the targets takes a while on a busy machine
        if fault.signal == "STOP" and fault.target not in ("rank", "ranks"):
            time.sleep(2 * fault.delay)  # a terminal's Ctrl-Z, and its fg
            for pid in self._targets():
                os.kill(pid, signal.SIGCONT)

    def _await(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.limit
        while not condition() and self.run.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def _make_trouble(self) -> None:
        run_dir, trouble = self.run.run_dir, self.fault.trouble
        there = run_dir.is_dir()
        if trouble in ("removed", "file"):
            shutil.rmtree(run_dir, ignore_errors=True)
        if trouble == "file" and there:
            run_dir.write_text("not a folder")
        elif trouble == "report-folder" and run_dir.is_dir():
            (run_dir / "report.json").mkdir()
        elif trouble == "full":
            fill(self.disk)
        elif trouble == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", str(self.disk)], check=False, capture_output=True)
        elif trouble == "no-stdout" and self.run.process.stdout is not None:
            self.run.process.stdout.close()
        elif trouble == "no-stderr" and self.run.process.stderr is not None:
            self.run.process.stderr.close()

    def _targets(self) -> list[int]:
        run, target = self.run, self.fault.target
        if target == "zerokit":
            return [run.process.pid] if run.process.poll() is None else []
        if target == "guard":
            return run.children("guard.py")
        launchers = [pid for pid in run.children("bin/deepspeed") if not command_has(pid, "guard.py")]
        inner = set(run.children("--inner")) | set(run.children("deepspeed.launcher.launch"))
        if target in ("outer", "inner"):
            return [pid for pid in {*launchers, *inner} if (pid in inner) is (target == "inner")
                    and not command_has(pid, "guard.py")]  # fmt: skip
        ranks = [0, 1] if target == "ranks" else [self.fault.rank]
        return [pid for rank in ranks for pid in run.children("bootstrap.py") if is_rank(pid, rank)]

    # ---- the truth

    def judge(self) -> list[str]:
        """Everything that was not as it should be; empty: all true, nothing left."""
        try:
            self.code, _, self.err = end(self.run, self.limit)
        except subprocess.TimeoutExpired:
            self.code, self.err = 999, ""
            return [f"zerokit had not ended after {self.limit:.0f} s"]
        deadline = time.monotonic() + LEFT_SECONDS
        while self._left() and time.monotonic() < deadline:
            time.sleep(0.05)
        report = self.report()
        return [*self._left(), *self._untrue(report)]

    def report(self) -> dict[str, object]:
        """``report.json``; empty where there is none."""
        path = self.run.run_dir / "report.json"
        with_text = path.read_text() if path.is_file() else "{}"
        value: dict[str, object] = json.loads(with_text)
        return value

    def _untrue(self, report: dict[str, object]) -> list[str]:
        fault, done, code = self.fault, done_ranks(self.folder), self.code
        found = []
        allowed = self._allowed()
        if fault.target not in ("rank", "ranks", "zerokit") and done == {0, 1}:
            allowed |= {0}  # the launcher may go when nobody needs it any more
        if fault.kind == "raises":
            allowed = allowed - {0} | {10}
        if fault.trouble in UNWRITABLE:
            allowed |= {74, 2} if fault.moment == "launching" else {74}  # 2: no folder can be made there
        if code not in allowed:
            found.append(f"exit code {code}, not one of {sorted(allowed)}")
        if "Traceback" in self.err and ("zerokit/launcher" in self.err or "zerokit/cli" in self.err):
            found.append("a traceback of zerokit's own")
        if (code == 0 or report.get("outcome") == "ok") and done != {0, 1}:
            found.append(f"called ok, but only ranks {sorted(done)} came to their end")
        if report and code >= 0 and code != 74 and report["exit_code"] != code:
            found.append(f"report.json says exit code {report['exit_code']}, the process {code}")
        if not report and code >= 0 and fault.trouble not in UNWRITABLE and fault.moment != "launching":
            found.append("no report.json")
        return [*found, *(self._misnamed(report) if code in (10, 11) and report else [])]

    def _allowed(self) -> set[int]:
        """The exit codes that would be true."""
        fault, number = self.fault, int(signal.Signals[f"SIG{self.fault.signal}"])
        if not self.hit:
            return {0}
        over = {0} if self.before or fault.moment in ("launching", "ending") else set()
        if fault.target in ("rank", "ranks"):
            saves = fault.kind == "saves" and fault.signal == "TERM"
            if fault.ignored or saves:
                return {0}
            return {11 if fault.signal == "STOP" else 10} | over
        if fault.target == "zerokit":
            early = {-number, 128 + number} if fault.moment == "launching" else set()
            if fault.signal == "STOP" or fault.signal in HARMLESS:
                return {0} | (early if fault.signal in ("USR1", "USR2") else set())
            return ({128 + number} if fault.signal in CATCHABLE else {-number}) | early | over
        if fault.signal in (*HARMLESS, "STOP") or (fault.target == "guard" and fault.signal in CATCHABLE):
            return {0} | ({12} if fault.moment == "launching" else set())
        if fault.target == "guard":
            return {12} | over
        # a launcher that is told to end ends its ranks, and they fail; or it is gone itself
        return {12} | over | ({10} if fault.signal in CATCHABLE else set()) | (
            {0} if fault.kind in ("saves", "deaf") else set())  # fmt: skip

    def _misnamed(self, report: dict[str, object]) -> list[str]:
        """Whether the rank and the signal of a failure that the fault caused are named."""
        fault = self.fault
        if fault.target not in ("rank", "ranks") or fault.kind == "raises":
            return []
        named = {fault.rank} if fault.target == "rank" else {0, 1}
        first, hang = report.get("first_failure") or {}, report.get("hang") or {}
        assert isinstance(first, dict) and isinstance(hang, dict)
        if fault.signal == "STOP":
            good = hang.get("kind") == "stopped" and set(hang["ranks"]) <= named
            return [] if good else [f"the stopped rank is not named: {hang or report.get('why')}"]
        number = int(signal.Signals[f"SIG{fault.signal}"])
        good = first.get("rank") in named and (
            first.get("signal") == number or first.get("exit_code") == 128 + number
        )
        return [] if good else [f"the first failure is not the one injected: {first}"]

    # ---- what is left

    def _left(self) -> list[str]:
        found = [f"process {pid} is left: {command_of(pid)[:120]}" for pid in self.run.left()]
        found += [f"{path} is left" for path in self.temporary.iterdir()]
        found += [f"{path} is left" for path in Path("/dev/shm").iterdir()] if OWN_SHARED_MEMORY else []
        locks = [*self.disk.rglob(".zerokit-lock"), *Path(os.environ["XDG_CACHE_HOME"]).rglob("*lock*")]
        return found + [f"{path} is locked" for path in locks if path.is_file() and is_locked(path)]

    def clean_up(self) -> None:
        """End what is left, and take the disk away."""
        self.run.clean_up()
        for path in Path("/dev/shm").iterdir() if OWN_SHARED_MEMORY else ():
            path.unlink()
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.disk)], check=False, capture_output=True)


OWN_SHARED_MEMORY = False


def done_ranks(folder: Path) -> set[int]:
    """Ranks that came to their end in their own way, by their own word."""
    return {int(path.name.rpartition("-")[2]) for path in folder.glob("done-*")}


def end(run: Run, seconds: float) -> tuple[int, str, str]:
    """As :meth:`Run.end`, where its streams may be closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(run.process, name)
        if stream is not None and stream.closed:
            setattr(run.process, name, None)
    code, out, err = run.end(seconds)
    return code, out or "", err or ""


# ---- the whole


def inject(fault: Fault, python: Path) -> dict[str, object]:
    """One run; what was done, what zerokit said, and what was wrong with it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="random-fault-") as name:
        injection = Injection(fault, python, Path(name))
        try:
            injection.strike()
            wrong = injection.judge()
            report = injection.report() if injection.code != 999 else {}
        finally:
            injection.clean_up()
    return {**asdict(fault), "hit": injection.hit, "exit_code": injection.code,
            "outcome": report.get("outcome"), "why": report.get("why"),
            "seconds": round(time.monotonic() - began, 1), "wrong": wrong,
            **({"stderr": injection.err[-3000:]} if wrong else {})}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Inject, print a line for each that is wrong, and the counts."""
    parser = options_of(__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--real", type=int, default=24, help="so many of them, the last, with real DeepSpeed")
    parser.add_argument("--only", type=int, default=0, help="number of the first")
    parser.add_argument("--log", type=Path, help="append a line of JSON for each")
    args = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # ignored below nohup, and inherited
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    global OWN_SHARED_MEMORY
    OWN_SHARED_MEMORY = os.geteuid() == 0 and take_own_mounts()
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="random-faults-") as name:
        os.environ["XDG_CACHE_HOME"] = str(Path(name) / "cache")
        (Path(name) / "venv").mkdir()
        stub = make_stub_python(Path(name) / "venv")
        for number in range(args.only, args.only + args.count):
            real = 300 - args.real <= number < 300
            row = inject(draw(number, real), Path(sys.executable) if real else stub)
            counts["wrong" if row["wrong"] else "true"] += 1
            counts[f"exit {row['exit_code']}"] += 1
            if args.log:
                append(args.log, row)
            if row["wrong"] or args.count == 1:
                print(json.dumps(row, indent=1), flush=True)
    print(dict(counts))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
