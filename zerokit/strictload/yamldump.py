"""Writing YAML that :mod:`zerokit.strictload.yamltext` and PyYAML both read back as the same values."""

from __future__ import annotations

import math
import os
import pathlib
import tempfile
from typing import Any

import yaml

from zerokit.errors import FileInputError, InputError
from zerokit.strictload.yamltext import parse_yaml


class _Dumper(yaml.SafeDumper):
    """Safe dumper that quotes text which YAML 1.2 would read as a number, and never writes aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if len(text) > 8 and text[0].isalpha() and text.isprintable():
        pass  # longer than any word that means something in YAML: what is to be quoted, PyYAML quotes
    elif not text.isprintable():
        style = '"'  # line breaks of every kind, written as escapes
    else:
        try:
            if not isinstance(parse_yaml(f"- {text}").value[0], str):
                style = "'"
        except FileInputError:
            pass  # PyYAML quotes what is not plain text
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _float(dumper: yaml.SafeDumper, number: float) -> yaml.ScalarNode:
    if not math.isfinite(number):
        raise InputError(f"{number} cannot be written: only finite numbers can")
    text = repr(number)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")  # 1e-05 is text to PyYAML
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(float, _float)


def dump_yaml(value: Any, *, header: str = "") -> str:
    """YAML text of plain data, keys in their order, below ``header`` as comment lines.

    Raises:
        InputError: NaN, infinity, or an object that is not plain data.
    """
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    try:
        return comment + yaml.dump(
            value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100
        )
    except yaml.YAMLError as error:
        raise InputError(f"cannot be written as YAML: {error}") from None


def write_text_atomically(path: pathlib.Path, text: str) -> None:
    """Write ``path`` so that a reader sees the old file or the whole new one, never a part.

    Raises:
        OSError: the folder cannot be written; an older file is untouched.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # noqa: PTH101 - mkstemp made it 0600
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise
