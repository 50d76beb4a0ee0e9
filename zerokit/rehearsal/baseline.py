"""A rehearsal beside an earlier one of the same job: what grew, and which module and line holds it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zerokit.errors import InputError
from zerokit.files import write_whole
from zerokit.rehearsal.result import GrownPart, Growth, HeldAtPeak, Rehearsal, SinceBaseline
from zerokit.strictload import read_text

SCHEMA = "zerokit.baseline/1"
_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_LEAST_BYTES = 2 << 20
"""By less peaks differ from one rehearsal to the next: Transformers loads weights in several threads."""
_LEAST_SHARES = {"reserved": 0.02, "host": 0.01, "step": 0.02}
"""Below which a difference says nothing: what is reserved depends on the order of those threads, step times
on how often Python's functions are entered, which an update of a library changes."""
_MOST_PARTS = 5


def _share(text: str) -> float:
    found = _SHARE.fullmatch(text)
    if found is None:
        raise InputError(f"⟨max_growth⟩ {text}: give a share of the baseline's figure, such as 2%")
    return float(found.group(1)) / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An earlier rehearsal in a file.

    Attributes:
        max_growth: by how much each figure may be above it, as a share.
        figures: None: there is no such file yet.
    """

    path: Path
    max_growth: float
    figures: dict[str, Any] | None

    @classmethod
    def read(cls, path: Path, max_growth: str) -> Baseline:
        """Read a baseline's file, or learn that there is none.

        Args:
            max_growth: such as ``2%``.

        Raises:
            InputError: a share that is none; a file that is no baseline.
        """
        share = _share(max_growth)
        if not path.exists():
            return cls(path=path, max_growth=share, figures=None)
        try:
            figures = json.loads(read_text(path))
        except ValueError as error:
            raise InputError(f"⟨baseline⟩ {path}: not JSON: {error}") from None
        if not isinstance(figures, dict) or figures.get("schema") != SCHEMA:
            raise InputError(f"⟨baseline⟩ {path}: not a baseline of `zerokit rehearse` ({SCHEMA})")
        return cls(path=path, max_growth=share, figures=figures)

    def compare(self, done: Rehearsal) -> SinceBaseline:
        """A complete rehearsal beside it; where there is none, this one is written.

        Raises:
            InputError: it is of another GPU, or of other ranks.
        """
        now, before = _figures(done), self.figures
        if before is None:
            write_whole(self.path, json.dumps({"schema": SCHEMA, **now}, indent=1) + "\n")
            return SinceBaseline(path=str(self.path), max_growth=self.max_growth, written=True)
        self._refuse_another(before, now)
        pairs = list(_pairs(before, now))
        grown = tuple(
            Growth(**measure, before=old, now=new, parts=_grown_parts(before, now, measure))
            for measure, old, new in pairs
            if _is_growth(measure["measure"], old, new, self.max_growth)
        )
        versions = {
            name: (before["versions"].get(name), version)
            for name, version in done.versions.items()
            if before["versions"].get(name) != version
        }
        return SinceBaseline(
            path=str(self.path), max_growth=self.max_growth, grown=grown, compared=len(pairs),
            versions=versions,
        )  # fmt: skip

    def _refuse_another(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for name, words in (("gpu", "GPU"), ("gpus", "number of GPUs"), ("ranks", "ranks")):
            old, new = (", ".join(one[name]) if name == "ranks" else one.get(name) for one in (before, now))
            if old != new:
                raise InputError(
                    f"⟨baseline⟩ {self.path}: {words} {old}, and {new} in this rehearsal: remove the file to "
                    "write a new baseline"
                )


def _figures(done: Rehearsal) -> dict[str, Any]:
    """What is compared, and what must be equal for that to make sense."""
    return {
        "gpu": done.gpu,
        "gpus": done.gpus,
        "versions": done.versions,
        "step_seconds": done.step_seconds,
        "ranks": {
            str(rank.rank): {
                "phases": rank.phases,
                "peak_reserved_bytes": rank.peak_reserved_bytes,
                "host_bytes": rank.host_bytes,
                "at_peaks": {name: [asdict(row) for row in rows] for name, rows in rank.at_peaks.items()},
            }
            for rank in done.ranks
        },
    }


def _pairs(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], float, float]]:
    """Each figure that both have, with what it is. A phase that is new is compared with nothing."""
    for number, rank in now["ranks"].items():
        old = before["ranks"][number]
        for phase, size in rank["phases"].items():
            yield {"measure": "peak", "phase": phase, "rank": int(number)}, old["phases"].get(phase, 0), size
        for measure, name in (("reserved", "peak_reserved_bytes"), ("host", "host_bytes")):
            yield {"measure": measure, "rank": int(number)}, old[name], rank[name]
    if before["step_seconds"] is not None and now["step_seconds"] is not None:
        yield {"measure": "step"}, before["step_seconds"], now["step_seconds"]


def _is_growth(measure: str, before: float, now: float, share: float) -> bool:
    least = 0 if measure == "step" else _LEAST_BYTES
    return now - before > max(least, before * max(share, _LEAST_SHARES.get(measure, 0.0)))


def _grown_parts(
    before: Mapping[str, Any], now: Mapping[str, Any], measure: Mapping[str, Any]
) -> tuple[GrownPart, ...]:
    """What was live at a phase's peak and is larger now, most first. Lines above it may have come or gone: a
    file is compared as a whole, and the line named that holds most of what it did not hold before."""
    if measure["measure"] != "peak":
        return ()
    rank, phase = str(measure["rank"]), measure["phase"]
    old = [HeldAtPeak(**row) for row in before["ranks"][rank]["at_peaks"].get(phase, ())]
    new = [HeldAtPeak(**row) for row in now["ranks"][rank]["at_peaks"].get(phase, ())]
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


def markdown(done: Rehearsal, name: str) -> str:
    """A summary for a pull request: the verdict, and each figure that grew beside what holds the growth."""
    since = done.baseline
    lines = [f"### Rehearsal of {name}", "", done.verdict]
    if since is None:
        return "\n".join(lines) + "\n"
    lines += ["", f"{since.text[0].upper()}{since.text[1:]}."]
    if since.grown:
        lines += ["", "| grew | most of it |", "| --- | --- |"]
    for growth in since.grown:
        parts = "<br>".join(part.text.replace("|", "\\|") for part in growth.parts)
        lines.append(f"| {growth.title} | {parts} |")
    return "\n".join(lines) + "\n"
