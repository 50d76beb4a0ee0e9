"""What counts as a secret, and how it is kept out of all that is written or shown: the one policy.

A secret is known by the name beside it (a variable ``HF_TOKEN``, an option ``--hub_token``, ``password=``)
or by its own form (``https://user:password@host``, ``Bearer …``, ``hf_…``). What is known by name is then
found wherever it appears, also on lines of its own, quoted, or percent-encoded. ``docs/security.md`` lists
what is recognised and what is not.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence

from zerokit.launcher import packed

MASK = "<redacted>"
_SHORTEST = 8  # a shorter value would blot out ordinary text: it is masked beside its name alone
_LONGEST_HELD = 1 << 14
_HELD = 512  # bytes kept back where a line is cut: what a form can need

_STRONG = frozenset(
    ("secret", "secrets", "password", "passwd", "passphrase", "passcode", "credential", "credentials")
)
_LAST = frozenset(("token", "pwd", "auth", "pat", "apikey", "authtoken", "accesstoken"))
_KEYS = frozenset(
    ("api", "access", "private", "secret", "signing", "encryption", "auth", "service", "license", "master",
     "session", "account", "storage", "deploy", "subscription")
)  # fmt: skip
# of a tokenizer, or of a rate
_NO_TOKEN = frozenset(
    ("pad", "eos", "bos", "unk", "sep", "cls", "mask", "image", "video", "audio", "special", "add", "per",
     "next", "last", "first", "stop", "think", "start", "end", "begin", "new")
)  # fmt: skip
_HARMLESS_LAST = frozenset(
    ("file", "files", "path", "paths", "dir", "folder", "sock", "socket", "name", "user", "id", "ids", "type",
     "mode", "ttl", "expiry", "limit", "length", "count", "parallelism", "port", "host", "helper", "store",
     "class")
)  # fmt: skip
_NOT_SECRETS = frozenset(("PWD", "OLDPWD"))
_FLAG = re.compile(r"true|false|yes|no|on|off|none|null|auto", re.IGNORECASE)

_ASSIGNED = (
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|credentials?|api[-_]?key|access[-_]?key|private[-_]?key|"
    r"secret[-_]?key|auth)"
)
_FORMS = tuple(
    re.compile(pattern)
    for pattern in (
        rb"(?i)(?P<kept>\b[a-z][a-z0-9+.-]*://[^\s/:@\"']*:)(?P<secret>[^\s/\"'@]+(?:@[^\s/\"'@]+)*)(?=@)",
        rb"(?i)(?P<kept>\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token|digest)?\s*)"
        rb"(?P<secret>[^\s\"',;]{4,})",
        rb"(?i)(?P<kept>\b(?:set-)?cookie[\"']?\s*:\s*[\"']?)(?P<secret>[^\r\n\"']{4,})",
        rb"(?i)(?P<kept>\bbearer\s+)(?P<secret>[a-z0-9._~+/=-]{8,})",
        rb"(?P<kept>)(?P<secret>\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|"
        rb"github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abprs]-[A-Za-z0-9-]{10,}|"
        rb"AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+))",
        rb"(?P<kept>-----BEGIN [A-Z ]*PRIVATE KEY-----)(?P<secret>[^-]+)",
        rb"(?i)(?P<kept>(?<![\w.-])(?P<name>(?:[\w.-]*[_.-])?"
        + _ASSIGNED.encode()
        + rb")[\"']?\s*[:=]\s*[\"']?)"
        rb"(?P<secret>[a-z0-9_+/=.~!@#$%^*-]{8,}(?![\w.\[(<]))",
    )
)
# One of these stands in every text that a form matches; in lower case.
_HINTS = (b"://", b"cookie", b"bearer", b"hf_", b"sk-", b"gh", b"glpat", b"xox", b"akia", b"aiza", b"eyj",
          b"key", b"token", b"secret", b"passw", b"passphrase", b"pwd", b"credential", b"auth")  # fmt: skip
_NUMBER = re.compile(rb"[\d.eE+-]*")
_OPTION = re.compile(r"--[A-Za-z][\w.-]*(=.*)?", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Whether what a variable or option of this name holds is a secret, by the usual conventions."""
    if name in _NOT_SECRETS:
        return False
    words = [w for w in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()) if w]
    if not words or words[-1] in _HARMLESS_LAST:
        return False
    if _STRONG.intersection(words):
        return True
    if words[-1] in _LAST or (
        len(words) > 1 and words[-2] == "token" and words[-1] in ("read", "write", "value")
    ):
        return not _NO_TOKEN.intersection(words)
    return any(second == "key" and first in _KEYS for first, second in itertools.pairwise(words))


class Secrets:
    """Takes the secrets of an environment and of a command line out of texts, bytes and argument lists."""

    def __init__(self, environment: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        labels: dict[str, str] = {}
        for name, value in environment.items():
            if is_secret_name(name) and not _FLAG.fullmatch(value) and not _is_path(value):
                _add(labels, value, f"<{name}>")
        for value in _secret_arguments(arguments):
            _add(labels, value, MASK)
        for value in _inside((*environment.values(), *arguments)):
            _add(labels, value, MASK)
        literals = sorted(labels.items(), key=lambda pair: -len(pair[0]))
        self._labels = {os.fsencode(value): label.encode() for value, label in literals}
        patterns = [re.escape(value) for value in self._labels]
        self._literals = re.compile(b"|".join(patterns)) if patterns else None
        longest = max(map(len, self._labels), default=0)
        self.held_bytes = min(_LONGEST_HELD, max(_HELD, longest))

    def text(self, text: str) -> str:
        """The text without secrets."""
        data = text.encode("utf-8", "surrogatepass")
        return self.data(data).decode("utf-8", "surrogatepass")

    def data(self, data: bytes) -> bytes:
        """The bytes without secrets; whole lines, or what :meth:`cut` allows, so that none is cut in two."""
        if self._literals is not None:
            data = self._literals.sub(lambda match: self._labels[match[0]], data)
        data = packed.PATTERN.sub(packed.SHOWN.encode(), data) if b"--packed=" in data else data
        lower = data.lower()
        if not any(hint in lower for hint in _HINTS):
            return data
        for form in _FORMS:
            data = form.sub(_mask, data)
        return data

    def cut(self, data: bytes) -> int:
        """How much of a line that has not ended may be passed on with no secret cut in two."""
        end = max(0, len(data) - self.held_bytes)
        for pattern in (self._literals, *_FORMS):
            for match in pattern.finditer(data) if pattern is not None else ():
                if match.start() < end < match.end():
                    end = match.start()
        return end

    def argv(self, argv: Iterable[str]) -> list[str]:
        """An argument list for showing and keeping."""
        masked_arguments: list[str] = []
        hide_next = False
        for argument in argv:
            name, equals, value = _named(argument)
            if hide_next and not _OPTION.fullmatch(argument):
                masked_arguments.append(MASK)
                hide_next = False
                continue
            secret = name is not None and is_secret_name(name)
            if secret and equals:
                masked = value if _FLAG.fullmatch(value) else MASK
                masked_arguments.append(argument[: len(argument) - len(value)] + masked)
            else:
                masked_arguments.append(self.text(argument))
            hide_next = secret and not equals and argument.startswith("-")
        return masked_arguments

    def tree(self, value: object) -> object:
        """Plain data without secrets; keys stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.tree(item) for key, item in value.items()}
        return [self.tree(item) for item in value] if isinstance(value, list | tuple) else value


def _inside(texts: Iterable[str]) -> Iterable[str]:
    """The passwords of URLs and the credentials of HTTP headers in the texts, also percent-decoded."""
    for text in texts:
        data = os.fsencode(text) if "@" in text or "uthorization" in text.lower() else b""
        for form in _FORMS[:2] if data else ():
            for match in form.finditer(data):
                value = os.fsdecode(match["secret"])
                yield from {value, urllib.parse.unquote(value)}


def _mask(match: re.Match[bytes]) -> bytes:
    secret, name = match["secret"], match.groupdict().get("name")
    if secret.startswith(b"<") or MASK.encode() in secret or _FLAG.fullmatch(secret.decode("latin-1")):
        return match[0]
    if name is not None and (_NUMBER.fullmatch(secret) or not is_secret_name(name.decode("latin-1"))):
        return match[0]
    return match["kept"] + MASK.encode()


def _named(argument: str) -> tuple[str | None, str, str]:
    """Name, ``=`` and value of ``--name``, ``--name=value``, ``-name`` and ``name=value``."""
    name, equals, value = argument.partition("=")
    if not equals and not argument.startswith("-"):
        return None, "", ""
    name = name.lstrip("-+").rpartition(".")[2]
    return (name, equals, value) if re.fullmatch(r"[A-Za-z][\w-]*", name) else (None, "", "")


def _secret_arguments(argv: Sequence[str]) -> Iterable[str]:
    for number, argument in enumerate(argv):
        name, equals, value = _named(argument)
        if name is None or not is_secret_name(name):
            continue
        if equals:
            yield value
        elif argument.startswith("-") and number + 1 < len(argv) and not _OPTION.fullmatch(argv[number + 1]):
            yield argv[number + 1]


def _add(labels: dict[str, str], value: str, label: str) -> None:
    """The value in the forms in which programs print it, and each of its lines."""
    for part in {value, *re.split(r"[\r\n]+", value)}:
        if len(part.strip()) < _SHORTEST or _FLAG.fullmatch(part):
            continue
        quoted = urllib.parse.quote(part, safe="", errors="surrogateescape")
        for form in (part, part.strip(), json.dumps(part)[1:-1], repr(part)[1:-1], quoted):
            labels.setdefault(form, label)


def _is_path(value: str) -> bool:
    """Whether it names a file or folder of this machine: the secret is inside, not this."""
    return value.startswith(("/", "~/")) and os.path.lexists(os.path.expanduser(value))  # noqa: PTH111


def redact(text: str, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()) -> str:
    """``text`` without the secrets of this process's environment, or of the one given."""
    return Secrets(os.environ if environment is None else environment, arguments).text(text)
