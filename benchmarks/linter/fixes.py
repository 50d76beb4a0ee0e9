"""Measure ``zerokit check --fix`` on public files, whole and broken: does it ever change what runs?

    python -m benchmarks.linter.fixes FOLDER [--mutations N] [--seed S] [--truth FILE]

Every file of ``FOLDER`` (see :mod:`benchmarks.linter.measure`) and every mutation is fixed. Where that
changed the text, the readers are given both: a reader that took the file before must build the same after.
A second ``--fix`` must change nothing, and comments and the order of the keys must be as they were.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
import tempfile
from typing import Any

from benchmarks.linter.measure import Truth, mutations_of, read_corpus
from zerokit.linter.files import check_files
from zerokit.linter.fix import fix_file

_COMMENT = re.compile(r"(?:^|[\s,])(?:#|//).*$", re.MULTILINE)
_KEY = re.compile(r"""^[\s{]*["']?([\w. -]+?)["']?\s*:""", re.MULTILINE)


def main() -> None:
    """Print the figures, and each file whose meaning changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--mutations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--truth", type=pathlib.Path)
    options = parser.parse_args()
    truth = Truth(options.truth)
    files, texts, worlds, readers, works = read_corpus(options.folder, truth)
    drawn = mutations_of(texts, works, files, options.seed, options.mutations)
    inputs = [*texts.items(), *((name, mutation.text) for name, mutation in drawn)]
    with tempfile.TemporaryDirectory() as folder:
        pairs = []
        counts = dict.fromkeys(("files", "changed", "not idempotent", "comment lost", "order changed"), 0)
        for number, (name, text) in enumerate(inputs):
            before = pathlib.Path(folder, f"{number}{files[name].suffix}")
            after = before.with_stem(f"{number}-fixed")
            for path in (before, after):
                path.write_text(text, encoding="utf-8", newline="")
            fix(after)
            once = after.read_text(encoding="utf-8")
            fix(after)
            counts["files"] += 1
            counts["changed"] += once != text
            counts["not idempotent"] += after.read_text(encoding="utf-8") != once
            counts["comment lost"] += not set(_COMMENT.findall(text)) <= set(_COMMENT.findall(once))
            counts["order changed"] += _kept_keys(text, once) != _kept_keys(once, text)
            if once != text:
                pairs.append((name, before, after))
        print(counts)
        _compare(truth, pairs, worlds, readers)


def fix(path: pathlib.Path) -> None:
    """What ``check --fix FILE`` writes."""
    for file in check_files([str(path)]):
        if file.path == str(path):
            fix_file(file)


def _kept_keys(text: str, other: str) -> list[str]:
    """Keys of ``text`` in their order, without those that ``other`` has in another number."""
    keys, others = (collections.Counter(_KEY.findall(one)) for one in (text, other))
    return [key for key in _KEY.findall(text) if keys[key] == others[key]]


def _compare(
    truth: Truth,
    pairs: list[tuple[str, pathlib.Path, pathlib.Path]],
    worlds: dict[str, int],
    readers: dict[str, list[str]],
) -> None:
    cases = [
        {"id": str(path), "reader": reader, "path": str(path), "world_size": worlds[name]}
        for name, *both in pairs
        for reader in readers[name]
        for path in both
    ]
    answers = truth.of(cases)
    same = runs_now = 0
    for first in range(0, len(answers), 2):
        before, after = answers[first : first + 2]
        if not before["ok"]:
            runs_now += after["ok"]
        elif after["ok"] and _meaning(before) == _meaning(after):
            same += 1
        else:
            print("changed:", before["reader"], before["id"], after.get("message", ""))
            print(pathlib.Path(before["id"]).read_text(encoding="utf-8"))
    print(f"built the same before and after: {same}; failed before and runs now: {runs_now}")


# zero/config.py: its value moves to gather_16bit_weights_on_model_save, and what prints it loses the field
_EMPTIED = re.compile(r"stage3_gather_fp16_weights_on_model_save=\w+, ")


def _meaning(answer: dict[str, Any]) -> str:
    """What was built, whatever the file is called."""
    said = json.dumps({key: value for key, value in answer.items() if key != "id"}, sort_keys=True)
    said = _EMPTIED.sub("", said)
    return re.sub(r"[^\"' ]*/\d+(-fixed)?\.\w+", "FILE", said)


if __name__ == "__main__":
    main()
