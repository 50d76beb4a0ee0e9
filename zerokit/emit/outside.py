"""Keys of DeepSpeed and Accelerate that name files, folders, hosts or code: one table for every command.

A plan is a file that people pass on, so what it names must lie in the run folder. Elsewhere only the user may
name it: on the command line, or in a file that the user names (⟨deepspeed⟩, the script's own).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.files import cache_folder, write_whole
from zerokit.strictload import Document
from zerokit.values import frozen_dataclass

Path = tuple[str | int, ...]


@frozen_dataclass
class Named:
    """What one key names.

    Attributes:
        key: dotted; ``*`` is any key of a mapping or item of a list.
        what: that it names: ``file``, ``folder``, ``host`` or ``code``.
        beside: of the same block: a name that DeepSpeed joins to it.
        needs: of the same block: without this key, or one of these values of it, nothing is read.
        source: file:line of DeepSpeed 0.19.8 or Accelerate 1.15.0 that uses it.
    """

    key: str
    what: str
    source: str
    beside: str = ""
    needs: tuple[str, tuple[object, ...]] | None = None


_ON = ("enabled", (True,))
_TO_NVME = ("device", ("nvme",))
_SAMPLING = "data_efficiency.data_sampling"
_METRICS = f"{_SAMPLING}.curriculum_learning.curriculum_metrics.*"
DEEPSPEED = (
    Named(key="flops_profiler.output_file", what="file", needs=_ON,
          source="profiling/flops_profiler/profiler.py:307"),
    Named(key="tensorboard.output_path", what="folder", beside="job_name", needs=_ON,
          source="monitor/tensorboard.py:33"),
    Named(key="csv_monitor.output_path", what="folder", beside="job_name", needs=_ON,
          source="monitor/csv_monitor.py:35"),
    Named(key="wandb.enabled", what="host", needs=_ON, source="monitor/wandb.py:31"),
    Named(key="comet.enabled", what="host", needs=_ON, source="monitor/comet.py:27"),
    Named(key="comet.api_key", what="host", source="monitor/comet.py:27"),
    *(Named(key=f"zero_optimization.{part}.nvme_path", what="folder", needs=_TO_NVME,
            source="runtime/swap_tensor/utils.py")
      for part in ("offload_param", "offload_optimizer")),
    Named(key=f"{_SAMPLING}.curriculum_learning.data_cluster_path", what="folder",
          source="runtime/data_pipeline/data_sampling/data_sampler.py:83"),
    *(Named(key=f"{_METRICS}.{name}", what="file",
            source="runtime/data_pipeline/data_sampling/data_sampler.py:97")
      for name in ("index_to_sample_path", "index_to_metric_path")),
    Named(key=f"{_SAMPLING}.dynamic_batching.metrics_path", what="folder",
          source="runtime/data_pipeline/data_sampling/variable_batch_size_and_lr.py:374"),
    *(Named(key=f"autotuning.{name}", what="folder", source="autotuning/constants.py:49")
      for name in ("results_dir", "exps_dir", "metric_path", "model_info_path")),
    *(Named(key=f"nebula.{name}", what="folder", source="deepspeed-0.17.6/nebula/config.py:37")
      for name in ("persistent_storage_path", "nebula_load_path")),
    Named(key="torch_autocast.lower_precision_safe_modules.*", what="code",
          source="runtime/torch_autocast.py:48"),
)  # fmt: skip
ACCELERATE = (
    *(Named(key=key, what="code", source="commands/tpu.py:103")
      for key in ("command_file", "commands", "tpu_name", "tpu_zone", "tpu_use_sudo", "tpu_vm", "tpu_env")),
    Named(key="main_process_ip", what="host", source="utils/launch.py:230"),
    Named(key="deepspeed_config.deepspeed_hostfile", what="file", source="utils/launch.py:375"),
    Named(key="deepspeed_config.deepspeed_config_file", what="file", source="utils/launch.py:398"),
    Named(key="deepspeed_config.deepspeed_multinode_launcher", what="code", source="utils/launch.py:385"),
    *(Named(key=f"deepspeed_config.offload_{part}_nvme_path", what="folder", source="utils/launch.py:566",
            needs=(f"offload_{part}_device", ("nvme",)))
      for part in ("param", "optimizer")),
    Named(key="mpirun_config.mpirun_hostfile", what="file", source="utils/launch.py:128"),
    Named(key="fp8_config.override_linear_precision", what="code", source="commands/config/config_args.py"),
    *(Named(key=key, what=what, source="commands/config/config_args.py")
      for key, what in (("iam_role_name", "host"), ("image_uri", "host"), ("sagemaker_inputs_file", "file"),
                        ("sagemaker_metrics_file", "file"), ("profile", "host"))),
)  # fmt: skip
_JOB = "DeepSpeedJobName"
"""Of a monitor that names none (``monitor/config.py``)."""
_IMPORTED = "torch.nn."
"""Packages that every run has imported: their classes are no code of the plan's."""


@frozen_dataclass
class Outside:
    """A value that a plan may not have. ``path``: of the key. ``written``: its value, as text. ``problem``:
    what it names, and how it is taken."""

    path: Path
    written: str
    problem: str


def outside(
    config: object, folders: tuple[str, ...], table: tuple[Named, ...] = DEEPSPEED
) -> Iterator[Outside]:
    """What a configuration names that is not in one of these folders, and that this user named nowhere."""
    for row in table:
        for path, block in _blocks(config, tuple(row.key.split("."))):
            name = path[-1]
            value = block[name] if isinstance(name, int) else block.get(name)
            needed, wanted = row.needs or (None, ())
            if needed is not None and not _is_one_of(block.get(needed), wanted):
                continue
            if value in (None, "", [], {}) and not (row.beside and needed is not None):
                continue
            problem = _problem(row, block, value, folders)
            if problem is not None:
                yield Outside(path=path, written=str(value), problem=problem)


def _blocks(value: Any, names: tuple[str, ...], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The mappings or lists that may hold the last of ``names``, with its whole path."""
    name, *rest = names
    keys: list[Any] = [name]
    if name == "*":
        keys = list(value) if isinstance(value, Mapping) else []
        keys = list(range(len(value))) if isinstance(value, list) else keys
    elif not isinstance(value, Mapping):
        return
    for key in keys:
        if not rest:
            yield (*path, key), value
        elif isinstance(value, list) or key in value:
            yield from _blocks(value[key], tuple(rest), (*path, key))


def _is_one_of(value: object, wanted: tuple[object, ...]) -> bool:
    """Whether DeepSpeed takes a value for one of these: its models read ``"yes"`` and 1 as true."""
    if True in wanted:
        return value not in (None, False)
    return str(value).lower() in wanted


def _problem(row: Named, block: Any, value: object, folders: tuple[str, ...]) -> str | None:
    if row.what in ("host", "code"):
        if isinstance(value, str) and row.key.startswith("torch_autocast") and value.startswith(_IMPORTED):
            return None
        does = "sends to or reaches another host" if row.what == "host" else "names code that is run"
        return f"{value!r:.80} {does}"
    names = [value, *([block.get(row.beside, _JOB)] if row.beside else [])]
    if not all(isinstance(name, str) for name in names if name is not None):
        return f"{value!r:.80} is no path"
    written = os.path.join("", *(str(name) for name in names if name))  # noqa: PTH118 - as DeepSpeed does
    taken = _taken(written)
    if taken is not None and any(all(_is_in(one, folder) for one in taken) for folder in folders):
        return None
    if row.key.endswith("nvme_path") and taken is not None and set(taken) <= _remembered():
        return None
    shown = f" ({taken[0]})" if taken is not None and taken[0] != written else ""
    return f"{written!r:.300}{shown} is a {row.what} outside of the run folder"


def _taken(written: str) -> tuple[str, ...] | None:
    """The real paths that a text may be taken for, with and without ``~`` and variables; None: a URL or no
    path."""
    if "://" in written or written.startswith(("//", "\\\\")) or "\0" in written:
        return None
    expanded = os.path.expanduser(os.path.expandvars(written))  # noqa: PTH111
    return tuple(os.path.realpath(text) for text in dict.fromkeys((written, expanded)))


def _is_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{os.path.realpath(folder)}/") and path != os.path.realpath(folder)


def check_outside(
    document: Document, key_path: Path = (), run_dir: str | os.PathLike[str] | None = None
) -> None:
    """Refuse a plan's DeepSpeed configuration at ``key_path`` that names what only a user may name.
    ``run_dir``: where a run of the plan may write; None: not known. Raises FileInputError: with line, column
    and both paths."""
    config = document.value
    for name in key_path:
        config = config[name]
    folders = () if run_dir is None else (os.fspath(run_dir),)
    for found in outside(config, folders):
        raise document.error((*key_path, *found.path), say(found, key_path, run_dir))


def say(found: Outside, key_path: Path = (), run_dir: str | os.PathLike[str] | None = None) -> str:
    """The refusal: both values, and the fix."""
    dotted = ".".join(map(str, (*key_path, *found.path)))
    where = f", {run_dir}" if run_dir is not None else ""
    fix = (
        "name that folder with ⟨nvme⟩ in `zerokit plan` on this machine"
        if dotted.endswith("nvme_path")
        else "remove it, or, if it is yours, run this JSON as your own file with ⟨deepspeed⟩"
    )
    return f"{dotted}: {found.problem}{where}, and a plan may not name it; {fix}"


_KEPT = "nvme-folders.json"


def remember(folder: object) -> None:
    """Keep that this user named a folder for NVMe offload: plans on this machine may name it."""
    if not isinstance(folder, str | os.PathLike) or not str(folder).startswith("/"):
        return
    known = _remembered() | set(_taken(os.fspath(folder)) or ())
    path = cache_folder() / _KEPT
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(sorted(known)), durable=False)


def _remembered() -> set[str]:
    try:
        return set(map(str, json.loads((cache_folder() / _KEPT).read_text())))
    except (OSError, ValueError, TypeError):
        return set()
