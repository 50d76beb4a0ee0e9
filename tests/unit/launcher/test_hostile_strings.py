"""500 hostile strings as argument, environment value, path and name, through every way to start ranks: each
arrives as it is or is refused, and no shell makes the marker file."""

from __future__ import annotations

import ast
import json
import os
import string
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile import MARKER, strings
from zerokit.errors import InputError
from zerokit.launcher import command as commands
from zerokit.launcher import packed
from zerokit.launcher.devices import Devices
from zerokit.launcher.nodes.cluster import SlurmJob, ssh_command
from zerokit.launcher.nodes.hostfile import Host
from zerokit.launcher.options import BOOTSTRAP, LaunchOptions
from zerokit.launcher.placement import Placement
from zerokit.launcher.rank.process import parse_arguments
from zerokit.script.entry_points import Target
from zerokit.script.reader import ScriptFacts

STRINGS = strings(500)
HOSTS = [Host(name="a", slots=1, line=1), Host(name="b", slots=1, line=2)]


def on_hosts(
    script: str, arguments: tuple[str, ...], run_dir: Path, base: dict[str, str]
) -> commands.Command:
    target = Target(script=script, module=None, arguments=arguments)
    devices = Devices(kind="cpu", ranks=1, gpu_indexes=(), why="")
    return commands.build(
        LaunchOptions(target=target, hostfile="/hosts"),
        Placement(devices=devices, port=25000, hosts=tuple(HOSTS)),
        commands.ScriptSetup(style="none", facts=ScriptFacts(path=Path("t.py"))),
        run_dir=run_dir,
        base=base,
    )


def through_deepspeed_and_a_shell(
    command: commands.Command, base: dict[str, str], echo: Path, folder: Path
) -> Any:
    """What the remote shell of DeepSpeed's own runner starts: its arguments and environment."""
    runners = pytest.importorskip("deepspeed.launcher.multinode_runner")
    from deepspeed.launcher import runner as deepspeed_runner

    at = command.argv.index(str(BOOTSTRAP))
    arguments = Namespace(
        user_args=command.argv[at + 1 :], user_script=command.argv[at], ssh_port=None, launcher_args="",
        master_addr="h", master_port=1, venv_script=None, no_python=False, module=False, no_local_rank=True,
        save_pid=False, enable_each_rank_log=None,
    )  # fmt: skip
    runner = runners.PDSHRunner(arguments, "e30=")
    environment = command.environment(base)
    for name, value in environment.items():  # as deepspeed/launcher/runner.py:main does
        if name.startswith((*deepspeed_runner.EXPORT_ENVS, "NCCL")):
            runner.add_export(name, value)
    for line in command.files["deepspeed_env"].splitlines(keepends=True):
        runner.add_export(*line.split("=", maxsplit=1))
    before = Path.cwd()
    os.chdir(packed.LAUNCHER_FOLDER)
    try:
        argv, _, _ = runner.get_cmd({}, {"a": [0], "b": [0]})
    finally:
        os.chdir(before)
    line = " ".join(argv[argv.index("a,b") + 1 :])
    line = line.replace(sys.executable, str(echo)).replace("%n", "0").replace("%h", "a").replace("%%", "%")
    done = subprocess.run(
        ["/bin/sh", "-c", line], cwd=folder, capture_output=True, check=True, env={"PATH": os.defpath}
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("echo") / "python"
    print_all = "import json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    program.write_text(f"#!{sys.executable} -ISE\n{print_all}")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("kind", ["argument", "path", "folder", "environment"])
def test_they_arrive_through_deepspeeds_pdsh_runner_or_are_refused(
    kind: str, echo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    batch = 1 if kind != "argument" else 25
    for number in range(0, len(STRINGS), batch):
        texts = STRINGS[number : number + batch]
        here = tmp_path
        if kind == "folder":
            name = texts[0].replace("/", "_")[:80] or "x"
            here = tmp_path / f"w{number}" / f"x{name}"
            here.mkdir(parents=True)
        monkeypatch.chdir(here)
        base = {"PATH": "/bin"}
        if kind == "environment":
            base |= {"NCCL_X": texts[0], "MLFLOW_X": texts[0], "HF_X": texts[0]}
        script = "./" + texts[0] if kind == "path" else "t.py"
        run_dir = here / "run" if kind == "folder" else tmp_path / "run"
        try:
            built = on_hosts(script, tuple(texts) if kind == "argument" else ("--x",), run_dir, base)
        except InputError:
            refused += 1
            continue
        argv, environment = through_deepspeed_and_a_shell(built, base, echo, here)
        arguments, changes = packed.unpack(argv[-1])
        target = parse_arguments(arguments)
        environment.update({n: v for n, v in changes.items() if v is not None})
        assert target.name == script
        assert target.arguments == (texts if kind == "argument" else ["--x"])
        assert environment["ZEROKIT_CWD"] == str(here) and environment["ZEROKIT_RUN_DIR"] == str(run_dir)
        if kind == "environment":
            assert environment["NCCL_X"] == environment["MLFLOW_X"] == texts[0]
    assert refused == 0
    assert not list(tmp_path.rglob(MARKER)) and not Path(MARKER).exists()


class _Template(string.Template):
    """torch/distributed/elastic/utils/api.py:58 of 2.13, on every argument of torchrun's script."""


def test_they_arrive_through_srun_and_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """srun hands arguments on as they are; torch's agent takes each for a template."""
    monkeypatch.chdir(tmp_path)
    job = SlurmJob(job_id="7", nodes=("a", "b"))
    devices = Devices(kind="cpu", ranks=2, gpu_indexes=(), why="")
    for number in range(0, len(STRINGS), 25):
        texts = tuple(STRINGS[number : number + 25])
        built = commands.build(
            LaunchOptions(target=Target(script=f"./{texts[0]}", module=None, arguments=texts)),
            Placement(devices=devices, port=25000, slurm=job),
            commands.ScriptSetup(style="none", facts=ScriptFacts(path=Path("t.py"))),
            run_dir=tmp_path / f"run {texts[0][:50]}",
            base={"HF_X": texts[0]},
        )
        words = built.argv[built.argv.index(str(BOOTSTRAP)) + 1 :]
        seen = [_Template(word).safe_substitute(local_rank="0") for word in words]
        if seen[0].startswith(packed.OPTION):
            seen = packed.unpack(seen[0])[0]
        target = parse_arguments(seen)
        assert (target.name, tuple(target.arguments)) == (f"./{texts[0]}", texts)
        assert built.environment({"HF_X": texts[0]})["HF_X"] == texts[0]


def test_they_arrive_through_ssh(echo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps, preflight and gathering: ssh joins the words, and the other machine's shell reads the line."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    for number in range(0, len(STRINGS), 100):
        texts = STRINGS[number : number + 100]
        command = ssh_command("-oProxyCommand=x", 5, str(echo), *texts)
        at = command.index("--")
        assert command[at + 1] == "-oProxyCommand=x"
        done = subprocess.run(
            ["/bin/sh", "-c", " ".join(command[at + 2 :])], cwd=tmp_path, capture_output=True, check=True,
            env={"PATH": os.defpath},
        )  # fmt: skip
        assert json.loads(done.stdout)[0] == texts
    assert not list(tmp_path.iterdir())


# ---- emit

_SHOW = """#!{python} -IS
import os, string, sys
# torch/distributed/elastic/utils/api.py:58 of 2.13
argv = [string.Template(word).safe_substitute(local_rank="0") for word in sys.argv[1:]]
with open(os.environ["SHOWN"], "wb") as file:
    file.write(b"\\0".join(map(os.fsencode, argv)) + b"\\1" + os.environb.get(b"HF_X", b""))
"""


@pytest.fixture
def in_a_plans_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from tests.support.plans import write_plan

    write_plan(tmp_path / "plan")
    (tmp_path / "bin").mkdir()
    for name in ("torchrun", "srun", "scontrol"):
        text = _SHOW.format(python=sys.executable)
        if name == "srun":
            text = '#!/bin/sh\nshift\nexec "$@"\n'
        if name == "scontrol":
            text = "#!/bin/sh\necho node-1\n"
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def emitted(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> bytes | None:
    from zerokit.cli import run

    code = run(["emit", *arguments])
    out, err = capfdbinary.readouterr()
    assert code in (0, 2) and b"Traceback" not in err, err
    return out if code == 0 else None


def shown(folder: Path, command: list[str], environment: dict[str, str]) -> tuple[list[str], str]:
    """The arguments after torchrun's own, and HF_X, as the started program has them."""
    place = folder / "shown"
    path = {"PATH": f"{folder / 'bin'}:{os.defpath}", "SHOWN": str(place), "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n", "JOB_COMPLETION_INDEX": "0"}  # fmt: skip
    subprocess.run(command, cwd=folder, env=path | environment, check=True, capture_output=True)
    argv, _, value = place.read_bytes().partition(b"\1")
    words = [os.fsdecode(word) for word in argv.split(b"\0")]
    return words[words.index("./t.py") :], os.fsdecode(value)


def test_emitted_slurm_scripts_start_what_was_given(
    in_a_plans_folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    here = in_a_plans_folder
    texts = [text for text in STRINGS if "\x01" not in text]
    for number in range(0, len(texts), 10):
        batch = texts[number : number + 10]
        out = emitted(capfdbinary, "sbatch", "--style", "none", "--plan", "plan", "./t.py", *batch)
        assert out is not None
        (here / "job.sh").write_bytes(out)
        assert shown(here, ["bash", "job.sh"], {}) == (["./t.py", *batch], "")
    refused = 0
    for text in texts[::5]:
        out = emitted(
            capfdbinary, "sbatch", "--style", "none", "--plan", "plan", "--env", f"HF_X={text}", "./t.py"
        )
        if out is None:
            refused += 1
            assert "\n" in text or "\r" in text
            continue
        (here / "job.sh").write_bytes(out)
        assert shown(here, ["bash", "job.sh"], {}) == (["./t.py"], text)
    assert refused < len(texts) // 10
    assert not list(here.rglob(MARKER))


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


def test_emitted_kubernetes_jobs_start_what_was_given(
    in_a_plans_folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    import yaml

    here, common = in_a_plans_folder, ("--style", "none", "--plan", "plan")
    texts = [text for text in STRINGS if "\x01" not in text]
    in_yaml = [text for text in texts if not any("\ud800" <= character <= "\udfff" for character in text)]
    for text in set(texts) - set(in_yaml):  # YAML holds no such byte
        assert emitted(capfdbinary, "kubernetes", *common, "--image", "i", "./t.py", text) is None
    for number in range(0, len(in_yaml), 5):
        words = in_yaml[number : number + 5]
        broken = [word for word in words if "\n" in word or "\r" in word]
        line = next(word for word in words if word not in broken)
        for word in broken:  # neither a variable nor an image holds a line break
            for option in (f"--env=HF_X={word}", f"--image=i{word}"):
                image = () if option.startswith("--image") else ("--image", "i")
                assert emitted(capfdbinary, "kubernetes", *common, *image, option, "./t.py") is None
        given = (f"--env=HF_X={line}", f"--image=i{line}", f"--gpu-resource=r{line}")
        out = emitted(capfdbinary, "kubernetes", *common, *given, "./t.py", *words)
        assert out is not None
        job = list(yaml.safe_load_all(out.decode()))[-1]
        container = job["spec"]["template"]["spec"]["containers"][0]
        assert container["image"] == f"i{line}" and f"r{line}" in container["resources"]["limits"]
        pairs = {entry["name"]: entry["value"] for entry in container["env"]}
        variables = {name: expanded(value, {}) for name, value in pairs.items()}
        command = [expanded(word, variables | {"HOME": "/wrong"}) for word in container["command"]]
        expected = (["./t.py", *words], line)
        assert shown(here, command, {"HF_X": variables.get("HF_X", "")}) == expected
    assert not list(here.rglob(MARKER))


def test_emitted_configurations_hold_what_was_given(
    in_a_plans_folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The file that an accelerate YAML names, and a path of the plan's, in every file that holds it."""
    import yaml

    refused = 0
    for text in STRINGS:
        out = emitted(capfdbinary, "accelerate", f"--deepspeed={text}", "--plan", "plan")
        if out is None:
            refused += 1
            continue
        named = yaml.safe_load(out)["deepspeed_config"]["deepspeed_config_file"]
        assert named == (text or str(Path("plan/ds_config.json").absolute()))
    assert refused < len(STRINGS) // 10
    path = Path("plan/plan.yaml")
    plan = yaml.safe_load(path.read_text())
    plan["chosen"]["deepspeed_config"]["zero_optimization"] = {"stage": 3}
    zero = plan["chosen"]["deepspeed_config"]["zero_optimization"]
    for text in STRINGS[::10]:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": text}
        path.write_text(json.dumps(plan))
        found = [
            emitted(capfdbinary, *target, "--plan", "plan", *rest)
            for target, rest in (
                (("deepspeed",), ()),
                (("accelerate", "--form", "plugin"), ()),
                (("kubernetes", "--image", "i", "--style", "none"), ("t.py",)),
            )
        ]
        if None in found:
            refused += 1
            continue
        file, plugin, manifest = (list(yaml.safe_load_all(out or b"")) for out in found)
        pod = json.loads(manifest[0]["data"]["ds_config.json"])
        for config in (file[0], pod):
            assert config["zero_optimization"]["offload_optimizer"]["nvme_path"] == text
        assert plugin[0]["deepspeed_config"]["offload_optimizer_nvme_path"] == text
    assert not list(in_a_plans_folder.rglob(MARKER))


@pytest.mark.parametrize("target", ["sbatch", "kubernetes", "hostfile"])
def test_hostile_names_are_refused(
    target: str, in_a_plans_folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    import re

    options = {
        "sbatch": lambda t: ("sbatch", "--style", "none", "--plan", "plan", f"--job-name={t}", "./t.py"),
        "kubernetes": lambda t: (
            "kubernetes", "--image", "i", "--style", "none", "--plan", "plan", f"--name={t}", "./t.py"
        ),
        "hostfile": lambda t: ("hostfile", "--plan", "plan", "--", t),
    }  # fmt: skip
    for text in STRINGS:
        out = emitted(capfdbinary, *options[target](text))
        assert out is None or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text), text


# ---- the other launchers


@pytest.mark.parametrize("launcher", ["deepspeed", "accelerate", "torchrun"])
def test_they_arrive_with_every_launcher_of_one_machine(launcher: str, tmp_path: Path) -> None:
    """Real launchers, two ranks; the working folder, the script and the run folder are hostile too."""
    pytest.importorskip("deepspeed")
    here = tmp_path / f'w $(touch {MARKER}) `touch {MARKER}` it\'s;touch {MARKER} %n "q" ä\udcff'
    here.mkdir()
    name = f"-t $(touch {MARKER}).py"
    (here / name).write_text(
        "import os, pathlib, sys\n"
        "seen = sys.argv, {n: v for n, v in os.environ.items() if n.startswith('X_')}\n"
        "pathlib.Path('seen-' + os.environ['RANK']).write_text(ascii(seen))\n"
    )
    texts = [text for text in STRINGS if text != "--"]
    root = str(Path(__file__).parents[3])
    main = f"import sys; sys.path[:1] = [{root!r}]; from zerokit.cli import main; main()"
    command = [sys.executable, "-c", main, "launch", "--device", "cpu", "--num-ranks", "2", "--style", "none",
               "--launcher", launcher, "--run-dir", f"r $(touch {MARKER})\udcff", f"./{name}",
               *texts]  # fmt: skip
    variables = {f"X_{number}": text for number, text in enumerate(STRINGS)}
    done = subprocess.run(
        command, cwd=here, env={**os.environ, **variables}, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    for rank in (0, 1):
        seen = ast.literal_eval((here / f"seen-{rank}").read_text())
        assert seen == ([f"./{name}", *texts], variables)
    assert not list(tmp_path.rglob(MARKER))
