"""Strategy → what starts it elsewhere: a hostfile, an sbatch script, a manifest, a service's own file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerokit import resources
from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError
from zerokit.units import counted
from zerokit.values import frozen_dataclass

STYLES = ("raw", "trainer", "accelerate", "none")
"""How the script takes its configuration; ``none``: the command says it already, or nothing does."""

CONFIG_IN_POD = "/etc/zerokit/ds_config.json"
"""Where the Kubernetes manifest mounts the DeepSpeed JSON."""
ACCELERATE_IN_POD = "/etc/zerokit/accelerate.yaml"
"""Where it mounts what Accelerate starts the ranks with."""

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""How many threads CPU Adam steps an offloaded optimizer with."""

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_POD_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")
_SERVICE_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
# A qualified name: kubernetes.io, "Labels and Selectors", syntax and character set.
_RESOURCE = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE_BREAKS = re.compile(r"[\r\n\x00]")


def hostfile(hosts: Sequence[str], strategy: Strategy, nodes: int) -> str:
    """DeepSpeed's hostfile: ``HOST slots=N`` per node. Raises InputError: not one host per node, a host
    twice, or a name ssh could read as an option."""
    if len(hosts) != nodes:
        raise InputError(
            f"{counted(len(hosts), 'host')} named; the plan has ⟨nodes⟩ {nodes}: name one for each"
        )
    for number, host in enumerate(hosts):
        if not _HOST.fullmatch(host):
            raise InputError(f"host {host!r}: use letters, digits, dots and hyphens")
        if host in hosts[:number]:
            raise InputError(f"host {host!r} is named twice")
    slots = _gpus_per_node(strategy, nodes)
    return "".join(f"{host} slots={slots}\n" for host in hosts)


def read_time_limit(text: str) -> str | None:
    """What Slurm takes a time limit for, where its user may mean hours: ``12`` and ``12:00`` are minutes.

    Source: the manual of sbatch, ``--time``: "minutes", "minutes:seconds", "hours:minutes:seconds",
    "days-hours", "days-hours:minutes" and "days-hours:minutes:seconds".

    Raises:
        InputError: none of these.
    """
    if not _TIME.fullmatch(text):
        raise InputError(f"⟨time⟩ {text}: use for example 12:00:00 (hours) or 2-00:00:00 (days)")
    number, colon, rest = text.partition(":")
    if "-" in number or ":" in rest:
        return None
    seconds = f" {counted(int(rest), 'second')}" if colon and int(rest) else ""
    return (
        f"⟨time⟩ {text} is {counted(int(number), 'minute')}{seconds} to Slurm; "
        f"for hours write {number}:{rest if colon else '00'}:00"
    )


def check_sbatch(job_name: str, time_limit: str | None) -> None:
    """Refuse what Slurm would read otherwise. Raises InputError: the name or the time limit."""
    if not _JOB_NAME.fullmatch(job_name):
        raise InputError(f"⟨job_name⟩ {job_name!r}: use letters, digits, dots, hyphens and underscores")
    if time_limit is not None:
        read_time_limit(time_limit)


def sbatch_script(
    strategy: Strategy,
    nodes: int,
    command: Sequence[str],
    *,
    ds_config_path: str = "",
    accelerate_file: str | None = None,
    style: str = "raw",
    environment: Mapping[str, str] | None = None,
    job_name: str = "zerokit",
    time_limit: str | None = None,
) -> str:
    """An sbatch script: one ``torchrun`` per node under ``srun``.

    ``command`` is the training script and its arguments. DeepSpeed's own Slurm launcher sets no
    RANK, hence torchrun; with an ``accelerate_file``, ``accelerate launch`` is given that.

    Raises:
        InputError: a name, time limit or variable that Slurm or the shell would read otherwise.
    """
    check_sbatch(job_name, time_limit)
    return render(
        "sbatch.sh.j2",
        job_name=job_name,
        time_limit=time_limit,
        nodes=nodes,
        gpus_per_node=_gpus_per_node(strategy, nodes),
        ranks=strategy.world_size,
        accelerate_file=accelerate_file,
        environment=_environment(style, ds_config_path, environment),
        shares_cores=_shares_cores(strategy, environment),
        command=_command(command, style, ds_config_path),
    )


def check_kubernetes(name: str, image: str, gpu_resource: str) -> None:
    """Refuse what Kubernetes would. Raises InputError: the name, the image or the resource."""
    if not _POD_NAME.fullmatch(name):
        raise InputError(f"⟨name⟩ {name!r}: use lower-case letters, digits and hyphens, at most 52")
    if not image.strip() or _LINE_BREAKS.search(image):
        raise InputError("⟨image⟩: name the container image that holds the training script")
    if not _RESOURCE.fullmatch(gpu_resource):
        raise InputError(f"⟨gpu_resource⟩ {gpu_resource!r:.80}: use a name such as nvidia.com/gpu")


def read_variables(texts: Iterable[str]) -> dict[str, str]:
    """Environment variables as they are typed, NAME=VALUE. Raises InputError: one is not, or cannot be
    written into a script."""
    variables = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise InputError(f"⟨env⟩ {text}: write NAME=VALUE")
        variables[name] = value
    _check_variables(variables)
    return variables


def _check_variables(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name) or _LINE_BREAKS.search(value):
            raise InputError(f"environment variable {name!r} cannot be written into a script")


def kubernetes_manifest(
    strategy: Strategy,
    nodes: int,
    command: Sequence[str],
    *,
    image: str,
    ds_config: Mapping[str, Any],
    accelerate: Mapping[str, Any] | None = None,
    style: str = "raw",
    environment: Mapping[str, str] | None = None,
    name: str = "zerokit",
    gpu_resource: str = "nvidia.com/gpu",
) -> str:
    """A manifest: ConfigMap with the DeepSpeed JSON, headless Service, Indexed Job of one pod per node.

    ``accelerate``: what ``accelerate launch`` is given, in the place of torchrun and that JSON.

    Raises:
        InputError: a name or resource that Kubernetes refuses, or an empty image.
    """
    check_kubernetes(name, image, gpu_resource)
    return render(
        "kubernetes.yaml.j2",
        name=name,
        image=image,
        gpu_resource=gpu_resource,
        nodes=nodes,
        gpus_per_node=_gpus_per_node(strategy, nodes),
        ranks=strategy.world_size,
        accelerate_file=ACCELERATE_IN_POD if accelerate is not None else None,
        environment=_environment(style, CONFIG_IN_POD, environment),
        shares_cores=_shares_cores(strategy, environment),
        command=_command(command, style, CONFIG_IN_POD),
        config_name=Path(CONFIG_IN_POD if accelerate is None else ACCELERATE_IN_POD).name,
        config=json.dumps(ds_config if accelerate is None else accelerate, indent=2),
    )


@frozen_dataclass
class Service:
    """What starts jobs elsewhere. ``title``: of its file. ``start``: the command that starts a FILE.
    ``template``: of the file. ``takes``: options that the file has a place for."""

    title: str
    start: str
    template: str
    takes: tuple[str, ...] = ()

    @property
    def finds_nodes(self) -> bool:
        """Whether it looks for nodes with the GPU that it is told, and installs requirements.txt there."""
        return "gpu_name" in self.takes


SERVICES: Mapping[str, Service] = {
    "skypilot": Service(
        title="A SkyPilot task", start="sky launch FILE", template="skypilot.yaml.j2",
        takes=("name", "image", "gpu_name"),
    ),
    "dstack": Service(
        title="A dstack task", start="dstack apply -f FILE", template="dstack.yaml.j2",
        takes=("name", "image", "gpu_name"),
    ),
    "torchx": Service(
        title="A TorchX component", start="torchx run -s SCHEDULER FILE:train", template="torchx.py.j2",
        takes=("name", "image"),
    ),
    "ray": Service(
        title="A driver for Ray", start="ray job submit --working-dir . -- python FILE",
        template="ray.py.j2",
    ),
}  # fmt: skip


def check_service(name: str, image: str) -> None:
    """Refuse what one of the services would. Raises InputError: the name or the image."""
    if not _SERVICE_NAME.fullmatch(name):
        raise InputError(
            f"⟨name⟩ {name!r}: use lower-case letters, digits and hyphens, a letter first, at most 40"
        )
    if _LINE_BREAKS.search(image):
        raise InputError("⟨image⟩: contains a line break")


def service_file(
    service: str,
    strategy: Strategy,
    nodes: int,
    command: Sequence[str],
    *,
    gpu: str = "",
    ds_config_path: str = "",
    accelerate_file: str | None = None,
    style: str = "raw",
    environment: Mapping[str, str] | None = None,
    name: str = "zerokit",
    image: str = "",
    requirements: str = "",
) -> str:
    """What a service starts a job with: one ``torchrun``, or ``accelerate launch``, on each node, in a folder
    with the script and the plan's.

    Args:
        service: of :data:`SERVICES`. gpu: as it calls the GPU. requirements: the file that pip installs from.

    Raises:
        InputError: a name, image or variable that the service or the shell would read otherwise.
    """
    check_service(name, image)
    sizes = {"nodes": nodes, "gpus_per_node": _gpus_per_node(strategy, nodes)}
    start = render(
        "start.sh.j2",
        **sizes,
        ranks=strategy.world_size,
        accelerate_file=accelerate_file,
        environment=_environment(style, ds_config_path, environment),
        shares_cores=_shares_cores(strategy, environment),
        command=_command(command, style, ds_config_path),
    )
    nodes_of_gpus = f"{counted(nodes, 'node')} of {counted(sizes['gpus_per_node'], 'GPU')}"
    return render(
        SERVICES[service].template,
        **sizes,
        heading=f"{nodes_of_gpus}{' each' * (nodes > 1)}. Start with: {SERVICES[service].start}",
        start=start,
        name=name,
        image=image,
        gpu=gpu,
        requirements=requirements,
    )


def _gpus_per_node(strategy: Strategy, nodes: int) -> int:
    if strategy.world_size % nodes:
        raise InputError(f"{counted(strategy.world_size, 'rank')} cannot be divided over {nodes} nodes")
    return strategy.world_size // nodes


def _shares_cores(strategy: Strategy, environment: Mapping[str, str] | None) -> bool:
    """Whether the job gives each rank its share of the cores: CPU Adam steps with OpenMP's threads, and
    ``torchrun`` leaves a rank one (torch 2.13, distributed/run.py:872)."""
    return strategy.settings.optimizer_device != "none" and THREADS_VARIABLE not in (environment or {})


def _command(command: Sequence[str], style: str, ds_config_path: str) -> list[str]:
    if not command:
        raise InputError("name the training script")
    if any("\x00" in part for part in command):
        raise InputError("the command contains a NUL byte")
    extra = ["--deepspeed", "--deepspeed_config", ds_config_path] if style == "raw" else []
    # torch's agent takes every argument of torchrun's script for a template: $$ is $, ${local_rank} a number
    # (torch/distributed/elastic/agent/server/local_elastic_agent.py:452 of 2.13).
    return [part.replace("$", "$$") for part in (*command, *extra)]


def _environment(style: str, ds_config_path: str, more: Mapping[str, str] | None) -> dict[str, str]:
    """How the script learns of its configuration: by variables, unless it takes raw arguments."""
    if style not in STYLES:
        raise InputError(f"style {style!r}: use one of {', '.join(STYLES)}")
    variables: dict[str, str] = {}
    if style in ("trainer", "accelerate"):
        variables["ACCELERATE_USE_DEEPSPEED"] = "true"
        variables["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = ds_config_path
    variables.update(more or {})
    _check_variables(variables)
    return variables


# What YAML allows in no text as it is (YAML 1.2.2, 5.1), its line breaks, its quote and its escape.
_ESCAPED = re.compile(r'[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff"\\]')


def _yaml_text(value: str) -> str:
    """The text in YAML's double quotes, as every YAML reader takes it. Raises InputError: a byte that is not
    UTF-8, which YAML cannot hold."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{value!r:.80}: contains a byte that is not UTF-8, which YAML cannot represent")
    return '"' + _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", value) + '"'


def _yaml_block(value: str, indent: int = 2) -> str:
    """The text as a block of lines where YAML can hold it so, else in quotes."""
    lines = value.splitlines(keepends=True)
    if _ESCAPED.search(value.replace("\n", "").replace('"', "").replace("\\", "")) or "\r" in value:
        return _yaml_text(value)
    _yaml_text(value)  # bytes that YAML cannot hold
    return "|\n" + "".join(" " * indent + line for line in lines).rstrip("\n")


def _python_text(value: str) -> str:
    """The text as a Python literal, of lines where it has some and they can be written as they are."""
    as_it_is = "\n" in value and value.replace("\n", "").isprintable() and "'''" not in value
    return f"r'''{value}'''" if as_it_is and value[-1] == "\n" else repr(value)


def render(template: str, **values: object) -> str:
    """The text of a template in ``templates/``."""
    import jinja2

    # not HTML: every value goes through the `sh`, `yaml` or `kubernetes` filter in the template
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.folder("templates")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    environment.filters["yaml"] = _yaml_text
    environment.filters["block"] = _yaml_block
    environment.filters["python"] = _python_text
    environment.filters["kubernetes"] = lambda value: _yaml_text(value.replace("$", "$$"))
    return environment.get_template(template).render(**values)
