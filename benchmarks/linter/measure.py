"""Measure ``zerokit check`` on files that nobody here wrote, whole and broken.

    python -m benchmarks.linter.measure FOLDER [--mutations N] [--seed S] [--truth FILE] [--out FILE]

``FOLDER/ds`` holds DeepSpeed JSONs, ``FOLDER/acc`` accelerate YAMLs. Every file is first given to the
readers that might read it (:mod:`benchmarks.linter.truth`); mutations are made of those that work, and
given to the same readers. A mutation is fatal where no reader of the good file accepts it. What the readers
said is kept in the file that ``--truth`` names, and not asked again.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.linter.anything import of_any_yaml, of_anything
from benchmarks.linter.mutations import Mutation, of_json
from benchmarks.linter.yaml_mutations import of_yaml
from zerokit.errors import FileInputError
from zerokit.linter.files import check_files
from zerokit.strictload import parse_json

_TRUTH = pathlib.Path(__file__).with_name("truth.py")
READERS = ["trainer", "accelerate", "raw"]


class Truth:
    """What the readers say of texts, remembered in a file."""

    def __init__(self, file: pathlib.Path | None) -> None:
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []
        self._known: dict[str, dict[str, Any]] = dict(json.loads(line) for line in lines)

    def of(self, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The answer to every case: ``ok``, and what was built or the error."""
        keys = [_key(case) for case in cases]
        new = {key: case for key, case in zip(keys, cases, strict=True) if key not in self._known}
        for key, answer in zip(new, ask(list(new.values())) if new else (), strict=True):
            self._known[key] = answer
            if self._file:
                with self._file.open("a", encoding="utf-8") as handle:
                    handle.write(json.dumps([key, answer]) + "\n")
        return [
            {**self._known[key], "id": case["id"], "reader": case["reader"]}
            for key, case in zip(keys, cases, strict=True)
        ]


def _key(case: dict[str, Any]) -> str:
    path = pathlib.Path(case["path"])
    what = f"{case['reader']} {case['world_size']} {path.suffix} ".encode() + path.read_bytes()
    return hashlib.sha256(what).hexdigest()


def ask(cases: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The truth of every case, as it comes."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHONPATH")
    environment = {
        **{k: v for k, v in os.environ.items() if k not in dropped and not k.startswith("ACCELERATE_")},
        "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryFile("w+", encoding="utf-8") as asked,
    ):
        environment["TMPDIR"] = scratch
        asked.write("\n".join(json.dumps(case) for case in cases))
        asked.seek(0)
        command = [sys.executable, str(_TRUTH)]
        with subprocess.Popen(
            command,
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield json.loads(line)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")


def world_of(text: str) -> int:
    """A number of ranks for which the batch sizes agree."""
    try:
        config = parse_json(text.removeprefix("﻿"), strict=False).value
    except FileInputError:
        return 8
    if not isinstance(config, dict):
        return 8
    sequence = config.get("sequence_parallel_size")
    ranks = _data_parallel(config)
    return ranks * sequence if type(sequence) is int and 0 < sequence < 1000 else ranks


def _data_parallel(config: dict[str, Any]) -> int:
    train, micro = config.get("train_batch_size"), config.get("train_micro_batch_size_per_gpu")
    steps = config.get("gradient_accumulation_steps")
    steps = steps if type(steps) is int and steps > 0 else 1
    if type(train) is int and type(micro) is int and micro > 0:
        return max(1, train // (micro * steps))
    if type(train) is int:
        return next((world for world in (8, 4, 2) if train % (world * steps) == 0), 1)
    return 8


def accepted(
    truth: Truth,
    files: dict[str, pathlib.Path],
    worlds: dict[str, int],
    readers: dict[str, list[str]],
    *,
    first: bool = False,
) -> dict[str, list[str]]:
    """The readers that accept each file; with ``first`` no other is asked after one that does."""
    found: dict[str, list[str]] = {name: [] for name in files}
    rounds = range(max(map(len, readers.values()), default=0))
    for number in rounds if first else [None]:
        cases = [
            {"id": name, "reader": reader, "path": str(path), "world_size": worlds[name]}
            for name, path in files.items()
            for position, reader in enumerate(readers[name])
            if number is None or (position == number and not found[name])
        ]
        for answer in truth.of(cases):
            if answer["ok"]:
                found[answer["id"]].append(answer["reader"])
    return found


Found = tuple[int, str, str, str]


def findings_of(path: pathlib.Path) -> list[Found]:
    """Line, rule, severity and message of what is found."""
    return [
        (finding.location.line, finding.rule, finding.severity, finding.message)
        for file in check_files([str(path)])
        for finding in file.findings
    ]


def judge(before: list[Found], after: list[Found], mutation: Mutation) -> dict[str, Any]:
    """What the findings that a mutation added are worth."""
    same = collections.Counter((rule, message) for _, rule, _, message in before)
    changed = []
    for found in after:
        if same[found[1], found[3]] > 0:
            same[found[1], found[3]] -= 1
        else:
            changed.append(found)
    left = collections.Counter(rule for rule, _ in same.elements())
    new = []
    for line, rule, severity, _ in changed:  # the same finding in other words: a number in it has changed
        if left[rule] > 0 and line not in mutation.lines:
            left[rule] -= 1
        elif severity != "note":
            new.append((line, rule, severity))
    return {
        "silent": not new,
        "error": any(severity == "error" for _, _, severity, _ in after),
        "line": not mutation.lines or not new or any(line in mutation.lines for line, _, _ in new),
        "double": len(new) > 1,
        "new": new,
    }


class Corpus(NamedTuple):
    """The files of a folder, by name: where they are, what they hold, and who reads them.

    ``worlds``: ranks that their batch sizes need; ``readers``: those to ask; ``works``: those that accept.
    """

    files: dict[str, pathlib.Path]
    texts: dict[str, str]
    worlds: dict[str, int]
    readers: dict[str, list[str]]
    works: dict[str, list[str]]


def read_corpus(folder: pathlib.Path, truth: Truth) -> Corpus:
    """What ``ds/`` and ``acc/`` of a folder hold, with the answers of the readers."""
    files = {path.name: path for kind in ("ds", "acc") for path in sorted((folder / kind).iterdir())}
    texts = {name: path.read_text(encoding="utf-8", errors="replace") for name, path in files.items()}
    worlds = {name: world_of(text) for name, text in texts.items()}
    readers = {name: READERS if path.parent.name == "ds" else ["launch"] for name, path in files.items()}
    works = accepted(truth, files, worlds, readers)
    left = {name: path for name, path in files.items() if path.parent.name == "ds" and not works[name]}
    works |= accepted(truth, left, worlds, {name: ["lightning"] for name in left})
    return Corpus(files, texts, worlds, readers, works)


def main() -> None:
    """Print the figures, and write every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--truth", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    truth = Truth(options.truth)
    files, texts, worlds, _, works = read_corpus(options.folder, truth)
    _print_real(files, works)
    mutations = mutations_of(texts, works, files, options.seed, options.mutations)
    cases = _measured(truth, mutations, files, worlds, works)
    _print_mutations(cases)
    if options.out:
        options.out.write_text(json.dumps(cases, indent=1))


def _print_real(files: dict[str, pathlib.Path], works: dict[str, list[str]]) -> None:
    counts: collections.Counter[str] = collections.Counter()
    for name, path in files.items():
        found = findings_of(path)
        if any(rule == "not-a-configuration" for _, rule, _, _ in found):
            counts["not a configuration"] += 1
            continue
        failed = any(severity == "error" for _, _, severity, _ in found)
        counts[f"{'works' if works[name] else 'fails'}, {'error' if failed else 'no error'}"] += 1
    print("real files:", dict(counts))


def _of(text: str, kind: str, seed: str) -> Iterator[Mutation]:
    if kind == "ds":
        yield from of_json(text, seed)
        yield from of_anything(text, seed)
    else:
        yield from of_yaml(text)
        yield from of_any_yaml(text, seed)


def mutations_of(
    texts: dict[str, str],
    works: dict[str, list[str]],
    files: dict[str, pathlib.Path],
    seed: int,
    wanted: int,
) -> list[tuple[str, Mutation]]:
    """Mutations of clean files that work, spread over the kinds."""
    by_kind: dict[str, list[tuple[str, Mutation]]] = collections.defaultdict(list)
    for name, readers in works.items():
        clean = readers and not any(severity == "error" for _, _, severity, _ in findings_of(files[name]))
        if clean:
            for mutation in _of(texts[name], files[name].parent.name, f"{seed} {name}"):
                by_kind[mutation.kind].append((name, mutation))
    drawn: list[tuple[str, Mutation]] = []
    per_kind = wanted // len(by_kind) + 1
    for kind in sorted(by_kind):
        chance = random.Random(f"{seed} {kind}")
        drawn += chance.sample(by_kind[kind], min(per_kind, len(by_kind[kind])))
    print(f"mutations: {len(drawn)} of {len(by_kind)} kinds, in {len({name for name, _ in drawn})} files")
    return drawn


def _measured(
    truth: Truth,
    mutations: list[tuple[str, Mutation]],
    files: dict[str, pathlib.Path],
    worlds: dict[str, int],
    works: dict[str, list[str]],
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        broken = {}
        for number, (name, mutation) in enumerate(mutations):
            broken[str(number)] = pathlib.Path(folder, f"{number}{files[name].suffix}")
            broken[str(number)].write_text(mutation.text, encoding="utf-8")
        readers = {str(number): works[name] for number, (name, _) in enumerate(mutations)}
        world = {str(number): worlds[name] for number, (name, _) in enumerate(mutations)}
        still = accepted(truth, broken, world, readers, first=True)
        cases = []
        for number, (name, mutation) in enumerate(mutations):
            path = broken[str(number)]
            good = path.with_name(f"good{files[name].suffix}")
            good.write_text(files[name].read_text(encoding="utf-8"), encoding="utf-8")
            result = judge(findings_of(good), findings_of(path), mutation)
            fatal = not still[str(number)]
            cases.append(
                {
                    "kind": mutation.kind,
                    "file": name,
                    "fatal": fatal,
                    "sure": mutation.sure or fatal,
                    "at": sorted(mutation.lines),
                    **result,
                }
            )
    return cases


def _print_mutations(cases: list[dict[str, Any]]) -> None:
    found = [case for case in cases if not case["silent"]]
    sure = [case for case in cases if case["sure"]]
    fatal = [case for case in cases if case["fatal"]]

    def share(some: list[dict[str, Any]], key: str, wanted: bool) -> str:
        count = sum(case[key] is wanted for case in some)
        return f"{count} of {len(some)} ({count / max(1, len(some)):.1%})"

    print("silent:", share(sure, "silent", True))
    print("fatal and error:", share(fatal, "error", True))
    print("exact line:", share(found, "line", True))
    print("two findings:", share(found, "double", True))


if __name__ == "__main__":
    main()
