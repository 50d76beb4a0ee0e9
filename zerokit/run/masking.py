"""Takes secrets out of streams and argument lists; what is one, :mod:`zerokit.run.redact` says."""

from __future__ import annotations

import re
from collections.abc import Mapping

from zerokit.run import packed
from zerokit.run.redact import is_secret_name

_SECRET_OPTION = re.compile(
    r"^--?[\w-]*(token|secret|passw(or)?d|api[-_]?key|access[-_]?key)$", re.IGNORECASE
)
_SHORTEST = 8  # a shorter value is no secret, and would blot out ordinary text
MASK = "<redacted>"


class Masker:
    """Replaces the values of secret environment variables, and of options such as ``--hub_token``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        found = {
            value: f"<{name}>"
            for name, value in environment.items()
            if is_secret_name(name) and len(value.strip()) >= _SHORTEST and not value.startswith("/")
        }
        self._names = {v: found[v] for v in sorted(found, key=len, reverse=True)}
        self._encoded = {v.encode("utf-8", "surrogateescape"): n.encode() for v, n in self._names.items()}
        patterns = [re.escape(value) for value in self._encoded]
        patterns.append(packed.PATTERN.pattern)
        self._pattern = re.compile(b"|".join(patterns))

    def text(self, text: str) -> str:
        """The text without secrets."""
        for value, name in self._names.items():
            text = text.replace(value, name)
        return packed.hide(text)

    def data(self, data: bytes) -> bytes:
        """The bytes (whole lines, so that no secret is cut in two) without secrets."""
        return self._pattern.sub(lambda match: self._encoded.get(match[0], packed.SHOWN.encode()), data)

    def argv(self, argv: list[str]) -> list[str]:
        """An argument list for showing and keeping."""
        shown: list[str] = []
        hide_next = False
        for argument in argv:
            name, equals, _ = argument.partition("=")
            secret = _SECRET_OPTION.match(name) is not None
            if hide_next and not argument.startswith("--"):
                shown.append(MASK)
            else:
                shown.append(f"{name}={MASK}" if secret and equals else self.text(argument))
            hide_next = secret and not equals
        return shown
