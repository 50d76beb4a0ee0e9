"""Measure the JSON Schemas of ``zerokit check --schema`` on public files and their mutations.

    python -m benchmarks.linter.schemas FOLDER… [--truth FILE]

A good file works for one of its readers, and ``check`` has neither error nor warning on it: its schema must
take it. Mutations of the kinds wrong type, unknown key, value outside an enumeration and number out of range
are made in good files: their schema must refuse them.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jsonschema

from benchmarks.linter.measure import Truth, findings_of, read_corpus
from benchmarks.linter.mutations import of_json
from benchmarks.linter.yaml_mutations import of_yaml
from zerokit.errors import FileInputError
from zerokit.linter.schema import SCHEMAS
from zerokit.strictload import parse_json, parse_yaml

_OF_YAML = {
    "wrong type": ("yaml-processes-text", "yaml-processes-fraction", "yaml-machines-text", "yaml-gpu-list",
                   "yaml-stage-word", "yaml-stage-fraction", "yaml-init-none", "yaml-save-word",
                   "yaml-port-text", "yaml-precision-true"),
    "unknown key": ("yaml-processes-misspelt", "yaml-stage-misspelt", "yaml-unknown-cpu", "yaml-unknown-key",
                    "yaml-nested-at-top"),
    "enumeration": ("yaml-type-lower", "yaml-type-unknown", "yaml-environment", "yaml-precision-fp32",
                            "yaml-precision-float16", "yaml-stage-5", "yaml-offload-gpu", "yaml-launcher",
                            "yaml-rdzv"),
    "range": ("yaml-processes-zero", "yaml-accumulation-zero", "yaml-port-high"),
}  # fmt: skip
_ABSENT = "accelerate-config-file-missing"


def main() -> None:
    """Print the figures, and what they miss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=pathlib.Path, nargs="+")
    parser.add_argument("--truth", type=pathlib.Path)
    options = parser.parse_args()
    checkers = {name: jsonschema.Draft7Validator(make()) for name, make in SCHEMAS.items()}
    for checker in checkers.values():
        checker.check_schema(checker.schema)
    good = alarms = 0
    caught: collections.Counter[str] = collections.Counter()
    drawn: collections.Counter[str] = collections.Counter()
    for folder in options.folders:
        corpus = read_corpus(folder, Truth(options.truth))
        for name, path in corpus.files.items():
            if not corpus.works[name] or not _is_clean(path):
                continue
            good += 1
            is_json = path.parent.name == "ds"
            checker = checkers["deepspeed" if is_json else "accelerate"]
            wrong = list(checker.iter_errors(_value(corpus.texts[name], is_json)))
            alarms += bool(wrong)
            if wrong:
                print("false alarm:", name, wrong[0].message[:100])
                continue
            for kind, mutation, text in _mutations(corpus.texts[name], name, is_json):
                drawn[kind] += 1
                found = not checker.is_valid(_value(text, is_json))
                caught[kind] += found
                if not found:
                    print("missed:", mutation, name)
    print(f"good files: {good}, false alarms: {alarms}")
    for kind, count in drawn.items():
        print(f"{kind}: {caught[kind]} of {count} ({caught[kind] / count:.1%})")
    print(f"all: {caught.total()} of {drawn.total()} ({caught.total() / max(1, drawn.total()):.1%})")


def _is_clean(path: pathlib.Path) -> bool:
    return all(severity == "note" or rule == _ABSENT for _, rule, severity, _ in findings_of(path))


def _value(text: str, is_json: bool) -> Any:
    return parse_json(text, strict=False).value if is_json else parse_yaml(text).value


def _mutations(text: str, name: str, is_json: bool) -> Iterator[tuple[str, str, str]]:
    """Kind of mistake, name and text of every mutation that a schema can see."""
    if is_json:
        for mutation in of_json(json.dumps(_value(text, True)), name):
            if mutation.schema is not None:
                yield mutation.schema, mutation.kind, mutation.text
        return
    for mutation in of_yaml(text):
        kind = next((kind for kind, names in _OF_YAML.items() if mutation.kind in names), None)
        if kind is None:
            continue
        try:
            _value(mutation.text, False)
        except FileInputError:
            continue
        yield kind, mutation.kind, mutation.text


if __name__ == "__main__":
    main()
