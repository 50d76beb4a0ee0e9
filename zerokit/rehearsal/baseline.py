"""A rehearsal beside an earlier one of the same job: what grew, and which module and line holds it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zerokit.errors import InputError, ReportNotWritten
from zerokit.files import write_whole
from zerokit.rehearsal.result import (
    SCHEMA,
    GrownPart,
    Growth,
    HeldAtPeak,
    Rehearsal,
    SinceBaseline,
)
from zerokit.strictload import read_text
from zerokit.values import restored

DEFAULT_GROWTH = "0.2%"
_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_LEAST_BYTES = 2 << 20
"""By less peaks differ from one rehearsal to the next: Transformers loads weights in several threads."""
_LEAST_SHARES = {"reserved": 0.02, "host": 0.01, "step": 0.02}
"""Below which a difference says nothing: what is reserved depends on the order of those threads, step times
on how often Python's functions are entered, which an update of a library changes."""
_MOST_PARTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An earlier rehearsal in a file, as ``--json`` prints it. ``max_growth``: by how much each figure may be
    above it, as a share. ``before``: None: there is no such file yet."""

    path: Path
    max_growth: float
    before: Rehearsal | None

    @classmethod
    def read(cls, path: Path, max_growth: str) -> Baseline:
        """Read a baseline's file, or learn that there is none; ``max_growth``: such as ``2%``. Raises
        InputError: a share that is none; a file that is no complete rehearsal."""
        found = _SHARE.fullmatch(max_growth)
        if found is None:
            raise InputError(f"⟨max_growth⟩ {max_growth}: give a share of the baseline's figure, such as 2%")
        share = float(found.group(1)) / 100
        if not path.exists():
            return cls(path=path, max_growth=share, before=None)
        try:
            document = json.loads(read_text(path))
            before: Rehearsal | None = restored(Rehearsal, document)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            document, before = {}, None
        if before is None or document.get("schema") != SCHEMA or not before.complete:
            raise InputError(f"⟨baseline⟩ {path}: not a complete result of `zerokit rehearse` ({SCHEMA})")
        return cls(path=path, max_growth=share, before=before)

    def compare(self, done: Rehearsal) -> SinceBaseline:
        """A complete rehearsal beside it; where there is none, this one is written. Raises InputError: it is
        of another GPU, or of other ranks. ReportNotWritten: the file cannot be written."""
        before = self.before
        if before is None:
            with _writing(self.path):
                write_whole(self.path, json.dumps(done.to_dict(), indent=1) + "\n")
            return SinceBaseline(path=str(self.path), max_growth=self.max_growth, written=True)
        self._refuse_another(before, done)
        compared = list(_pairs(before, done))
        versions = {
            name: (before.versions.get(name), version)
            for name, version in done.versions.items()
            if before.versions.get(name) != version
        }
        return SinceBaseline(
            path=str(self.path), max_growth=self.max_growth, compared=len(compared), versions=versions,
            grown=tuple(one for one in compared if _is_growth(one, self.max_growth)),
        )  # fmt: skip

    def _refuse_another(self, before: Rehearsal, done: Rehearsal) -> None:
        for words, of in (
            ("GPU", lambda one: one.gpu),
            ("number of GPUs", lambda one: one.gpus),
            ("ranks", lambda one: ", ".join(str(rank.rank) for rank in one.ranks)),
        ):
            if of(before) != of(done):
                raise InputError(
                    f"⟨baseline⟩ {self.path}: {words} {of(before)}, and {of(done)} in this rehearsal: remove "
                    "the file to write a new baseline"
                )


def _pairs(before: Rehearsal, done: Rehearsal) -> Iterator[Growth]:
    """Each figure beside the baseline's, whether it grew or not. A phase that is new is compared with
    nothing."""
    for old, new in zip(before.ranks, done.ranks, strict=True):
        for phase, size in new.phases.items():
            yield Growth(
                measure="peak", phase=phase, rank=new.rank, before=old.phases.get(phase, 0), now=size,
                parts=grown_parts(old.at_peaks.get(phase, ()), new.at_peaks.get(phase, ())),
            )  # fmt: skip
        yield Growth(
            measure="reserved", rank=new.rank, before=old.peak_reserved_bytes, now=new.peak_reserved_bytes
        )
        yield Growth(measure="host", rank=new.rank, before=old.host_bytes, now=new.host_bytes)
    if before.step_seconds is not None and done.step_seconds is not None:
        yield Growth(measure="step", before=before.step_seconds, now=done.step_seconds)


def _is_growth(pair: Growth, share: float) -> bool:
    least = 0 if pair.measure == "step" else _LEAST_BYTES
    least_share = max(share, _LEAST_SHARES.get(pair.measure, 0.0))
    return pair.now - pair.before > max(least, pair.before * least_share)


def grown_parts(old: Iterable[HeldAtPeak], new: Iterable[HeldAtPeak]) -> tuple[GrownPart, ...]:
    """What was live at a peak and is larger now, most first. Lines above it may have come or gone: a file is
    compared as a whole, and the line named that holds most of what it did not hold before."""
    earlier, by_line = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for row in old:
        earlier[_part(row)] += row.bytes
        by_line[row.what, row.module, row.location] += row.bytes
    later = Counter[tuple[str, str, str]]()
    lines: dict[tuple[str, str, str], tuple[int, str]] = {}
    for row in new:
        part = _part(row)
        later[part] += row.bytes
        more = row.bytes - by_line[row.what, row.module, row.location]
        lines[part] = max(lines.get(part, (more, row.location)), (more, row.location))
    grown = [
        GrownPart(what=part[0], module=part[1], location=lines[part][1], bytes=size - earlier[part])
        for part, size in later.items()
        if size > earlier[part]
    ]
    return tuple(sorted(grown, key=lambda one: -one.bytes)[:_MOST_PARTS])


def _part(row: HeldAtPeak) -> tuple[str, str, str]:
    return row.what, row.module, row.location.rpartition(":")[0]


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """In this block a file is written, in a folder that is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ReportNotWritten(f"{path}: cannot be written: {error.strerror or error}") from None


def append_summary(path: Path, done: Rehearsal, name: str) -> None:
    """Append a summary for a pull request in Markdown: the verdict, and each figure that grew beside what
    holds the growth. Raises ReportNotWritten: the file cannot be written."""
    lines, since = [f"### Rehearsal of {name}", "", done.verdict], done.baseline
    if since is not None:
        lines += ["", f"{since.text[0].upper()}{since.text[1:]}."]
    if since is not None and since.grown:
        lines += ["", "| grew | most of it |", "| --- | --- |"]
    for growth in since.grown if since is not None else ():
        parts = "<br>".join(part.text.replace("|", "\\|") for part in growth.parts)
        lines.append(f"| {growth.title} | {parts} |")
    with _writing(path), path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
