"""What the calculator's page asks of zerokit, in the page's own Python."""

import contextlib
import io
import json
import os
import shlex
import shutil
from pathlib import Path


def _run(words):
    """Exit code, standard output and standard error of a command."""
    from zerokit.cli import run

    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            code = run(words)
        except (ImportError, OSError) as error:  # a script, charts: what a browser has no part for
            code = 1
            print(f"this page cannot do that ({error}); run the command on your machine", file=streams[1])
    for stream in streams:
        stream.flush()
    return code, *(stream.buffer.getvalue().decode("utf-8", "replace") for stream in streams)


def plan(asked):
    """Run `zerokit plan` with what a page asks, in a folder of its own.

    asked: JSON with `words`, the arguments, `more`, others as they are typed, and perhaps `config`, the text
    of a model's config.json, which takes the place of `--model`.
    """
    question = json.loads(asked)
    folder = Path("/home/calculator")
    os.chdir("/")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    try:
        words = ["plan", *question["words"], *shlex.split(question.get("more", ""))]
    except ValueError as error:
        said = f"more options: {error}"
        return json.dumps({"code": 2, "words": [], "command": "", "text": "", "said": said, "files": {}})
    if question.get("config"):
        Path("config.json").write_text(question["config"], encoding="utf-8")
        words[1:1] = ["--model", "config.json"]
    code, text, said = _run(words)
    files = {
        str(path): path.read_text()
        for path in sorted(Path().rglob("*"))
        if path.is_file() and path != Path("config.json")
    }
    return json.dumps({"code": code, "words": words, "text": text, "said": said, "files": files,
                       "command": shlex.join(["zerokit", *words])})  # fmt: skip


def facts(asked):
    """The figures of the plan that was made last, and of those beside it: the most that a plan shows.

    asked: JSON of its words. Help has none.
    """
    text = _run([*json.loads(asked), "--json", "--top", "20"])[1]
    return text if text.startswith("{") else "null"


def names():
    """The names that the catalogue has for models and GPUs; what a plan imports is there then."""
    from zerokit.catalog import gpus, models

    _run(["plan", "--model", "llama-3.2-1b", "--gpus", "1", "--gpu", "h200", "--dry-run"])
    return json.dumps({"models": list(models.names()), "gpus": list(gpus.names())})
