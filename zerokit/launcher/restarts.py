"""Coming back after a failure: from which checkpoint, and how the script is told of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from zerokit.errors import InputError
from zerokit.launcher.checkpoint import Checkpoint, newest_checkpoint
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.rank_file import RankLog
from zerokit.report.schema import RunReport

if TYPE_CHECKING:
    from zerokit.launcher.launch import Launch

_WORTH_IT = ("rank_failed", "hung", "launcher_lost")
_USUAL_OPTION = "--resume_from_checkpoint"
_FIELDS = ("{folder}", "{tag}")


class NoRestart(Exception):
    """Why a run is not started again."""


def check_resume_option(option: str | None) -> None:
    """Refuse an option that would not say where the checkpoint is. Raises InputError: it has placeholders
    that are unknown."""
    if option is None:
        return
    rest = option
    for field in _FIELDS:
        rest = rest.replace(field, "")
    if "{" in rest or "}" in rest:
        raise InputError(f"⟨resume_option⟩ {option}: only {' and '.join(_FIELDS)} can be filled in")


def why_not(report: RunReport, before: RunReport | None) -> str | None:
    """Why a restart would be of no use; ``before``: of the attempt before, from the same checkpoint."""
    if report.outcome not in _WORTH_IT:
        return f"the outcome is {report.outcome}"
    if report.outcome == "launcher_lost" and not any(rank.reported for rank in report.ranks):
        return "no rank started"
    first, earlier = report.first_failure, before.first_failure if before is not None else None
    if first is None or earlier is None or first.kind != "exception":
        return None
    if (first.rank, first.error) == (earlier.rank, earlier.error):
        return f"the same error came twice, and no checkpoint in between: {first.error}"
    return None


def resumed(options: LaunchOptions, checkpoint: Checkpoint, script_options: Iterable[str]) -> LaunchOptions:
    """The launch that goes on from a checkpoint, with the first one's options and those that the script's
    parser knows. Raises NoRestart: nobody says how the script takes a checkpoint."""
    options = replace(options, point=None)
    if checkpoint.kind == "trainer" and options.resume_option is None:
        return replace(options, resume_from=str(checkpoint.path))
    option = options.resume_option
    if option is None and checkpoint.kind == "accelerate" and _USUAL_OPTION in set(script_options):
        option = _USUAL_OPTION
    if option is None:
        raise NoRestart(
            f"{options.target.name} wrote {checkpoint}, and it is not known how the script takes one: "
            "name its option with ⟨resume_option⟩ (an empty one, where it finds its checkpoint by itself)"
        )
    # What the user gave stays, as it cannot be told whether a word after an option is its value: parsers take
    # the last of the same option.
    given = options.target.arguments
    end = given.index("--") if "--" in given else len(given)
    told = (*given[:end], *_words(option, checkpoint), *given[end:])
    return replace(options, target=replace(options.target, arguments=told))


def by_hand(launch: Launch, logs: Mapping[int, RankLog]) -> str | None:
    """Where the newest checkpoint of an ended run is, and how its user goes on from it; None: it has none."""
    checkpoint = newest_checkpoint(logs, launch.expected_ranks)
    if checkpoint is None:
        return None
    option = launch.options.resume_option
    if option is None and launch.reads_checkpoint and checkpoint.kind != "deepspeed":
        option = _USUAL_OPTION
    if option is not None:
        words = shlex.join(_words(option, checkpoint))
        how = f"add {words} to the script's arguments" if words else "run the same command again"
    elif checkpoint.kind == "trainer":
        how = f'call trainer.train(resume_from_checkpoint="{checkpoint.path}")'
    elif checkpoint.kind == "accelerate":
        how = f'call accelerator.load_state("{checkpoint.path}")'
    else:
        tag = f', tag="{checkpoint.tag}"' if checkpoint.tag is not None else ""
        how = f'call engine.load_checkpoint("{checkpoint.folder}"{tag})'
    return f"Newest checkpoint: {checkpoint}; to go on from it, {how}"


def _words(option: str, checkpoint: Checkpoint) -> list[str]:
    """What tells the script of a checkpoint; none where it finds it by itself."""
    words = option.split()
    filled = [
        w.replace("{folder}", str(checkpoint.folder)).replace("{tag}", checkpoint.tag or "") for w in words
    ]
    if not words or filled != words:
        return filled
    if option.endswith("="):
        return [*words[:-1], f"{words[-1]}{checkpoint.folder}"]
    return [*words, str(checkpoint.folder)]
