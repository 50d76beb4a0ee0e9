"""What starts the ranks: DeepSpeed's launcher, Accelerate's, torchrun, or one on each node of a Slurm job.

One class each: its command line, the variables and files that it needs, and its packages. Another launcher is
another class in :data:`BACKENDS`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from zerokit.errors import InputError

if TYPE_CHECKING:
    from zerokit.launcher.nodes.cluster import SlurmJob

BOOTSTRAP = Path(__file__).with_name("rank") / "bootstrap.py"
AGENT = Path(__file__).with_name("agent.py")


@dataclass(slots=True, kw_only=True)
class LaunchCommand:
    """What is run, the variables set and those taken away, and files of the run folder, by name."""

    argv: list[str]
    set_variables: dict[str, str] = field(default_factory=dict)
    unset_variables: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The complete environment of the launcher."""
        inherited = {name: value for name, value in base.items() if name not in self.unset_variables}
        return inherited | self.set_variables


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a backend starts, and where: ``ranks`` on each machine (of this one on ``gpu_indexes``; None: CPU
    ranks) or on so many ``hosts`` of the hostfile; ``script``: the bootstrap's words, with the user's script
    and its arguments, whose parser may know ``--local_rank``; ``base``: the environment to start from."""

    port: int
    ranks: int
    gpu_indexes: tuple[int, ...] | None
    hosts: int | None
    script: list[str]
    run_dir: Path
    takes_local_rank: bool
    base: Mapping[str, str]
    hostfile: str | os.PathLike[str] | None = None


class Backend:
    """What all of them have. ``packages``: those that must be installed beside this Python."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ("torch",)
    expands_arguments: ClassVar[bool] = True
    """Torch's agent takes every argument for a template: $$ is $, ${local_rank} a number
    (torch/distributed/elastic/agent/server/local_elastic_agent.py:452 of 2.13)."""

    def complete(self, command: LaunchCommand, start: Start) -> None:
        """Write the command line, and the variables that this launcher needs. Raises InputError: it cannot
        start ranks there."""
        if start.hosts is not None:
            raise InputError(
                f"⟨launcher⟩ {self.name} with ⟨hostfile⟩: only deepspeed starts ranks on other machines "
                "here (accelerate would write the whole environment, tokens too, into .deepspeed_env); leave "
                "⟨launcher⟩ out"
            )
        command.argv = [*self.words(start), *start.script]
        self.choose_gpus(command, start)

    def words(self, start: Start) -> list[str]:
        """The launcher's own words, before the script's."""
        raise NotImplementedError

    def choose_gpus(self, command: LaunchCommand, start: Start) -> None:
        """Tell ranks on this machine which GPUs are theirs."""
        if start.gpu_indexes is not None:
            command.set_variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, start.gpu_indexes))
            command.unset_variables = [n for n in command.unset_variables if n != "CUDA_VISIBLE_DEVICES"]

    def files(self, run_dir: Path, config: Mapping[str, Any] | None, ranks: int) -> dict[str, Any]:
        """Documents that the run folder must hold, by name; ``config``: DeepSpeed's."""
        return {}


class Torchrun(Backend):
    """PyTorch's launcher, with its store on the loopback address."""

    name = "torchrun"

    def words(self, start: Start) -> list[str]:
        """One machine, so many processes."""
        return [
            *_program("torchrun", "torch.distributed.run", str(AGENT)),
            "--nnodes=1",
            f"--nproc_per_node={start.ranks}",
            "--master_addr=127.0.0.1",
            f"--master_port={start.port}",
        ]


@dataclass(frozen=True)
class Accelerate(Backend):
    """``accelerate launch``, with a file of ours, so that no default file of the user's joins in:
    ``document``, where a plan has it, or one that names DeepSpeed's."""

    name = "accelerate"
    packages = ("torch", "deepspeed", "accelerate")
    document: Mapping[str, Any] | None = None

    def words(self, start: Start) -> list[str]:
        """One machine, so many processes."""
        from zerokit.launcher.run_folder import ACCELERATE_FILE

        return [
            *_program("accelerate", "accelerate.commands.accelerate_cli", str(AGENT)),
            "launch",
            f"--config_file={start.run_dir / ACCELERATE_FILE}",
            f"--num_processes={start.ranks}",
            "--num_machines=1",
            f"--main_process_port={start.port}",
        ]

    def files(self, run_dir: Path, config: Mapping[str, Any] | None, ranks: int) -> dict[str, Any]:
        """What ``accelerate launch`` reads (JSON is YAML)."""
        from zerokit.launcher.run_folder import ACCELERATE_FILE, CONFIG_FILE

        if self.document is not None:
            return {ACCELERATE_FILE: dict(self.document)}
        body: dict[str, Any] = {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "DEEPSPEED",
            "num_machines": 1,
            "machine_rank": 0,
            "num_processes": ranks,
            "main_training_function": "main",
            "use_cpu": False,
            "rdzv_backend": "static",
            "same_network": True,
            "downcast_bf16": "no",
        }
        if config is not None:
            body["deepspeed_config"] = {
                "deepspeed_config_file": str(run_dir / CONFIG_FILE),
                "zero3_init_flag": config.get("zero_optimization", {}).get("stage") == 3,
            }
        return {ACCELERATE_FILE: body}


@dataclass(frozen=True)
class Slurm(Backend):
    """One torchrun on each node of a Slurm job, whatever ``launcher`` was named: DeepSpeed's own launcher for
    Slurm sets no RANK."""

    job: SlurmJob
    named: Backend

    def words(self, start: Start) -> list[str]:
        """A step of the job: one torchrun a node, meeting at the first; Slurm ends all when one fails."""
        count = len(self.job.nodes)
        return [
            "srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--kill-on-bad-exit=1",
            "--export=ALL", *_program("torchrun", "torch.distributed.run"), f"--nnodes={count}",
            f"--nproc_per_node={start.ranks}", "--rdzv_backend=c10d",
            f"--rdzv_endpoint={self.job.nodes[0]}:{start.port}", f"--rdzv_id={self.job.job_id}",
        ]  # fmt: skip

    def choose_gpus(self, command: LaunchCommand, start: Start) -> None:
        """Choose as the launcher that was named does: by default Slurm has given each node its GPUs."""
        self.named.choose_gpus(command, start)


class DeepSpeed(Backend):
    """DeepSpeed's launcher; on other machines through pdsh."""

    name = "deepspeed"
    packages = ("torch", "deepspeed")
    expands_arguments = False

    def complete(self, command: LaunchCommand, start: Start) -> None:
        """Write the command line; for other machines also what ranks there need of the environment. Raises
        InputError: something cannot pass the shell of another machine."""
        script = start.script if start.hosts is None else _for_other_machines(command, start)
        command.argv = [*self.words(start), *script]

    def words(self, start: Start) -> list[str]:
        """Name GPUs or ranks of this machine, or the machines of a hostfile."""
        words = _program("deepspeed", "deepspeed.launcher.runner")
        if start.hosts is not None:
            words += [
                f"--hostfile={Path(start.hostfile or '').resolve()}", f"--num_nodes={start.hosts}",
                f"--master_port={start.port}", "--launcher=pdsh", "--force_multi",
            ]  # fmt: skip
        else:
            indexes = start.gpu_indexes
            include = f"--include=localhost:{','.join(map(str, indexes or ()))}"
            words.append(f"--num_accelerators={start.ranks}" if indexes is None else include)
            # Without a hostfile option DeepSpeed reads /job/hostfile, should a cluster have put one there.
            words += ["--hostfile=/dev/null", f"--master_port={start.port}"]
        return words if start.takes_local_rank else [*words, "--no_local_rank"]

    def choose_gpus(self, command: LaunchCommand, start: Start) -> None:
        """Nothing: it is told by its own options."""


BACKENDS: Mapping[str, Backend] = {one.name: one for one in (DeepSpeed(), Accelerate(), Torchrun())}
"""By the name that ``--launcher`` takes."""


def backend_of(launcher: str, slurm: SlurmJob | None = None) -> Backend:
    """What starts the ranks."""
    named = BACKENDS[launcher]
    return named if slurm is None else Slurm(slurm, named)


def _program(name: str, module: str, *through: str) -> list[str]:
    """The program beside this Python; as a module, the working folder's files would come first. ``through``
    :mod:`zerokit.launcher.agent` its store is on the loopback address."""
    sibling = Path(sys.executable).with_name(name)
    return [sys.executable, *through, *([str(sibling)] if sibling.is_file() else ["-m", module])]


# ---- several machines, through DeepSpeed's pdsh runner

# What it exports to the other machines of the environment that it was started in, by the beginning of the
# name (deepspeed/launcher/runner.py:32, accelerator/cuda_accelerator.py:411 of 0.19.8).
_EXPORTED_BY_DEEPSPEED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
_READ_BEFORE_THE_RANK = ("PYTHONPATH", "PYTHONHOME")  # by DeepSpeed's own processes on each machine
_SAFE_EXPORT = re.compile(r"(?:[\w@+=:,./^~\[\]-]+(?: +[\w@+=:,./^~\[\]-]+)*)?")
_SAFE_PATH = re.compile(r"[\w@+=:,./-]+")
# What DeepSpeed's own processes there need; all else reaches the rank packed.
_FOR_DEEPSPEED = ("DS_ACCELERATOR", "OMP_NUM_THREADS", "CUDA_DEVICE_ORDER", "ZEROKIT_RUN_ID")


def _for_other_machines(command: LaunchCommand, start: Start) -> list[str]:
    """The script as words that pass the shells of other machines, with the ranks' variables packed. Raises
    InputError: a path, variable or list of arguments that cannot."""
    from zerokit.launcher import rank_start
    from zerokit.launcher.run_folder import DEEPSPEED_ENV_FILE

    for owner, path in (("Python", sys.executable), ("zerokit", str(BOOTSTRAP))):
        if not _SAFE_PATH.fullmatch(path):  # DeepSpeed writes both into the remote shell's line as they are
            raise InputError(
                f"⟨hostfile⟩: {owner} is installed at {path!r}, and DeepSpeed cannot start it through "
                "the shell of another machine; install it under a path of letters, digits and "
                "_ @ + = : , . / -"
            )
    word = rank_start.pack(start.script[1:], _for_the_ranks(command, start.base))
    if len(word) > rank_start.LONGEST:
        raise InputError(
            f"the script's arguments are {sum(map(len, start.script)):,} characters: too long for the "
            "command line of another machine; put them into a file that the script reads"
        )
    # Ours go by this file, in the run folder instead of the home folder.
    environment_file = start.run_dir / DEEPSPEED_ENV_FILE
    setting = command.set_variables
    command.files[environment_file.name] = "".join(
        f"{name}={setting[name]}\n" for name in _FOR_DEEPSPEED if setting.get(name)
    )
    setting["DS_ENV_FILE"] = str(environment_file)
    return [start.script[0], word]


def _for_the_ranks(command: LaunchCommand, base: Mapping[str, str]) -> dict[str, str | None]:
    """The variables of ranks on other machines: those we set, and the user's that DeepSpeed would garble,
    which are taken from its own environment, so that it does not export them. Raises InputError: one that
    Python itself needs before a rank begins."""
    variables = {n: v for n, v in command.set_variables.items() if n not in _FOR_DEEPSPEED}
    for name in ("CUDA_VISIBLE_DEVICES", "DS_ENV_FILE"):  # deepspeed/launcher/launch.py sets the former
        variables.pop(name, None)
    variables_of_ranks: dict[str, str | None] = {"PYTHONPATH": None, **variables}
    for name, value in {**base, **command.set_variables}.items():
        if not name.startswith(_EXPORTED_BY_DEEPSPEED) or _SAFE_EXPORT.fullmatch(value):
            continue
        if name in _READ_BEFORE_THE_RANK:
            raise InputError(
                f"⟨hostfile⟩: the environment variable {name} holds {value!r:.80}, which a shell on "
                "the other machines would change, as DeepSpeed's pdsh runner quotes it; use paths of "
                "letters, digits and _ @ + = : , . / -"
            )
        variables_of_ranks[name] = value
        command.set_variables.pop(name, None)
        command.unset_variables.append(name)
    return variables_of_ranks
