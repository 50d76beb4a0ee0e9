"""Strict reading of YAML and JSON, with the location of every key, for files that people write."""

from __future__ import annotations

from zerokit.strictload.document import (
    BYTE_ORDER_MARK,
    MAX_BYTES,
    Document,
    Lines,
    Location,
    Path,
    Problem,
    decode,
    read_text,
)
from zerokit.strictload.jsontext import load_json, parse_json
from zerokit.strictload.yamltext import load_yaml, parse_yaml

__all__ = [
    "BYTE_ORDER_MARK",
    "MAX_BYTES",
    "Document",
    "Lines",
    "Location",
    "Path",
    "Problem",
    "decode",
    "load_json",
    "load_yaml",
    "parse_json",
    "parse_yaml",
    "read_text",
]
