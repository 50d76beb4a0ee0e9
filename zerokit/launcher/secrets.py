"""What counts as a secret, and how it is kept out of all that is written or shown: the one policy.

A secret is known by the name beside it (a variable ``HF_TOKEN``, an option ``--hub_token``, ``password=``)
or by its own form (``https://user:password@host``, ``Bearer …``, ``hf_…``). What is known by name is then
found wherever it appears, also on lines of its own, quoted, or percent-encoded. ``docs/security.md`` lists
what is recognised and what is not.
"""

from __future__ import annotations

import functools
import html
import itertools
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence

from zerokit.launcher import rank_start

MASK = "<redacted>"
_SHORTEST = 8  # a shorter value would blot out ordinary text: it is masked beside its name alone
_LONGEST_HELD = 1 << 14
_HELD = 512  # bytes kept back where a line is cut: what a form can need

# Words of names: anywhere in one; at its end; "pass", "tokens" and "key" only behind one of those named.
_STRONG = frozenset(
    ("secret", "secrets", "password", "passwords", "passwd", "passphrase", "passcode", "credential",
     "credentials", "pgpassword", "sshpass", "userpass", "dbpass", "webhook")
)  # fmt: skip
_LAST = frozenset(
    ("token", "pwd", "auth", "pat", "apikey", "authtoken", "accesstoken", "jwt", "bearer", "dsn",
     "accountkey", "masterkey", "secretkey", "privatekey", "cookie", "cookies")
)  # fmt: skip
_OWNERS = frozenset(
    ("hf", "hub", "api", "access", "auth", "bot", "user", "db", "database", "git", "github", "gitlab", "npm",
     "pypi", "wandb", "slack", "smtp", "mail", "ftp", "ldap", "http", "proxy", "admin", "root", "mysql", "pg",
     "postgres", "redis", "mongo", "rabbitmq", "ssh", "registry", "docker", "openai", "refresh", "login")
)  # fmt: skip
_BEHIND_OWNER = frozenset(("pass", "tokens", "keys"))
_KEYS = frozenset(
    ("api", "access", "private", "secret", "signing", "encryption", "auth", "service", "license", "master",
     "session", "account", "storage", "deploy", "subscription", "shared", "wandb", "openai")
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

# Tokens by their beginnings, and what follows these.
_TOKENS: Mapping[str, str] = {
    "hf_ api_org_ sk_live_ rk_live_ sk_test_ rk_test_": "[A-Za-z0-9]{16,}",
    "sk- glpat- sb_secret_": "[A-Za-z0-9_-]{16,}", "xapp- tskey-": "[A-Za-z0-9-]{16,}",
    "ghp_ gho_ ghu_ ghs_ ghr_ gsk_": "[A-Za-z0-9]{20,}", "github_pat_ wandb_v1_": "[A-Za-z0-9_]{20,}",
    "xoxa- xoxb- xoxe- xoxp- xoxr- xoxs-": "[A-Za-z0-9-]{10,}", "AKIA ASIA": "[A-Z0-9]{16}",
    "ya29. nvapi- dckr_pat_ hvs. hvb.": "[A-Za-z0-9_-]{20,}",
    "AIza pypi- tgp_v1_ jina_": "[A-Za-z0-9_-]{30,}",
    "npm_ r8_ xai- pplx- lin_api_ ntn_": "[A-Za-z0-9]{30,}", "glsa_": "[A-Za-z0-9_]{30,}",
    "dop_v1_": "[a-f0-9]{40,}", "pul-": "[a-f0-9]{40}", "dapi": "[a-f0-9]{32}",
    "shpat_ shpss_ shpca_": "[a-f0-9]{30,}", "rpa_": "[A-Z0-9]{30,}",
    "SG.": "[A-Za-z0-9_-]{16,}\\.[A-Za-z0-9_-]{16,}",
    "sntrys_ sntryu_": "[A-Za-z0-9+/=_-]{30,}", "ATATT3": "[A-Za-z0-9_=-]{30,}",
}  # fmt: skip
# Forms, behind words of which one stands, in lower case, in every text that has the form. In none a part that
# may be long follows another that takes the same letters, and none can begin inside a long part of its own:
# each reads a text once, or a fixed number of times.
_FORMS = tuple(
    (hints.split(), re.compile(pattern))
    for hints, pattern in (
        (
            b"://",
            rb"(?i)(?P<kept>(?<=[a-z0-9+.-])://[^\s/:@\"']*:)(?P<secret>[^\s/\"'@]+(?:@[^\s/\"'@]+)*)(?=@)",
        ),
        (b"://", rb"(?i)(?P<kept>(?<=[a-z0-9+.-])://)(?P<secret>(?P<user>[^\s/:@\"']{16,})(?=:?@))"),
        (
            b"authorization",
            rb"(?i)(?P<kept>\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?"
            rb"(?:(?:bearer|basic|token|digest)\s+)?)(?P<secret>[^\s\"',;]{4,})",
        ),
        (b"cookie", rb"(?i)(?P<kept>\b(?:set-)?cookie[\"']?\s*:\s*[\"']?)(?P<secret>[^\r\n\"']{4,})"),
        (b"bearer", rb"(?i)(?P<kept>\bbearer\s+)(?P<secret>[a-z0-9._~+/=-]{8,})"),
        (
            " ".join(_TOKENS).lower().encode(),
            rb"(?P<kept>)(?P<secret>\b(?:"
            + "|".join(
                f"(?:{'|'.join(map(re.escape, starts.split()))}){rest}" for starts, rest in _TOKENS.items()
            ).encode()
            + rb"))",
        ),
        (b"eyj", rb"(?P<kept>)(?P<secret>\b(?P<jwt>eyJ[\w-]*(?:\.[\w-]+)*))"),
        (b"-----begin", rb"(?P<kept>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?P<secret>[^-]+)"),
        (
            b"token secret pass pwd credential key auth jwt",
            rb"(?i)(?P<kept>(?<![\w.-])(?P<name>[\w.-]{0,80}(?:token|secret|pass|pwd|credential|key|auth|jwt)"
            rb"[a-z]{0,12})[\"']?\s*[:=]\s*[\"']?)"
            rb"(?P<secret>[a-z0-9_+/=.~!@#$%^*-]{8,}(?![\w.\[(<]))",
        ),
    )
)
_ASSIGNED = _FORMS[-1][1]  # the slowest: tried where a word of its is assigned something
_ASSIGNS = re.compile(rb"(?:token|secret|pass|pwd|credential|key|auth|jwt)[a-z]{0,12}[\"']?\s*[:=]")
_JWT = re.compile(rb"[\w-]{11,}\.[\w-]{8,}\.[\w-]+")
_NUMBER = re.compile(rb"[\d.eE+-]*")
_OPTION = re.compile(r"--[A-Za-z][\w.-]*(=.*)?", re.DOTALL)


@functools.lru_cache(maxsize=4096)
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
    if words[-1] in _BEHIND_OWNER and _OWNERS.intersection(words):
        return True
    return any(second == "key" and first in _KEYS for first, second in itertools.pairwise(words))


class Secrets:
    """Takes the secrets of an environment and of a command line out of texts, bytes and argument lists."""

    def __init__(self, environment: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        labels: dict[str, str] = {}
        for name, value in environment.items():
            # a file or folder of this machine: the secret is inside, not its name
            is_path = value.startswith(("/", "~/")) and os.path.lexists(os.path.expanduser(value))  # noqa: PTH111
            if is_secret_name(name) and not _FLAG.fullmatch(value) and not is_path:
                _add(labels, value, f"<{name}>")
        for value in _secret_arguments(arguments):
            _add(labels, value, MASK)
        for value in _inside((*environment.values(), *arguments)):
            _add(labels, value, MASK)
        literals = sorted(labels.items(), key=lambda pair: -len(pair[0]))
        self._literals = [(re.compile(_in_any_form(value)), label.encode()) for value, label in literals]
        longest = max((_LONGEST_ESCAPE * len(os.fsencode(value)) for value, _ in literals), default=0)
        self.held_bytes = min(_LONGEST_HELD, max(_HELD, longest))

    def text(self, text: str) -> str:
        """The text without secrets."""
        data = text.encode("utf-8", "surrogatepass")
        return self.data(data).decode("utf-8", "surrogatepass")

    def data(self, data: bytes) -> bytes:
        """The bytes without secrets; whole lines, or what :meth:`cut` allows, so that none is cut in two."""
        for pattern, label in self._literals:
            data = pattern.sub(lambda _, label=label: label, data)  # type: ignore[misc]
        data = rank_start.PATTERN.sub(rank_start.SHOWN.encode(), data) if b"--packed=" in data else data
        for form in _forms_in(data):
            data = form.sub(_mask, data)
        return data

    def cut(self, data: bytes) -> int:
        """How much of a line that has not ended may be passed on with no secret cut in two."""
        end = max(0, len(data) - self.held_bytes)
        for pattern in (*(pattern for pattern, _ in self._literals), *_forms_in(data)):
            for match in pattern.finditer(data, max(0, end - _LONGEST_HELD)):  # no secret is longer
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
        text = functools.cache(self.text)  # most are there many times

        def masked(value: object) -> object:
            if isinstance(value, str):
                return text(value)
            if isinstance(value, dict):
                return {key: masked(item) for key, item in value.items()}
            return [masked(item) for item in value] if isinstance(value, list | tuple) else value

        return masked(value)


def _inside(texts: Iterable[str]) -> Iterable[str]:
    """The passwords of URLs and the credentials of HTTP headers in the texts, also percent-decoded."""
    for text in texts:
        data = os.fsencode(text) if "@" in text or "uthorization" in text.lower() else b""
        for _, form in _FORMS[:3] if data else ():
            for match in form.finditer(data):
                value = os.fsdecode(match["secret"])
                yield from {value, urllib.parse.unquote(value)}


def _forms_in(data: bytes) -> list[re.Pattern[bytes]]:
    """The forms that a text may have."""
    lower = data.lower()
    return [
        form
        for hints, form in _FORMS
        if any(hint in lower for hint in hints) and (form is not _ASSIGNED or _ASSIGNS.search(lower))
    ]


def _mask(match: re.Match[bytes]) -> bytes:
    groups, secret = match.re.groupindex, match["secret"]
    if "jwt" in groups and _JWT.fullmatch(secret) is None:
        return match[0]
    if "user" in groups and not re.search(rb"\d", secret):
        return match[0]  # a name
    if secret.startswith(b"<") or MASK.encode() in secret or _FLAG.fullmatch(secret.decode("latin-1")):
        return match[0]
    if "name" in groups and (
        _NUMBER.fullmatch(secret) or not is_secret_name(match["name"].decode("latin-1"))
    ):
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
    """The value, without what surrounds it, and each of its lines."""
    for part in {value, *re.split(r"[\r\n]+", value)}:
        if len(part.strip()) < _SHORTEST or _FLAG.fullmatch(part):
            continue
        labels.setdefault(part.strip(), label)


_LONGEST_ESCAPE = 12
_PLAIN = re.compile(r"[A-Za-z0-9_]")


def _in_any_form(value: str) -> bytes:
    """A pattern of the value as programs print it: as it is, percent-encoded whatever is left out, in JSON, a
    ``repr``, HTML or quoted for a shell, also one in another."""
    return b"".join(letter.encode() if _PLAIN.fullmatch(letter) else _escapes(letter) for letter in value)


@functools.cache
def _escapes(letter: str) -> bytes:
    """A pattern of one letter that some program escapes."""
    raw, code = os.fsencode(letter), ord(letter)
    units = letter.encode("utf-16-be", "surrogatepass")
    forms = {
        rb"\\{0,4}" + re.escape(raw),
        b"".join(b"%%(?:25)?(?i:%02x)" % byte for byte in raw),
        b"".join(rb"\\{1,4}u(?i:%s)" % units[at : at + 2].hex().encode() for at in range(0, len(units), 2)),
        b"".join(rb"\\{1,4}x(?i:%02x)" % byte for byte in raw),
        rb"\\{1,4}x(?i:%02x)" % code if code < 256 else rb"\\{1,4}U(?i:%08x)" % code,
        re.escape(html.escape(letter).encode("utf-8", "surrogateescape")),
        rb"&#(?:%d|(?i:x0?%x));" % (code, code),
    }
    named = {"\t": b"t", "\n": b"n", "\r": b"r"}.get(letter)
    forms |= {rb"\\{1,4}" + named} if named else set()
    forms |= {rb"\+"} if letter == " " else set()
    forms |= {rb"""'(?:"'"|\\'|\\"'\\")'"""} if letter == "'" else set()
    longest_first = sorted(forms, key=len, reverse=True)
    return b"(?:" + b"|".join(longest_first) + b")"


def redact(text: str, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()) -> str:
    """``text`` without the secrets of this process's environment, or of the one given."""
    return Secrets(os.environ if environment is None else environment, arguments).text(text)
