"""Hostile strings as argument, variable, path and name through every ``emit`` target: what the written file
starts has each as it was given, or it is refused, and no shell makes the marker file.

150 strings run everywhere, all 500 with ``-m slow``.
"""

from __future__ import annotations

import ast
import json
import os
import re
import string
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.hostile import MARKER, SHOW, shown, strings
from tests.support.plans import write_plan
from zerokit.emit.jobs import SERVICES
from zerokit.emit.outside import remember


@pytest.fixture(scope="module", params=[150, pytest.param(500, marks=pytest.mark.slow)])
def texts(request: pytest.FixtureRequest) -> list[str]:
    """Every hostile string there is, and some that are made of their pieces."""
    return strings(request.param)


@pytest.fixture
def in_a_plans_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder: ``plan`` is a plan, ``bin`` has stand-ins that show what they are started with."""
    write_plan(tmp_path / "plan")
    (tmp_path / "bin").mkdir()
    stand_ins = {
        "torchrun": SHOW,
        "srun": '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n',
        "scontrol": "#!/bin/sh\necho node-1\n",
    }
    for name, text in stand_ins.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not list(tmp_path.rglob(MARKER))


def emitted(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> bytes | None:
    """What ``zerokit emit`` writes; None where it refuses."""
    from zerokit.cli import run

    code = run(["emit", *arguments])
    out, err = capfdbinary.readouterr()
    assert code in (0, 2) and b"Traceback" not in err, err
    return out if code == 0 else None


def started(folder: Path, command: list[str], script: str, more: dict[str, str]) -> tuple[list[str], str]:
    """The words from ``script`` on, and HF_X, as the ranks of the started torchrun have them."""
    path = {"PATH": f"{folder / 'bin'}:{os.defpath}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n",
            "JOB_COMPLETION_INDEX": "0"}  # fmt: skip
    done = subprocess.run(command, cwd=folder, env=path | more, check=True, capture_output=True)
    words, environment = shown(done.stdout)
    # torch/distributed/elastic/utils/api.py:58 of 2.13
    argv = [string.Template(word).safe_substitute(local_rank="0") for word in words]
    return argv[argv.index(script) :], environment.get("HF_X", "")


def hostile_plan(number: int, text: str) -> str:
    """The plan's folder under a hostile name."""
    folder = Path(f"p{number}") / f"x{text.replace('/', '_')[:80]}"
    folder.parent.mkdir()
    folder.symlink_to(Path("plan").absolute())
    return str(folder)


def test_slurm_scripts_start_what_was_given(
    in_a_plans_folder: Path, capfdbinary: pytest.CaptureFixture[bytes], texts: list[str]
) -> None:
    """Each string is the script's name, an argument, a variable and the name of the plan's folder."""
    refused = 0
    for number, text in enumerate(texts):
        plan, script = hostile_plan(number, text), f"./x{text[:200]}"
        common = ("sbatch", "--style", "raw", "--plan", plan)
        value = text
        out = emitted(capfdbinary, *common, "--env", f"HF_X={text}", script, text)
        if out is None:
            refused += 1
            assert "\n" in text or "\r" in text  # in no variable
            value = ""
            out = emitted(capfdbinary, *common, script, text)
        assert out is not None
        Path("job.sh").write_bytes(out)
        config = f"{plan}/ds_config.json"
        given = [text] if text.partition("=")[0] == "--deepspeed_config" else [text, "--deepspeed"]
        words, variable = started(in_a_plans_folder, ["bash", "job.sh"], script, {})
        assert words[:2] == [script, text] and variable == value
        assert words[1:] == [*given, "--deepspeed_config", config]
    assert 0 < refused < len(texts) // 5


def expanded(text: str, variables: dict[str, str]) -> str:
    """What a kubelet makes of a command or value: $$ is $, $(NAME) a variable that is defined
    (third_party/forked/golang/expansion/expand.go of Kubernetes)."""
    out, at = "", 0
    while at < len(text):
        if text[at] == "$" and text[at + 1 : at + 2] == "$":
            out, at = out + "$", at + 2
        elif text[at] == "$" and text[at + 1 : at + 2] == "(" and ")" in text[at:]:
            end = text.index(")", at)
            name = text[at + 2 : end]
            out, at = out + variables.get(name, f"$({name})"), end + 1
        else:
            out, at = out + text[at], at + 1
    return out


def test_kubernetes_jobs_start_what_was_given(
    in_a_plans_folder: Path, capfdbinary: pytest.CaptureFixture[bytes], texts: list[str]
) -> None:
    """Each string is the script's name, an argument, a variable, an image and a plan's folder."""
    for number, text in enumerate(texts):
        common = ("kubernetes", "--style", "none", "--plan", hostile_plan(number, text))
        script, image = f"./x{text[:200]}", ("--image", "i")
        if any("\ud800" <= character <= "\udfff" for character in text):  # YAML holds no such byte
            assert emitted(capfdbinary, *common, *image, "./t.py", text) is None
            assert emitted(capfdbinary, *common, *image, script) is None
            continue
        named = [f"--env=HF_X={text}", f"--image=i{text}"]
        if "\n" in text or "\r" in text:  # neither a variable nor an image holds a line break
            for option in named:
                assert emitted(capfdbinary, *common, *image, option, "./t.py") is None
            named = list(image)
        out = emitted(capfdbinary, *common, *named, script, text)
        assert out is not None
        job = list(yaml.safe_load_all(out.decode()))[-1]
        container = job["spec"]["template"]["spec"]["containers"][0]
        pairs = {entry["name"]: entry["value"] for entry in container["env"]}
        variables = {name: expanded(value, {}) for name, value in pairs.items()}
        command = [expanded(word, variables | {"HOME": "/wrong"}) for word in container["command"]]
        more = {"HF_X": variables.get("HF_X", "")}
        words, variable = started(in_a_plans_folder, command, script, more)
        assert words == [script, text]
        if len(named) == 2 and named != list(image):
            assert variable == text and container["image"] == f"i{text}"


def start_of(service: str, written: bytes) -> str:
    """What a node's shell is given in a service's file."""
    if service in ("torchx", "ray"):
        literal = next(
            node.value for node in ast.parse(written).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "START"
        )  # fmt: skip
        text = str(ast.literal_eval(literal))
        return text.replace("$$", "$") if service == "torchx" else text
    file = yaml.safe_load(written.decode())
    return str(file["run"] if service == "skypilot" else file["commands"][-1])


@pytest.mark.parametrize("service", SERVICES)
def test_services_start_what_was_given(
    service: str, in_a_plans_folder: Path, capfdbinary: pytest.CaptureFixture[bytes], texts: list[str]
) -> None:
    """Each string is the script's name, an argument, a variable, an image, a GPU and a plan's folder."""
    nodes = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "a\nb", "NODE_RANK": "0", "MAIN_ADDRESS": "a"}
    for number, text in enumerate(texts):
        common = (service, "--style", "none", "--plan", hostile_plan(number, text))
        script = f"./x{text[:200]}"
        taken = {"torchx": 1, "ray": 0}.get(service, 2)  # of the last two options
        named = [f"--env=HF_X={text}", *[f"--image=i{text}", f"--gpu-name=g{text}"][:taken]]
        gpu_name = ["--gpu-name=g"] * (taken == 2)
        is_text = not any("\ud800" <= character <= "\udfff" for character in text)
        if "\n" in text or "\r" in text or not (is_text or service in ("torchx", "ray")):
            for option in named[:2]:
                assert emitted(capfdbinary, *common, option, *gpu_name, "./t.py") is None
            named = gpu_name
        out = emitted(capfdbinary, *common, *named, script, text)
        if out is None:
            assert not is_text and service in ("skypilot", "dstack")
            continue
        words, variable = started(in_a_plans_folder, ["bash", "-c", start_of(service, out)], script, nodes)
        assert words == [script, text] and variable == (text if named != gpu_name else "")
        if service in ("skypilot", "dstack") and len(named) > 1:
            file = yaml.safe_load(out.decode())
            gpu = file["resources"]["accelerators" if service == "skypilot" else "gpu"]
            image = file["resources"]["image_id"] if service == "skypilot" else file["image"]
            assert gpu == f"g{text}:2" and image.endswith(f"i{text}")


def test_configurations_hold_what_was_given(
    in_a_plans_folder: Path, capfdbinary: pytest.CaptureFixture[bytes], texts: list[str]
) -> None:
    """The file that an accelerate YAML names, the plan's folder, and the file written."""
    refused = 0
    for number, text in enumerate(texts):
        plan, file = hostile_plan(number, text), Path(f"p{number}") / f"o{text.replace('/', '_')[:80]}"
        assert emitted(capfdbinary, "deepspeed", "--plan", plan, "--out", str(file)) == b""
        assert json.loads(file.read_text())["zero_optimization"]["stage"] == 2
        out = emitted(capfdbinary, "accelerate", f"--deepspeed={text}", "--plan", plan)
        if out is None:
            refused += 1
            assert any("\ud800" <= character <= "\udfff" for character in text)
            continue
        named = yaml.safe_load(out)["deepspeed_config"]["deepspeed_config_file"]
        assert named == (text or str(Path(plan).absolute() / "ds_config.json"))
    assert refused < len(texts) // 5


@pytest.mark.slow
def test_a_path_of_the_plans_is_in_every_file_as_it_is(
    in_a_plans_folder: Path, capfdbinary: pytest.CaptureFixture[bytes], texts: list[str]
) -> None:
    """Accelerate's plugin has no key for it, and refuses."""
    path = Path("plan/plan.yaml")
    plan = yaml.safe_load(path.read_text())
    plan["chosen"]["deepspeed_config"]["zero_optimization"] = {"stage": 3}
    zero = plan["chosen"]["deepspeed_config"]["zero_optimization"]
    for text in (f"/nvme/{text}" for text in texts):
        remember(text)  # as `zerokit plan --nvme` does
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": text}
        written = json.dumps(plan)
        for pair in re.findall(r"\\ud[89ab]..\\ud[c-f]..", written):  # two characters to YAML
            written = written.replace(pair, json.loads(f'"{pair}"'))
        path.write_text(written)
        file = emitted(capfdbinary, "deepspeed", "--plan", "plan")
        pod = emitted(
            capfdbinary, "kubernetes", "--image", "i", "--style", "none", "--plan", "plan", "./t.py"
        )
        if file is None or pod is None:
            assert any("\ud800" <= character <= "\udfff" for character in text) or "://" in text
            continue
        first = next(iter(yaml.safe_load_all(pod)))
        for config in (json.loads(file), json.loads(first["data"]["ds_config.json"])):
            assert config["zero_optimization"]["offload_optimizer"]["nvme_path"] == text
    assert emitted(capfdbinary, "accelerate", "--form", "plugin", "--plan", "plan") is None


@pytest.mark.parametrize("target", ["sbatch", "kubernetes", "resource", "hostfile"])
def test_hostile_names_are_refused(
    target: str, in_a_plans_folder: Path, capfdbinary: pytest.CaptureFixture[bytes], texts: list[str]
) -> None:
    options = {
        "sbatch": lambda t: ("sbatch", "--style", "none", "--plan", "plan", f"--job-name={t}", "./t.py"),
        "kubernetes": lambda t: (
            "kubernetes", "--image", "i", "--style", "none", "--plan", "plan", f"--name={t}", "./t.py"
        ),
        "resource": lambda t: (
            "kubernetes", "--image", "i", "--style", "none", "--plan", "plan", f"--gpu-resource={t}", "./t.py"
        ),
        "hostfile": lambda t: ("hostfile", "--plan", "plan", "--", t),
    }  # fmt: skip
    for text in texts:
        out = emitted(capfdbinary, *options[target](text))
        assert out is None or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text), text
