"""A checkpoint that a run wrote, and another that begins there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.checkpoints import converting
from zerokit.checkpoints.files import ZeroFiles
from zerokit.errors import InputError
from zerokit.fields import Say
from zerokit.launcher.rank_file import RankLog
from zerokit.units import counted
from zerokit.values import frozen_dataclass

_KINDS = ("trainer", "accelerate", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One that every rank finished writing; ``step``: the optimizer step of the first rank that wrote it.

    ``kind``: who wrote it, ``trainer``, ``accelerate`` (``save_state``) or ``deepspeed``
    (``save_checkpoint``), whose ``tag`` is the folder inside. ``folder``: as it was given to the call; of a
    Trainer the ``checkpoint-N`` itself.
    """

    kind: str
    folder: Path
    tag: str | None
    step: int

    @property
    def path(self) -> Path:
        """Where its files are."""
        return self.folder / self.tag if self.tag is not None else self.folder

    def __str__(self) -> str:
        return f"{self.path} (step {self.step})"


def newest_checkpoint(logs: Mapping[int, RankLog], expected_ranks: int) -> Checkpoint | None:
    """The last one that every rank has told of, and that is still there."""
    by_rank = [_recorded_checkpoints(logs[rank].records) for rank in sorted(logs)]
    if not by_rank or len(by_rank) < expected_ranks:
        return None
    of_others = [{(one.path, one.step) for one in rest} for rest in by_rank[1:]]
    common = (one for one in reversed(by_rank[0]) if all((one.path, one.step) in them for them in of_others))
    return next(filter(_is_whole, common), None)


def _recorded_checkpoints(records: Iterable[Mapping[str, Any]]) -> list[Checkpoint]:
    """A later one of the same place stands for the earlier: it was overwritten."""
    by_path: dict[Path, Checkpoint] = {}
    for record in records:
        folder, tag, kind = record.get("folder"), record.get("tag"), record.get("kind")
        if record.get("type") != "checkpoint" or not isinstance(folder, str) or kind not in _KINDS:
            continue
        step = record.get("step")
        checkpoint = Checkpoint(
            kind=str(kind),
            folder=Path(folder),
            tag=tag if isinstance(tag, str) else None,
            step=step if isinstance(step, int) else 0,
        )
        by_path.pop(checkpoint.path, None)
        by_path[checkpoint.path] = checkpoint
    return list(by_path.values())


def _is_whole(checkpoint: Checkpoint) -> bool:
    try:
        names = {path.name for path in checkpoint.path.iterdir()}
    except OSError:
        return False
    if checkpoint.kind != "trainer":
        return bool(names)
    states = any(name.startswith(("global_step", "optimizer")) for name in names)  # not save_only_model
    return states and "trainer_state.json" in names


@frozen_dataclass
class ResumePoint:
    """A checkpoint of another run, which ``ranks`` wrote; ``zero``: its files where ZeRO divided it."""

    checkpoint: Checkpoint
    ranks: int
    zero: ZeroFiles | None

    def to_convert(self, ranks: int) -> ZeroFiles | None:
        """What has to be converted for so many ranks; None: nothing."""
        return self.zero if ranks != self.ranks else None

    def make_ready(self, ranks: int, say: Say, *, dry_run: bool = False) -> None:
        """Convert what has to be, and say first what that needs. Raises InputError: it cannot go on with so
        many ranks. NothingFits: there is no room to convert it."""
        say(f"resumes {self.checkpoint.path}, which {counted(self.ranks, 'rank')} wrote, on {ranks}")
        if ranks == self.ranks:
            return
        self._check_schedulers(ranks)
        files = self.to_convert(ranks)
        if files is None:
            return
        facts = converting.zero_facts(files)
        reason = converting.why_not_universal(files, facts)
        if reason is not None:
            raise self._refused(reason)
        if facts["frozen"]:
            say("frozen weights are those that the script loads: they are not in a converted checkpoint")
        if files.is_converted:
            say(f"it was converted before: {files.universal}")
            return
        needs = converting.to_universal_needs(files, facts)
        what = f"converting it into a universal checkpoint, {files.universal},"
        say(f"{what} takes {needs}")
        needs.check(what, files.folder.parent)
        if not dry_run:
            converting.make_universal(files, needs.workers)

    def _check_schedulers(self, ranks: int) -> None:
        """Accelerate counts a prepared schedule on once for each rank (1.15, scheduler.py:72), unless it was
        told not to: what another number of ranks wrote stands elsewhere in it."""
        if self.checkpoint.kind != "accelerate":
            return
        steps = converting.scheduler_steps(self.checkpoint.path)
        if any(one != self.checkpoint.step for one in steps):
            raise self._refused(
                f"Accelerate has counted its learning rate schedule {steps[0]} on in {self.checkpoint.step} "
                f"steps, once for each rank, and would go on at another place of it on {ranks} (with "
                "Accelerator(step_scheduler_with_optimizer=False) the script counts it itself)"
            )

    def _refused(self, reason: str) -> InputError:
        return InputError(
            f"⟨resume⟩ {self.checkpoint.path}: cannot go on with another number of ranks: {reason}; resume "
            f"it on {self.ranks}"
        )
