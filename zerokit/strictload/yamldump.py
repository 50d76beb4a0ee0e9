"""Writing YAML that :mod:`zerokit.strictload.yamltext` and PyYAML both read back as the same values."""

from __future__ import annotations

import math
from typing import Any

import yaml

from zerokit.errors import FileInputError, InputError
from zerokit.strictload.yamltext import parse_yaml


class _PythonDumper(yaml.SafeDumper):
    """Safe dumper that quotes text which YAML 1.2 would read as a number, and never writes aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_LONGEST_KEY = 100
_DUMPERS: list[Any] = [_PythonDumper]
if hasattr(yaml, "CSafeDumper"):

    class _CDumper(yaml.CSafeDumper):
        """The same through libyaml: a tenth of the time."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    _DUMPERS.append(_CDumper)


def _text(dumper: Any, text: str) -> yaml.ScalarNode:
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
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


def _float(dumper: Any, number: float) -> yaml.ScalarNode:
    if not math.isfinite(number):
        raise InputError(f"{number} cannot be written: only finite numbers can")
    text = repr(number)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")  # 1e-05 is text to PyYAML
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:float", text)
    return node


for _dumper in _DUMPERS:
    _dumper.add_representer(str, _text)
    _dumper.add_representer(float, _float)


def _alike(value: Any) -> bool:
    """Whether both dumpers write ``value`` to the letter alike.

    They differ in escapes, in characters beyond U+FFFF, and in when a key is too long for one line.
    """
    if isinstance(value, str):
        return value.isprintable() and (not value or max(value) <= "\uffff")
    if isinstance(value, dict):
        keys = all(isinstance(key, str) and 0 < len(key) < _LONGEST_KEY and _alike(key) for key in value)
        return keys and all(map(_alike, value.values()))
    return not isinstance(value, list) or all(map(_alike, value))


def dump_yaml(value: Any, *, header: str = "") -> str:
    """YAML text of plain data, keys in their order, below ``header`` as comment lines. Raises InputError:
    NaN, infinity, or an object that is not plain data."""
    dumper = _DUMPERS[-1] if isinstance(value, dict | list) and _alike(value) else _PythonDumper
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    try:
        return comment + yaml.dump(
            value, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100
        )
    except yaml.YAMLError as error:
        raise InputError(f"cannot be written as YAML: {error}") from None
