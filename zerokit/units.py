"""Text to numbers and back: parameter counts, bytes, seconds. The only place that converts.

Bytes are ``int``. ``GB`` is 10**9 bytes and ``GiB`` is 2**30: they never mix.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from zerokit.errors import InputError

MIB = 1 << 20
GIB = 1 << 30

_MOST_DIGITS = 9  # of a size in GiB: a byte shows
_MAX_TEXT = 64  # longer than any number a person writes; stops 5000-digit input early
_NUMBER = re.compile(r"(?P<number>\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d{1,3})?|\.\d+)\s*(?P<suffix>[A-Za-z]*)")

_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+")
_BYTES = re.compile("[kmgt]i?b")
_COUNT_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_BYTE_SUFFIXES = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "pib": 1 << 50,
}  # fmt: skip


def _split(text: object, what: str, example: str) -> tuple[float | int, str]:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise InputError(f"{what}: expected a number such as {example}, got {text!r}")
    quoted = str(text) if not isinstance(text, int) or abs(text) < 10**30 else "a number that long"
    quoted = quoted.strip()
    if len(quoted) > _MAX_TEXT:
        raise InputError(f"{what}: {quoted[:20]}… is too long for a number; use for example {example}")
    match = _NUMBER.fullmatch(quoted)
    if match is None:
        raise InputError(f"{what}: cannot read {quoted!r}; use for example {example}")
    digits = match["number"].replace("_", "")
    value: float | int = int(digits) if digits.isdigit() else float(digits)
    if not math.isfinite(value):
        raise InputError(f"{what}: {quoted!r} is not a finite number; use for example {example}")
    return value, match["suffix"].lower()


def parse_count(text: object, what: str = "count") -> int:
    """Read a positive count: ``70b``, ``350m``, ``1.3e9``, ``70_553_706_496``. Raises InputError: not a
    number, not positive, not finite, or more than 10**18."""
    value, suffix = _split(text, what, "70b, 350m or 1.3e9")
    if _BYTES.fullmatch(suffix):
        raise InputError(
            f"{what}: {text!r} is a size; give a number of elements, not of bytes (2 bytes each in bf16 and "
            "fp16), with k, m, b or t, for example 200m"
        )
    if suffix not in _COUNT_SUFFIXES:
        raise InputError(f"{what}: unknown suffix {suffix!r} in {text!r}; use k, m, b or t")
    number = round(value * _COUNT_SUFFIXES[suffix])
    if number < 1:
        raise InputError(f"{what}: {text!r} must be at least 1")
    if number > 10**18:
        raise InputError(f"{what}: {text!r} is beyond 10**18; check the suffix")
    return number


def parse_bytes(text: object, what: str = "size") -> int:
    """Read a positive size in bytes: ``80GiB``, ``80GB``, ``81559MiB``, ``24gib``.

    A bare number is refused, because GB and GiB would be guessed.

    Raises:
        InputError: not a size, no unit, or not positive.
    """
    if isinstance(text, str) and text.rstrip()[-2:] in ("Kb", "Mb", "Gb", "Tb"):
        raise InputError(f"{what}: {text!r} is in bits; use GiB (2**30 bytes) or GB (10**9 bytes)")
    value, suffix = _split(text, what, "80GiB or 81559MiB")
    if suffix not in _BYTE_SUFFIXES:
        unit = "a unit is missing" if suffix == "" else f"unknown unit {suffix!r}"
        raise InputError(f"{what}: {unit} in {text!r}; use GiB (2**30), GB (10**9), MiB or MB")
    number = int(value * _BYTE_SUFFIXES[suffix])
    if number < 1:
        raise InputError(f"{what}: {text!r} must be more than zero bytes")
    if number > 1 << 60:
        raise InputError(f"{what}: {text!r} is beyond an exabyte; check the unit")
    return number


_RATE = "400Gb/s (bits) or 50GB/s (bytes)"
_PER_SECOND = re.compile(r"(?:ps|/s)$")
_UNIT = re.compile(r"[A-Za-z][A-Za-z/]*$")
_RATE_SUFFIX = re.compile(r"(?P<prefix>[kmgtKMGT]i?|)(?P<unit>bits?|[bB])(?P<per>ps|/s|)")


def parse_rate(text: object, what: str = "rate") -> int:
    """Read a positive bandwidth in bytes per second: ``50GB/s``, ``50GB``, ``400Gb/s``, ``400Gbps``.

    ``B`` is bytes and ``b`` or ``bit`` is bits, except in small letters alone (``50gb``), which may be either
    and are refused; ``gbps`` is bits, as everywhere.

    Raises:
        InputError: not a rate, no unit, bits or bytes not told apart, or not positive.
    """
    quoted = text.strip() if isinstance(text, str) else text
    value, _ = _split(_PER_SECOND.sub("", quoted) if isinstance(quoted, str) else quoted, what, _RATE)
    written = _UNIT.search(str(quoted))
    suffix = written.group() if written else ""
    match = _RATE_SUFFIX.fullmatch(suffix)
    if match is None:
        unit = "a unit is missing" if suffix == "" else f"unknown unit {suffix!r}"
        raise InputError(f"{what}: {unit} in {text!r}; use for example {_RATE}")
    prefix, unit, per = match.group("prefix", "unit", "per")
    if unit == "b" and prefix in ("m", "g", "t") and per != "ps":
        large = prefix.upper()
        raise InputError(
            f"{what}: {text!r} may be bits per second or bytes per second; "
            f"write {value:g}{large}b/s (bits) or {value:g}{large}B/s (bytes)"
        )
    size = value * _BYTE_SUFFIXES[f"{prefix}b".lower()]
    rate = int(size if unit == "B" else size / 8)
    if rate < 1:
        raise InputError(f"{what}: {text!r} must be more than zero bytes per second")
    if rate > 1 << 60:
        raise InputError(f"{what}: {text!r} is beyond an exabyte per second; check the unit")
    return rate


def parse_share(text: object, what: str = "share") -> float:
    """Read a share from 0 to below 1: ``2%``, ``0.02``, ``0``. Raises InputError: not a number, or outside of
    that."""
    written = str(text).strip()
    try:
        value = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if isinstance(text, bool) or not 0 <= value < 1:
        raise InputError(f"{what}: {text!r}; use a share below 1, for example 2% or 0.02")
    return value


def parse_positive_int(text: object, what: str, maximum: int = 10**9, *, example: str = "8") -> int:
    """Read a whole number of at least 1: ``8``, ``4096``, ``4_096``, ``4,096``. ``what``: its name in errors.
    ``example``: of such a number, for errors. Raises InputError: not a whole number, below 1, or above
    ``maximum``."""
    if isinstance(text, str) and _THOUSANDS.fullmatch(text.strip()):
        text = text.replace(",", "")
    value, suffix = _split(text, what, example)
    if suffix.lower() in ("k", "m") and value == int(value):
        binary, decimal = (1 << 10, 10**3) if suffix.lower() == "k" else (1 << 20, 10**6)
        raise InputError(
            f"{what}: {text!r} may mean {int(value) * binary} or {int(value) * decimal}; write one of them"
        )
    if suffix or value != int(value):
        raise InputError(f"{what}: {text!r} must be a whole number such as {example}")
    if not 1 <= value <= maximum:
        raise InputError(f"{what}: {text!r} must be {f'at most {maximum:,}' if value > 1 else 'at least 1'}")
    return int(value)


def format_gib(size_bytes: float, digits: int = 2) -> str:
    """``80.00 GiB``; the one way sizes are shown to people. What would show as nothing, or as a digit behind
    zeros, is shown in MiB, KiB or bytes: ``51.2 MiB``."""
    if abs(size_bytes) >= (GIB if digits == 0 else GIB / 10):
        return f"{size_bytes / GIB:,.{digits}f} GiB"
    unit, name = shown_unit(size_bytes)
    return f"{size_bytes / unit:.{0 if unit == 1 else 1}f} {name}"


def told_apart(one_bytes: float, other_bytes: float, digits: int = 1) -> tuple[str, str]:
    """Two sizes with as few digits, from ``digits`` on, as show that they differ.

    >>> told_apart(163.4 * GIB, 96 * GIB), told_apart(4.02 * GIB, 4 * GIB)
    (('163.4 GiB', '96.0 GiB'), ('4.02 GiB', '4.00 GiB'))
    """
    shown = (format_gib(one_bytes, digits), format_gib(other_bytes, digits))
    if shown[0] != shown[1] or digits >= _MOST_DIGITS:
        return shown
    return told_apart(one_bytes, other_bytes, digits + 1)


def shown_unit(largest_bytes: float) -> tuple[int, str]:
    """The unit, in bytes and by name, in which sizes up to this one are shown together.

    >>> shown_unit(3 << 30), shown_unit(20 << 20)
    ((1073741824, 'GiB'), (1048576, 'MiB'))
    """
    units = ((GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"))
    return next(((unit, name) for unit, name in units if abs(largest_bytes) >= unit / 10), (1, "B"))


def format_count(number: float) -> str:
    """``70.6B``, ``1.24B``, ``350M``: three significant digits."""
    for scale, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= scale:
            scaled = number / scale
            return f"{scaled:.{max(0, 2 - int(math.log10(scaled)))}f}{suffix}"
    return f"{number:.0f}"


def few(values: Sequence[object]) -> str:
    """``0, 1, 2 …``: at most eight."""
    return ", ".join(map(str, values[:8])) + (" …" if len(values) > 8 else "")


def ranks_named(numbers: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 3 …``: at most eight."""
    return f"rank{'s' if len(numbers) > 1 else ''} {few(numbers)}"


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """So many of something, in words: ``1 rank``, ``2 ranks``, ``16,384 GPUs``.

    Args:
        number: how many.
        noun: what one of them is called.
        plural: what several are called; with an s by default.
    """
    text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{text} {noun if number == 1 else plural or noun + 's'}"


def times(number: int) -> str:
    """``once``, ``2 times``."""
    return "once" if number == 1 else counted(number, "time")


def format_seconds(seconds: float) -> str:
    """``850 ms``, ``12.3 s``, ``4.2 min``, ``3.1 h``, ``2.4 d``."""
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    for limit, divisor, suffix in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.1f} {suffix}"
    return f"{seconds / 86400:.1f} d"


def format_seconds_range(low: float, high: float) -> str:
    """``2.6 s to 3.1 s``; one of them where both read alike."""
    return " to ".join(dict.fromkeys((format_seconds(low), format_seconds(high))))
