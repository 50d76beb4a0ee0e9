"""Measure ``zerokit check`` on files that nobody here wrote, whole and broken.

    python -m benchmarks.linter.measure FOLDER [--mutations N] [--seed S] [--out FILE]

``FOLDER/ds`` holds DeepSpeed JSONs, ``FOLDER/acc`` accelerate YAMLs. Every file is first given to the
readers that might read it (:mod:`benchmarks.linter.truth`); mutations are made of those that work, and
given to the same readers. A mutation is fatal where no reader of the good file accepts it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.linter.mutations import Mutation, of_json
from benchmarks.linter.yaml_mutations import of_yaml
from zerokit.errors import FileInputError
from zerokit.linter.files import check_files
from zerokit.strictload import parse_json

_TRUTH = pathlib.Path(__file__).with_name("truth.py")
_READERS = ("trainer", "accelerate", "raw")


def ask(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The truth of every case."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHONPATH")
    environment = {
        **{k: v for k, v in os.environ.items() if k not in dropped and not k.startswith("ACCELERATE_")},
        "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    asked = "\n".join(json.dumps(case) for case in cases)
    done = subprocess.run(
        [sys.executable, str(_TRUTH)],
        input=asked,
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def world_of(text: str) -> int:
    """A number of ranks for which the batch sizes agree."""
    try:
        config = parse_json(text.removeprefix("﻿"), strict=False).value
    except FileInputError:
        return 8
    if not isinstance(config, dict):
        return 8
    train, micro = config.get("train_batch_size"), config.get("train_micro_batch_size_per_gpu")
    steps = config.get("gradient_accumulation_steps")
    steps = steps if type(steps) is int and steps > 0 else 1
    if type(train) is int and type(micro) is int and micro > 0:
        return max(1, train // (micro * steps))
    if type(train) is int:
        return next((world for world in (8, 4, 2) if train % (world * steps) == 0), 1)
    return 8


def accepted(
    files: dict[str, pathlib.Path], worlds: dict[str, int], readers: dict[str, list[str]]
) -> dict[str, list[str]]:
    """The readers that accept each file."""
    cases = [
        {"id": name, "reader": reader, "path": str(path), "world_size": worlds[name]}
        for name, path in files.items()
        for reader in readers[name]
    ]
    found: dict[str, list[str]] = {name: [] for name in files}
    for answer in ask(cases) if cases else []:
        if answer["ok"]:
            found[answer["id"]].append(answer["reader"])
    return found


def findings_of(path: pathlib.Path) -> list[tuple[int, str, str]]:
    """Line, rule and severity of what is found."""
    return [
        (finding.place.line, finding.rule, finding.severity)
        for file in check_files([str(path)])
        for finding in file.findings
    ]


def judge(
    before: list[tuple[int, str, str]], after: list[tuple[int, str, str]], mutation: Mutation
) -> dict[str, Any]:
    """What the findings that a mutation added are worth."""
    known = collections.Counter((rule, severity) for _, rule, severity in before)
    new = []
    for line, rule, severity in after:
        if known[rule, severity] > 0:
            known[rule, severity] -= 1
        elif severity != "note":
            new.append((line, rule, severity))
    return {
        "silent": not new,
        "error": any(severity == "error" for _, _, severity in after),
        "line": not mutation.lines or not new or any(line in mutation.lines for line, _, _ in new),
        "double": len(new) > 1,
        "new": new,
    }


def main() -> None:
    """Print the figures, and write every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    files = {path.name: path for kind in ("ds", "acc") for path in sorted((options.folder / kind).iterdir())}
    texts = {name: path.read_text(encoding="utf-8", errors="replace") for name, path in files.items()}
    worlds = {name: world_of(text) for name, text in texts.items()}
    readers = {name: list(_READERS) if files[name].parent.name == "ds" else ["launch"] for name in files}
    works = accepted(files, worlds, readers)
    _print_real(files, works)
    mutations = _made(texts, works, files, chance, options.mutations)
    cases = _measured(mutations, files, worlds, works)
    _print_mutations(cases)
    if options.out:
        options.out.write_text(json.dumps(cases, indent=1))


def _print_real(files: dict[str, pathlib.Path], works: dict[str, list[str]]) -> None:
    counts: collections.Counter[str] = collections.Counter()
    for name, path in files.items():
        failed = any(severity == "error" for _, _, severity in findings_of(path))
        counts[f"{'works' if works[name] else 'fails'}, {'error' if failed else 'no error'}"] += 1
    print("real files:", dict(counts))


def _made(
    texts: dict[str, str],
    works: dict[str, list[str]],
    files: dict[str, pathlib.Path],
    chance: random.Random,
    wanted: int,
) -> list[tuple[str, Mutation]]:
    """Mutations of clean files that work, spread over the kinds."""
    by_kind: dict[str, list[tuple[str, Mutation]]] = collections.defaultdict(list)
    for name, readers in works.items():
        clean = readers and not any(severity == "error" for _, _, severity in findings_of(files[name]))
        if clean:
            made = of_json(texts[name], chance) if files[name].parent.name == "ds" else of_yaml(texts[name])
            for mutation in made:
                by_kind[mutation.kind].append((name, mutation))
    drawn: list[tuple[str, Mutation]] = []
    each = wanted // len(by_kind) + 1
    for kind in sorted(by_kind):
        drawn += chance.sample(by_kind[kind], min(each, len(by_kind[kind])))
    print(f"mutations: {len(drawn)} of {len(by_kind)} kinds, in {len({name for name, _ in drawn})} files")
    return drawn


def _measured(
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
        still = accepted(broken, world, readers)
        cases = []
        for number, (name, mutation) in enumerate(mutations):
            path = broken[str(number)]
            good = path.with_name(f"good{files[name].suffix}")
            good.write_text(files[name].read_text(encoding="utf-8"), encoding="utf-8")
            result = judge(findings_of(good), findings_of(path), mutation)
            fatal = not still[str(number)]
            cases.append(
                {"kind": mutation.kind, "file": name, "fatal": fatal, "at": sorted(mutation.lines), **result}
            )
    return cases


def _print_mutations(cases: list[dict[str, Any]]) -> None:
    found = [case for case in cases if not case["silent"]]
    fatal = [case for case in cases if case["fatal"]]

    def share(some: list[dict[str, Any]], key: str, wanted: bool) -> str:
        count = sum(case[key] is wanted for case in some)
        return f"{count} of {len(some)} ({count / max(1, len(some)):.1%})"

    print("silent:", share(cases, "silent", True))
    print("fatal and error:", share(fatal, "error", True))
    print("exact line:", share(found, "line", True))
    print("two findings:", share(found, "double", True))


if __name__ == "__main__":
    main()
