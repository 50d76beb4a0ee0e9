"""What is kept out of all that is written or shown, and what is left alone."""

from __future__ import annotations

import html
import itertools
import json
import random
import shlex
import urllib.parse
from pathlib import Path

import pytest

from zerokit.launcher.secrets import Secrets, is_secret_name, redact
from zerokit.launcher.supervisor.output import Log

VALUE = "q7Zr-81hG+x/2_secretive"
# Values that an earlier policy let through.
VALUES = (
    VALUE, "-" + VALUE, "/" + VALUE, "1234567890123", "12345678.90", "two words of it",
    "ä€-umlaut-secret", "line one of it\nline two of it\r\nthird line", "with \"quotes\" and \\ and '",
    "  padded-secret  ",
)  # fmt: skip
NAMES = (
    "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MYSQL_PWD", "DB_PASSWORD",
    "PGPASSWORD_SECRET", "GITHUB_PAT", "SSH_PASSPHRASE", "AZURE_STORAGE_KEY", "REGISTRY_AUTH",
    "hubToken", "CREDENTIALS",
)  # fmt: skip
NO_SECRETS = (
    "PWD", "OLDPWD", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM", "max_tokens", "pad_token", "eos_token",
    "tokenizer", "token_type_ids", "HF_TOKEN_PATH", "KEYBOARD", "key", "label_key",
    "KRB5_CREDENTIALS_FILE", "seconds_per_token", "NCCL_DEBUG", "AUTHOR", "password_file",
)  # fmt: skip
OPTIONS = (
    "--hub_token", "--hf-token", "--secret-key", "--passphrase", "--private-key", "--pwd", "--auth",
    "--api-key", "--password", "-password", "--trainer.hub_token", "--db_passwd",
)  # fmt: skip


def test_a_variables_value_is_nowhere() -> None:
    for name, value in itertools.product(NAMES, VALUES):
        secrets = Secrets({name: value})
        for form in (value, repr(value), f"{name}={value}", f"a {value} b"):
            shown = secrets.text(f"before {form} after")
            assert "before" in shown and "after" in shown
            assert not any(line.strip() in shown for line in value.splitlines()), (name, shown)
        assert secrets.text("ordinary text") == "ordinary text"


def test_what_is_no_secret_stays() -> None:
    for name in NO_SECRETS:
        assert not is_secret_name(name), name
        text = f"--{name} some-ordinary-value {name}=some-ordinary-value"
        assert Secrets({name: "some-ordinary-value"}).text(text) == text


def test_an_options_value_is_in_no_list_and_no_stream() -> None:
    for option, value in itertools.product(OPTIONS, [value for value in VALUES if "\n" not in value]):
        for argv in ([option, value, "--lr", "1e-4"], [f"{option}={value}", "--lr", "1e-4"]):
            secrets = Secrets({}, argv)
            shown = secrets.argv(["t.py", *argv])
            assert value.strip() not in " ".join(shown) and shown[-2:] == ["--lr", "1e-4"], argv
            assert value.strip() not in secrets.text(f"Namespace(x={value!r}) {value}\n"), argv
        assert Secrets({}).argv([option, "x"]) == [option, "<redacted>"]


def test_hydras_and_other_assignments() -> None:
    argv = [
        "hub_token=abcdefgh",
        "+trainer.password=12345678",
        "lr=0.1",
        "pad_token=<pad>",
        "model.key=value",
    ]
    assert Secrets({}, argv).argv(argv) == [
        "hub_token=<redacted>", "+trainer.password=<redacted>", "lr=0.1", "pad_token=<pad>", "model.key=value"
    ]  # fmt: skip
    flags = ["--use_auth_token", "--push_to_hub", "--use_auth_token=true", "--token", "--lr"]
    assert Secrets({}, flags).argv(flags) == flags


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pass@host/x", "https://user:<redacted>@host/x"),
        ("postgresql+psycopg://u:p@ss/w@h", "postgresql+psycopg://u:<redacted>@ss/w@h"),
        ("redis://:abcdefgh@h:1", "redis://:<redacted>@h:1"),
        ('--header "Authorization: Bearer abcdefgh12345"', '--header "Authorization: Bearer <redacted>"'),
        ("authorization=Basic dXNlcjpwYXNz", "authorization=Basic <redacted>"),
        ("Cookie: session=abcdef; a=b", "Cookie: <redacted>"),
        ("hub_token=abcdefgh1234", "hub_token=<redacted>"),
        ("'password': 'hunter2hunter2'", "'password': '<redacted>'"),
        ("logging in with hf_abcdefghijklmnopqrst now", "logging in with <redacted> now"),
        ("sk-abcdefghijklmnop1234", "<redacted>"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
        ("pad_token='<|endoftext|>'", "pad_token='<|endoftext|>'"),
        ("seconds_per_token=0.000123456789", "seconds_per_token=0.000123456789"),
        ("token = os.environ['HF_TOKEN']", "token = os.environ['HF_TOKEN']"),
        ("password = getpass.getpass()", "password = getpass.getpass()"),
        ("tokens: 123456789", "tokens: 123456789"),
    ],
)
def test_forms(text: str, shown: str) -> None:
    assert redact(text, {}) == shown


def test_a_private_key_is_masked_line_by_line() -> None:
    key = (
        "-----BEGIN OPENSSH PRIVATE KEY-----\n"
        + "b3BlbnNzaC1rZXk\n" * 5
        + "-----END OPENSSH PRIVATE KEY-----\n"
    )
    secrets = Secrets({"DEPLOY_KEY": key})
    assert "b3Blbn" not in "".join(secrets.text(line + "\n") for line in key.splitlines())
    assert "b3Blbn" not in redact(key, {})


@pytest.mark.parametrize("seed", range(5))
def test_no_border_of_what_was_read_cuts_a_secret(seed: int, tmp_path: Path) -> None:
    """A line without an end, longer than what is held, in pieces of any size."""
    draw = random.Random(seed)
    secret, url_secret = VALUE * draw.randint(1, 40), "secret-of-a-url"
    filler = "".join(draw.choice("abc xyz") for _ in range(65_000 + draw.randint(0, 1000)))
    text = filler + secret + filler + "https://u:" + url_secret + "@h " + filler + secret
    log = Log(tmp_path / "log", Secrets({"HF_TOKEN": secret}))
    data, shown = text.encode(), b""
    while data:
        size = draw.randint(1, 1 << 16)
        shown += log.feed(data[:size])
        data = data[size:]
    shown += log.close()
    assert VALUE.encode() not in shown and url_secret.encode() not in shown
    assert (tmp_path / "log").read_bytes() == shown
    assert shown.count(b"<HF_TOKEN>") == 2 and shown.count(filler.encode()) == 3
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_an_existing_path_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("")
    assert Secrets({"SERVICE_PRIVATE_KEY": str(tmp_path / "key")}).text(str(tmp_path / "key")) == str(
        tmp_path / "key"
    )


def test_what_is_inside_a_url_or_a_header_is_nowhere_by_itself() -> None:
    """As a driver prints the password that it took out of the URL, percent-decoded."""
    url, header = "postgres://u:Zq7%2FvB93kLm@h/d", "Authorization: Bearer Zq7-vB93kLmP0wx"
    for secrets in (
        Secrets({"DATABASE_URL": url, "X": header}),
        Secrets({}, ["--db", url, f"--url={url}", "--header", header]),
    ):
        for value in ("Zq7%2FvB93kLm", "Zq7/vB93kLm", "Zq7-vB93kLmP0wx"):
            assert secrets.text(f"failed with '{value}' at h") == "failed with '<redacted>' at h"
        assert secrets.text(url) == "postgres://u:<redacted>@h/d"


def test_a_value_is_nowhere_in_any_form_programs_print() -> None:
    value = "p/w+x'y z\"\\ä&1"
    secrets = Secrets({"DB_PASS": value})
    quoted = (
        urllib.parse.quote(value),
        urllib.parse.quote_plus(value),
        shlex.quote(value),
        html.escape(value),
    )
    nested = (json.dumps(value), json.dumps(json.dumps(value)), repr(value), repr(repr(value)), ascii(value))
    for form in (
        value,
        *quoted,
        *nested,
        json.dumps(value).replace("/", "\\/"),
        json.dumps({"u": quoted[0]}),
    ):
        assert "<DB_PASS>" in secrets.text(f"see {form} there"), form


def test_further_names_hold_secrets_and_words_that_look_alike_none() -> None:
    for name in ("DB_PASS", "SSHPASS", "HF_TOKENS", "JWT", "AccountKey"):
        assert is_secret_name(name) and VALUE not in redact(f"{name}={VALUE}", {}), name
    for name in ("max_tokens", "num_tokens", "forward_pass", "bypass", "compass", "keys"):
        assert not is_secret_name(name), name


def test_further_tokens_are_known_by_their_beginning() -> None:
    for start in (
        "nvapi-",
        "gsk_",
        "npm_",
        "pypi-",
        "sk_live_",
        "r8_",
        "xai-",
        "tgp_v1_",
        "dckr_pat_",
        "hvs.",
    ):
        assert redact(f"got {start}{'aB3' * 14} back", {}) == "got <redacted> back", start
    assert redact("https://0123456789abcdef0123@o1.example/2", {}) == "https://<redacted>@o1.example/2"


@pytest.mark.parametrize(
    "unit",
    ["a.", "x://:a@", "-eyJ", "authorization: ", "token=_token", "cookie:", "-----BEGIN ", "key_", "a"],
)
def test_a_line_without_end_is_passed_on_in_pieces(unit: str, tmp_path: Path) -> None:
    """What is held back stays small, so that the time for a line is that of its length."""
    log = Log(tmp_path / "x", Secrets({"HF_TOKEN": VALUE}))
    for _ in range(16):
        log.feed((unit * (1 << 16))[: 1 << 16].encode())
        assert len(log._rest) <= 3 << 16
    log.feed(f"\n{VALUE} end\n".encode())
    log.close()
    assert (tmp_path / "x").read_text().endswith("\n<HF_TOKEN> end\n")
