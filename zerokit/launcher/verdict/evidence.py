"""What is left of a run to judge it by: the ranks' files, their last words, the kernel's OOM-killer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zerokit.files import open_regular
from zerokit.launcher.rank_file import RankLog, Record, find_rank_files, rank_file, read_rank_file
from zerokit.launcher.run_folder import LOGS_FOLDER

_MOST_BAD_LINES = 100
_LAST_WORDS_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """What the ranks left in a run folder: their files, one sentence for each file and line that could not be
    used, and the end of each rank's standard error."""

    logs: dict[int, RankLog]
    problems: list[str]
    last_words: dict[int, str]


def read_rank_files(run_dir: Path, accounts: Mapping[int, list[Record]] | None = None) -> RankFiles:
    """Read every rank's file; ``accounts``, what was read of it while the rank ran, where it is gone."""
    logs: dict[int, RankLog] = {}
    problems: list[str] = []
    bad: list[str] = []
    for path in find_rank_files(run_dir):
        try:
            log = read_rank_file(path)
        except OSError as error:
            problems.append(f"{path.name} cannot be read: {error.strerror}")
            continue
        bad += [str(line) for line in log.bad_lines]
        if log.interleaved():
            pids = ", ".join(str(pid) for pid in dict.fromkeys(log.writers()))
            problems.append(f"{path.name}: two processes (pids {pids}) wrote as rank {log.rank}")
        if log.records:
            logs[log.rank] = log
    problems += bad[:_MOST_BAD_LINES]
    if len(bad) > _MOST_BAD_LINES:
        problems.append(f"{len(bad) - _MOST_BAD_LINES} more bad lines")
    for rank, records in sorted((accounts or {}).items()):
        if rank not in logs:
            path = rank_file(run_dir, rank)
            logs[rank] = RankLog(rank=rank, path=path, records=records)
            problems.append(
                f"{path.name} is gone: removed during the run; what was read of it before is used"
            )
    return RankFiles(logs=logs, problems=problems, last_words=_last_words(run_dir, logs))


def _last_words(run_dir: Path, ranks: Iterable[int]) -> dict[int, str]:
    last_words = {}
    for rank in ranks:
        path = run_dir / LOGS_FOLDER / f"rank-{rank:05d}.err.log"
        with suppress(OSError), open_regular(path, run_dir) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LAST_WORDS_BYTES))
            last_words[rank] = file.read(_LAST_WORDS_BYTES).decode("utf-8", "replace")
    return last_words


def oom_kills() -> int:
    """How often the kernel's OOM-killer struck in this control group; 0 where nobody counts.

    cgroup v2: ``oom_kill`` of memory.events; v1: of memory.oom_control (kernel 4.13 and later).
    """
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, group = line.split(":", 2)
            if number == "0" and not controllers:
                counts = [Path(f"/sys/fs/cgroup{group}/memory.events")]
            elif "memory" in controllers.split(","):
                base = Path("/sys/fs/cgroup/memory")
                counts = [base / group.lstrip("/") / "memory.oom_control", base / "memory.oom_control"]
            else:
                continue
            for path in counts:
                with suppress(OSError):
                    fields = dict(line.split() for line in path.read_text().splitlines())
                    return int(fields.get("oom_kill", 0))
    return 0
