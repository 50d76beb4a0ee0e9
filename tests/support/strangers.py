"""A working folder as a stranger could send it: hostile names, texts, links and pipes; and what no command
may do with it: print anything that is obeyed, read or write outside, take long."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.hostile import odd, strings
from tests.support.plans import write_plan
from tests.support.run_folders import write_run
from zerokit.cli import run
from zerokit.messages import OBEYED

CANARY = "outside-s3cret-c0ntent"
_RAW = re.compile(f"(?![\n\t]){OBEYED.pattern}")
_OF_CI = re.compile(
    r"^[ \t]*(?:::(?!(?:error|warning|notice) (?:file=|title=zerokit check::))|##\[)", re.MULTILINE
)
_SHARP = (
    "\n::error::forged", "::set-output name=a::b", "\n##[error]forged", "\x1b]0;title\x07",
    "\x1b[2J\x1b[1;1H", "\u202egnp.exe", "\u2066a\u2069", "\r::warning::forged", "\x9b31m",
    "\ufffe", "\udcff\udc80", "\U000e0041",
    "[bold red]x[/]", "[/]", "a" * 200, "-rf", "--fix", "{x}", "%s%n", "⟨gpus⟩",
    "`zerokit check .`",
)  # fmt: skip


def names(count: int) -> list[str]:
    """``count`` different names that a file system takes."""
    made: dict[str, None] = {}
    for text in (*_SHARP, *(a + b for a in _SHARP for b in _SHARP[:14]), *strings(4 * count)):
        name = os.fsdecode(os.fsencode(text.replace("/", "").replace("\0", ""))[:200])
        if name not in ("", ".", ".."):
            made[name] = None
    return list(made)[:count]


def texts(count: int) -> list[str]:
    """``count`` different texts of a .gitignore, hostfile, JSON or YAML."""
    draw, made = random.Random(50), dict.fromkeys(_TEXTS)
    while len(made) < count:
        value = odd(_CONFIG, draw)
        for _ in range(3):
            value = odd(value, draw) if isinstance(value, dict) else _CONFIG
        piece = "".join(draw.choice(_SHARP) for _ in range(3))
        texts_of_kind = (
            json.dumps({**value, piece: {piece: piece}}) if isinstance(value, dict) else json.dumps(value),
            f"node{piece} slots={draw.choice((1, 8, 10**9, piece))}\n" * draw.randint(1, 9),
            "\n".join(
                draw.choice(("a*" * 30, "**/" * 40 + piece, piece, "!" + piece, "[" * 99)) for _ in "12"
            ),
            yaml.safe_dump({"distributed_type": piece, "deepspeed_config": {piece: 1, "zero_stage": piece}}),
        )
        made[draw.choice(texts_of_kind)] = None
    return list(made)[:count]


_CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": {"stage": 3, "x": [1]},
    "flops_profiler": {"enabled": True, "output_file": "/x"}, "tensorboard": {"enabled": True},
}  # fmt: skip
_MIB = 1 << 20
_TEXTS = (
    "", "\n", "{}", "[]", "[" * 5000, '{"a":' * 5000, "\ufeff{}", "a*" * 40 + "b", "*" * 5000, "!" * 999,
    "{" + ",".join(f'"zero_optimizatio{n}":{{"stag":1}}' for n in range(30_000)) + "}",
    "{" + ",".join(f'"k{n}":1' for n in range(80_000)) + "}",
    "{" + ",".join('"zero_optimization":1' for _ in range(40_000)) + "}",
    "//\n" * (_MIB // 3), "a: &a [*a]\n",
    "a: &a [1,1]\n" + "".join(f"b{n}: &b{n} [*a,*a]\n" for n in range(5000)),
    "h slots=1\n" * (_MIB // 10), "".join(f"h{n} slots=1\n" for n in range(70_000)), "x" * _MIB,
    "- " * 500_000,
    '{"zero_optimization": {"stage": "' + "9" * 900_000 + '"}}', '{"a": ' + "9" * 900_000 + "}", "\\" * _MIB,
    '{"train_batch_size": 1e999999}', "? " * 100_000, "distributed_type: DEEPSPEED\n" + "  x: 1\n" * 100_000,
    "".join(f"node{n} slots=x\n" for n in range(60_000)), "".join(f"k{n}: 1\n" for n in range(90_000)),
    "[tool.zerokit.check]\nignore = [" + '"a",' * 200_000 + "]", "'" * _MIB, "\t" * _MIB, "{\n" * (_MIB // 2),
)  # fmt: skip


def lay(folder: Path, name: str, text: str, draw: random.Random) -> None:
    """The stranger's folder ``work`` in ``folder``, beside ``outside``, which is not theirs."""
    outside, work = folder / "outside", folder / "work"
    for made in (outside, work, work / name, work / "plan", work / "run"):
        made.mkdir(parents=True)
    secret = {"machine": CANARY, "hidden_size": CANARY, "zero_optimization": {"stage": CANARY}}
    (outside / "netrc").write_text(f"machine {CANARY} login {CANARY}\n")
    (outside / "secret.json").write_text(json.dumps(secret))
    os.chdir(work)
    write_plan(Path("plan"))
    write_run(Path("run"))
    data = text.encode("utf-8", "surrogateescape")
    files = ["ds.json", "config.json", "hostfile", "acc.yaml", ".gitignore", "pyproject.toml", "x.py"]
    files += [f"{name}.json", f"{name}.yaml", f"hostfile{name}", f"{name}.py"]
    large = draw.choice(files)
    for file in files:  # a large text in one file: the bar is that of a folder as a whole
        (work / name / file).write_bytes(data if len(data) < 1 << 14 or file == large else b"{}\n")
    (work / "t.py").write_text(f"print({name!r})\n" if draw.random() < 0.5 else f"import {'x' * 9}\n")
    for file in ("plan/plan.yaml", "run/plan.yaml"):
        _spoil_yaml(work / file, name, draw)
    _spoil_lines(work / "run" / "rank-00000.jsonl", name, draw)
    (work / "recipe.yaml").write_text(json.dumps({
        "title": name, "description": name, "params": "8b", "gpus": 4, "gpu": draw.choice(["h200", name]),
        draw.choice([name, "zero"]): 3, "expect": {"strategy": {"zero_stage": name}, "prediction": {name: 1}},
    }))  # fmt: skip
    for _ in range(2):
        _swap(draw.choice([path for path in work.rglob("*") if path.is_file()]), outside, draw)


def _spoil_yaml(path: Path, name: str, draw: random.Random) -> None:
    value = yaml.safe_load(path.read_text())
    path.write_text(json.dumps(_spoilt(value, name, draw)))


def _spoilt(value: Any, name: str, draw: random.Random) -> Any:
    """Plain data in which some texts, and one key in 40, are the name."""
    if isinstance(value, dict):
        return {name if draw.random() < 0.025 else k: _spoilt(v, name, draw) for k, v in value.items()}
    if isinstance(value, list):
        return [_spoilt(item, name, draw) for item in value]
    return name if isinstance(value, str) and draw.random() < 0.15 else value


def _spoil_lines(path: Path, name: str, draw: random.Random) -> None:
    lines = path.read_text().splitlines()
    path.write_text("".join(json.dumps(_spoilt(json.loads(line), name, draw)) + "\n" for line in lines))


def _swap(path: Path, outside: Path, draw: random.Random) -> None:
    """A link out, a link to what never ends, or a pipe in place of a file."""
    path.unlink()
    is_script = path.suffix == ".py"  # that who runs us names: a link of it may lead anywhere
    kind = draw.choice(["zero", "fifo", "loop", *([] if is_script else ["netrc", "secret.json"])])
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to({"zero": "/dev/zero", "loop": path.name}.get(kind, str(outside / kind)))


_PLAN = ("--gpu", "h200", "--gpus", "2")


def commands(name: str) -> list[list[str]]:
    """Every command, with the name in each place where it takes one, or with the stranger's files."""
    json_file, yaml_file, path = f"./{name}/{name}.json", f"./{name}/{name}.yaml", f"./{name}"
    dry = ("--device", "cpu", "--dry-run")
    return [
        *(["check", "--format", style, "."] for style in ("text", "json", "github", "sarif", "junit")),
        ["check", "--fix", "--notes", "."], ["check", json_file, yaml_file, f"{path}/hostfile{name}", path],
        ["check", "--kind", "hostfile", json_file], ["check", "--kind", name, "."],
        ["check", "--explain", name],
        ["check", "--ignore", name, "--fix", json_file], ["check", "--model", path, "--gpu", name, "."],
        ["estimate", "--params", "1b", *_PLAN, "--deepspeed", json_file],
        ["estimate", "--model", path, *_PLAN], ["estimate", "--params", name, *_PLAN],
        ["estimate", "--params", "1b", "--gpus", "1", "--gpu", name, "--json"],
        ["plan", "--params", "1b", *_PLAN, "--optimizer", name], ["plan", "--recipe", yaml_file],
        ["plan", "--recipe", "./recipe.yaml"], ["plan", "--recipe", "./recipe.yaml", f"{name}={name}"],
        ["plan", "--recipe", name], ["plan", "--params", "1b", *_PLAN, "--out", f"{path}/new"],
        ["size", "--params", "1b", "--gpu", name], ["size", "--model", json_file, "--gpu", "h200"],
        ["launch", "--plan", path, *dry, "t.py"], ["launch", "--plan", "plan", *dry, "t.py", name],
        ["launch", "--deepspeed", json_file, *dry, "t.py"],
        ["launch", "--no-plan", *dry, f"{path}/{name}.py"],
        ["launch", "--hostfile", f"{path}/hostfile{name}", "--no-plan", *dry, "t.py"],
        ["launch", "--recipe", "./recipe.yaml", *dry, "t.py"],
        ["launch", "--no-plan", "--run-dir", name, *dry, "t.py", "--config", yaml_file, name],
        ["launch", "--no-plan", *dry, "-m", name], ["launch", "--style", name, *dry, "t.py"],
        *(["emit", target, "--plan", "plan", *more] for target, *more in (
            ("sbatch", "t.py", name), ("kubernetes", "--image", name, "t.py"), ("hostfile", name, "b"),
            ("deepspeed",), ("accelerate",), (name,),
            ("skypilot", "--gpu-name", name, "--image", name, "t.py", name), ("ray", "t.py", name))),
        ["emit", "deepspeed", "--plan", path],
        ["convert", json_file], ["convert", yaml_file, "--out", f"{path}/new"], ["convert", path, "--json"],
        ["rehearse", "--gpu", name, "t.py"], ["rehearse", "--versions", json_file, f"{path}/absent.py"],
        ["explain", json_file], ["explain", path, name],
        ["weights", "run", "--out", name], ["weights", path, "--out", f"{path}/new"],
        ["launch", "--resume", "run", *dry, "t.py"], ["launch", "--resume", path, *dry, "t.py"],
        ["explain", json_file, "--rehearsal", json_file],
        ["rehearse", "--plan", path, "t.py"], ["rehearse", f"{path}/absent"],
        ["tune", "--params", "1b", "--gpus", "2", "--device", "cpu", "--dry-run", "t.py", name],
        ["tune", "--recipe", "./recipe.yaml", "--dry-run", "t.py"],
        ["report", "run"], ["report", "run", "--json"], ["report", "run", "--html", "page.html"],
        ["report", "run", "run"], ["report", path], ["report"], ["watch", "--once", "run"],
        ["watch", "--once", path], ["gpus", name], ["models", name], ["models", "--family", name],
        ["recipes", "show", "./recipe.yaml"], ["recipes", "show", name],
        ["recipes", "check", "./recipe.yaml"],
        ["recipes", "check", yaml_file], ["recipes", "copy", name, path],
        ["recipes", "copy", "cpu-demo", path],
        ["doctor"], ["help", name], [name], [f"--{name}"], ["plan", f"--{name}"], ["plan", name],
    ]  # fmt: skip


_OPENED: list[str] = []
_AT: list[str] = []


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if _AT and event == "open" and isinstance(arguments[0], str | bytes):
        with contextlib.suppress(OSError, ValueError):
            real = os.path.realpath(os.fsdecode(arguments[0]))
            if real.startswith(_AT[0]) or real == "/dev/zero":
                _OPENED.append(real)


@contextlib.contextmanager
def _listening(folder: Path) -> Iterator[list[str]]:
    """The files below ``folder`` that this process opens."""
    if not getattr(_listen, "is_added", False):
        sys.addaudithook(_listen)
        _listen.is_added = True  # type: ignore[attr-defined]
    _OPENED.clear()
    _AT[:] = [f"{os.path.realpath(folder)}/"]
    try:
        yield _OPENED
    finally:
        _AT.clear()


def obeyed(told: str) -> list[str]:
    """What of an output a terminal or a CI system would obey."""
    raw = sorted({match[0] for match in _RAW.finditer(told)})
    return [repr(one) for one in raw] + [match[0] for match in _OF_CI.finditer(told)]


def try_command(folder: Path, words: list[str], most_seconds: float = 5.0) -> dict[str, Any]:
    """Run a command in ``work``: what it printed, its exit code, and what was wrong with it."""
    os.chdir(folder / "work")
    outside = {path: path.read_bytes() for path in (folder / "outside").iterdir()}
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape") for _ in range(2))
    began, crash, wrong = time.process_time(), "", []
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _listening(folder / "outside") as opened,
    ):
        try:
            code: int = run(words)
        except Exception:
            code, crash = 1, traceback.format_exc()
    seconds = time.process_time() - began
    told = ""
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        told += stream.read()
    wrong += [f"traceback: {crash.splitlines()[-1][:200]}"] if crash or "Traceback (" in told else []
    wrong += [f"exit code {code}"] if code == 1 and not crash else []
    wrong += [f"printed raw: {', '.join(found)[:300]}"] if (found := obeyed(told)) else []
    wrong += ["told what stands outside"] if CANARY in told else []
    wrong += [f"opened {path}" for path in sorted(set(opened))]
    after = {path: path.read_bytes() for path in (folder / "outside").iterdir()}
    wrong += ["wrote outside"] if after != outside else []
    page = Path("page.html")
    wrong += ["a page tells what stands outside"] if page.exists() and CANARY in page.read_text() else []
    page.unlink(missing_ok=True)
    wrong += [f"{seconds:.1f} s of CPU"] if seconds > most_seconds else []
    return {"command": words, "exit_code": code, "seconds": round(seconds, 2), "wrong": wrong, "crash": crash,
            "told": told[:3000]}  # fmt: skip
