"""Run as a program: what a Trainer's own arguments class makes of a command line. Nothing is trained.

Reads ``{"classes": ["trl.SFTConfig"], "trl": true, "arguments": [...]}`` from standard input, parses the
arguments with the installed parser and class, and prints ``{"class": …, "values": {…}}`` as its last line:
of each field that holds a number, a text, a switch or nothing.
Options of the script's other classes are unknown here, and left alone.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import fields
from typing import Any


def _class(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute, None)


def parse(order: dict[str, Any]) -> dict[str, Any]:
    """The values that the class would have.

    Raises:
        LookupError: none of the classes, or more than one, holds training arguments.
    """
    from transformers import HfArgumentParser, TrainingArguments, training_args

    # here no GPU is to be seen; whether the ranks' GPUs can is theirs to say
    training_args.is_torch_bf16_gpu_available = lambda: True
    classes = [
        argument_class for name in order["classes"] if isinstance(argument_class := _class(name), type)
    ]
    classes = [
        argument_class
        for argument_class in dict.fromkeys(classes)
        if issubclass(argument_class, TrainingArguments)
    ]
    derived = [
        argument_class
        for argument_class in classes
        if not any(
            argument_class is not subclass and issubclass(subclass, argument_class) for subclass in classes
        )
    ]
    if len(derived) != 1:
        raise LookupError(f"{len(derived)} classes of training arguments")
    parser_class = _class("trl.TrlParser") if order["trl"] else HfArgumentParser
    parser = parser_class((derived[0],), allow_abbrev=False)
    for action in parser._actions:
        action.required = False
    arguments = list(order["arguments"])
    if order["trl"] and "--config" in arguments:
        import yaml

        at = arguments.index("--config")
        with open(arguments[at + 1], encoding="utf-8") as file:  # noqa: PTH123
            body = yaml.safe_load(file)
        del arguments[at : at + 2]
        parser.set_defaults_with_config(**{k: v for k, v in body.items() if k != "env"})
    namespace, _ = parser.parse_known_args(arguments)
    values = vars(namespace)
    try:
        values = vars(derived[0](**values))
    except Exception as error:  # what the options themselves say is still known
        print(f"{derived[0].__name__}: {error}", file=sys.stderr)
    parsed = {one.name: values[one.name] for one in fields(derived[0]) if one.name in values}
    return {
        "class": derived[0].__name__,
        "values": {n: v for n, v in parsed.items() if isinstance(v, bool | int | float | str | None)},
    }


def main() -> None:
    """Parse what standard input says; the answer is the last line of standard output."""
    order = json.load(sys.stdin)
    answer_to = os.dup(1)
    os.dup2(2, 1)  # what is printed on the way is no answer
    result = parse(order)
    with os.fdopen(answer_to, "w") as out:
        out.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
