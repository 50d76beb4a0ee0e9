"""Models of the Hugging Face cache are taken by name; those that are not there come with a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.hub_cache import put
from zerokit import plan
from zerokit.cli import run
from zerokit.errors import InputError
from zerokit.planner.models import cached_config, config_file, is_repository, unlike_planned

JOB = ("--gpus", "1", "--gpu", "h200", "--json")


def test_a_repository_that_is_not_here_comes_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert run(["estimate", "--model", "somebody/there-is-none", *JOB]) == 2
    assert "hf download somebody/there-is-none config.json" in capsys.readouterr().err
    assert run(["estimate", "--model", "there-is-none", *JOB]) == 2
    assert "hf download" not in capsys.readouterr().err


class _Hub(BaseHTTPRequestHandler):
    """Has one repository with a config.json, for who brings the token."""

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(self.server.config)  # type: ignore[attr-defined]

    def _answer(self, body: bytes) -> None:
        known = "/here/" in self.path and self.headers["Authorization"] == "Bearer hf_known"
        self.send_response(200 if known else 401)
        if known:
            self.send_header("ETag", '"one"')
            self.send_header("X-Repo-Commit", "0123456789abcdef0123456789abcdef01234567")
            self.send_header("Content-Length", str(len(self.server.config)))  # type: ignore[attr-defined]
        else:
            self.send_header("X-Error-Code", "GatedRepo")
        self.end_headers()
        self.wfile.write(body if known else b"")

    def log_message(self, *_: object) -> None:
        pass


def test_a_configuration_of_the_hub_is_fetched_with_its_own_token(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.config = put(tmp_path, "a/b").read_bytes()  # type: ignore[attr-defined]
    Thread(target=server.serve_forever, daemon=True).start()

    def estimate(model: str, **more: str) -> tuple[int, str, str]:
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-m", "zerokit", "estimate", "--model", model, *JOB], cwd=tmp_path,
            env={**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), **hub, **more},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    try:
        code, _, err = estimate("somebody/here")
        assert code == 2 and "hf download somebody/here config.json (not done: the Hub: " in err
        code, out, err = estimate("somebody/here", HF_TOKEN="hf_known")
        assert code == 0 and "fetching config.json of somebody/here" in err, err
    finally:
        server.shutdown()
    assert estimate("somebody/here") == (0, out, "")  # from the cache: nobody is asked


def test_where_the_cache_is_and_what_is_no_repository(tmp_path: Path) -> None:
    path = put(tmp_path / "hub", "a/b")
    assert cached_config("a/b", {"HF_HOME": str(tmp_path)}) == path
    assert cached_config("a/c", {"HF_HOME": str(tmp_path)}) is None
    (path.parents[2] / "refs" / "main").write_text("../../elsewhere")
    assert cached_config("a/b", {"HF_HOME": str(tmp_path)}) is None
    assert not any(is_repository(name) for name in ("a", "../b", "a/b/c", "a/..", "/etc/passwd", "a/b;c"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    (tmp_path / "bare").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "model.safetensors").touch()
    return tmp_path


def test_a_folder_or_its_file_is_the_configuration(folder: Path) -> None:
    assert config_file("tiny") == config_file("tiny/config.json") == Path("tiny/config.json")
    assert config_file("llama-3.1-8b") is None


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("bare", "the folder has no config.json"),
        ("train.py", "a script is no model"),
        ("model.safetensors", "a file of weights"),
        ("tiny/conf.json", "no such file"),
    ],
)
def test_what_is_no_configuration_is_refused(folder: Path, model: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        config_file(model)


@pytest.mark.parametrize("model", ["tinny", "./tinny"])
def test_a_misspelt_folder_is_named(folder: Path, model: str) -> None:
    with pytest.raises(InputError, match=r"there is a model in tiny$"):
        plan(model=model, gpus=1)


TINY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512}


@pytest.mark.parametrize(
    ("name", "request_", "parameters", "said"),
    [
        ("Qwen/Qwen2.5-0.5B", {"model": "qwen2.5-7b"}, None, "hidden_size 896, not 3584"),
        ("Qwen/Qwen2.5-7B", {"model": "qwen2.5-7b"}, None, None),
        ("Qwen/Qwen2.5-7B-Instruct", {"model": "qwen2.5-7b"}, None, None),
        ("gpt2", {"model": "llama-3.1-8b"}, None, "gpt2, not llama"),
        ("nobody/unknown", {"model": "qwen2.5-7b"}, None, None),  # nothing is known of it
        ("qwen2.5-7b", {"model": "no/such.json"}, None, None),
        ("qwen2.5-7b", {"params": "7b"}, 6_738_415_616, "B parameters, not 6.7"),
        ("llama-2-7b", {"params": "7b"}, 6_738_415_616, None),
        ("qwen2.5-7b", {"params": "7b"}, None, None),
    ],
)
def test_another_model_is_named_with_what_differs(
    name: str, request_: dict[str, str], parameters: int | None, said: str | None
) -> None:
    found = unlike_planned(name, f"--model_name_or_path {name}", request_, parameters)
    assert found is None if said is None else found is not None and said in found


def test_the_configurations_of_folders_are_compared(tmp_path: Path) -> None:
    for name, changed in (("a", {}), ("b", {"num_hidden_layers": 4}), ("c", {"vocab_size": 520})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(TINY | changed))
    request = {"model": str(tmp_path / "a")}
    found = unlike_planned(str(tmp_path / "b"), "--model b", request, None)
    assert found is not None and "num_hidden_layers 4, not 2" in found
    assert unlike_planned(str(tmp_path / "c"), "--model c", request, None) is None  # resized
    (tmp_path / "b" / "config.json").write_text("{")
    assert unlike_planned(str(tmp_path / "b"), "--model b", request, None) is None
