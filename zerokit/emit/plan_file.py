"""``plan.yaml``: what was asked, what was chosen, what was predicted. Written and read back."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerokit import __version__
from zerokit.domain import environment as variables
from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION, from_config
from zerokit.domain.strategy import Strategy
from zerokit.errors import FileInputError, InputError
from zerokit.files import write_whole
from zerokit.strictload import Document, load_yaml
from zerokit.strictload.yamldump import dump_yaml

FILE_NAME = "plan.yaml"
SCHEMA = "zerokit.planfile/1"

_CHOSEN_REQUIRED: Mapping[str, type] = {
    "zero_stage": int,
    "data_parallel": int,
    "tensor_parallel": int,
    "micro_batch": int,
    "gradient_accumulation": int,
    "precision": str,
    "deepspeed_config": dict,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """One ``plan.yaml``.

    Attributes:
        request: the options of ``zerokit plan``, by their long names.
        chosen: STRATEGY of ``plan --json``, with ``deepspeed_config`` and ``estimate``.
        reasons: dotted key of the DeepSpeed configuration -> why it has its value.
        files: kind -> file name, relative to the plan's folder.
        cluster: ``nodes`` and ``gpu`` (``cpu``: for CPU ranks) that the plan is for.
        trainer_arguments: what a Hugging Face Trainer script must be given for the plan to hold.
    """

    path: pathlib.Path
    request: dict[str, Any]
    chosen: dict[str, Any]
    assumptions: tuple[str, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    trainer_arguments: tuple[str, ...] = ()
    zerokit_version: str = __version__
    deepspeed_version: str = DEEPSPEED_VERSION

    @property
    def folder(self) -> pathlib.Path:
        """Where the plan's files lie."""
        return self.path.parent

    @property
    def world_size(self) -> int:
        """Ranks the plan is for."""
        degrees = ("data_parallel", "tensor_parallel", "pipeline_parallel", "sequence_parallel")
        product = 1
        for name in degrees:
            product *= int(self.chosen.get(name, 1))
        return product

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the plan sets; each was checked against the list of those it may set."""
        return variables.as_text(self.chosen.get("environment") or {})

    @property
    def nodes(self) -> int:
        """Nodes the plan is for."""
        return int(self.cluster.get("nodes", 1))

    def strategy(self) -> Strategy:
        """The choice as the emitters take it.

        Raises:
            InputError: a value of the wrong kind in ``chosen``.
        """
        degrees = {
            name: int(self.chosen.get(name, 1))
            for name in ("data_parallel", "tensor_parallel", "pipeline_parallel", "sequence_parallel")
        }
        try:
            settings = from_config(self.chosen["deepspeed_config"])
        except InputError as error:
            raise FileInputError(self.path, f"chosen.deepspeed_config: {error}") from None
        checkpointing = str(self.chosen.get("activation_checkpointing", "none"))
        return Strategy(settings=settings, checkpointing=checkpointing, **degrees)


def write(
    folder: str | pathlib.Path,
    request: Mapping[str, Any],
    chosen: Mapping[str, Any],
    *,
    assumptions: tuple[str, ...] = (),
    reasons: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    cluster: Mapping[str, Any] | None = None,
    trainer_arguments: Sequence[str] = (),
) -> pathlib.Path:
    """Write ``plan.yaml`` into ``folder`` (made if missing); returns its path.

    Raises:
        InputError: the folder cannot be written, or a value is not plain data.
    """
    path = pathlib.Path(folder) / FILE_NAME
    body = {
        "schema": SCHEMA,
        "zerokit": __version__,
        "deepspeed": DEEPSPEED_VERSION,
        "request": dict(request),
        "cluster": dict(cluster or {}),
        "chosen": dict(chosen),
        "trainer_arguments": list(trainer_arguments),
        "assumptions": list(assumptions),
        "reasons": dict(reasons or {}),
        "files": {kind: str(name) for kind, name in (files or {}).items()},
    }
    text = dump_yaml(
        body,
        header="A plan of zerokit. Run it:     zerokit launch --plan DIR train.py\n"
        "Plan again from the request: zerokit plan --recipe plan.yaml",
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text, through_links=True)
    except OSError as error:
        raise InputError(f"⟨out⟩ {folder}: cannot be written: {error.strerror}") from None
    return path


def read(place: str | pathlib.Path) -> PlanFile:
    """Read a plan from its folder or its file.

    Raises:
        FileInputError: missing, not a plan, or a value of the wrong kind, with line and column.
    """
    path = pathlib.Path(place)
    if path.is_dir():
        path = path / FILE_NAME
    if not path.exists():
        folder = path.parent if path.name == FILE_NAME else path
        raise FileInputError(place, f"there is no plan; make one with: zerokit plan --out {folder} …")
    document = load_yaml(path)
    body = document.value
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise document.error(("schema",), f"is not a plan: expected `schema: {SCHEMA}`")
    for name in ("request", "chosen"):
        _expect(document, (name,), dict)
    for name, kind in _CHOSEN_REQUIRED.items():
        _expect(document, ("chosen", name), kind)
    for name in ("data_parallel", "tensor_parallel", "pipeline_parallel", "sequence_parallel", "micro_batch"):
        value = body["chosen"].get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise document.error(("chosen", name), f"{name}: {value!r} must be a whole number of at least 1")
    cluster = body.get("cluster") or {}
    nodes = cluster.get("nodes", 1) if isinstance(cluster, dict) else None
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise document.error(("cluster", "nodes"), "cluster.nodes must be a whole number of at least 1")
    _check_environment(document)
    return PlanFile(
        path=path,
        request=body["request"],
        chosen=body["chosen"],
        assumptions=tuple(str(text) for text in body.get("assumptions") or ()),
        reasons=dict(body.get("reasons") or {}),
        files=dict(body.get("files") or {}),
        cluster=dict(cluster),
        trainer_arguments=tuple(str(text) for text in body.get("trainer_arguments") or ()),
        zerokit_version=str(body.get("zerokit", "")),
        deepspeed_version=str(body.get("deepspeed", "")),
    )


def _check_environment(document: Document) -> None:
    given = document.value["chosen"].get("environment")
    if given is None:
        return
    _expect(document, ("chosen", "environment"), dict)
    for name, value in given.items():
        problem = variables.problem_of(name, value)
        if problem is not None:
            raise document.error(("chosen", "environment", name), f"chosen.environment.{problem}")


def _expect(document: Document, path: tuple[str, ...], kind: type) -> None:
    value: Any = document.value
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {dict: "a mapping", int: "a whole number", str: "text"}
        what = "is missing" if value is None else f"must be {names[kind]}, not {value!r:.60}"
        error: FileInputError = document.error(path, f"{'.'.join(path)} {what}")
        raise error
