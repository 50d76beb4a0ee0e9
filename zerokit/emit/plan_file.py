"""``plan.yaml``: what was asked, what was chosen, what was predicted. Written and read back."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from zerokit import __version__
from zerokit.domain.client_optimizers import client_optimizer, with_optimizer
from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION, from_config
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.job import Job, Lora
from zerokit.domain.planned import Chosen, degrees, world_size
from zerokit.domain.strategy import Strategy
from zerokit.domain.trainers import TRAINERS
from zerokit.emit.outside import check_outside
from zerokit.errors import FileInputError, InputError
from zerokit.files import write_whole
from zerokit.strictload import Document, load_yaml
from zerokit.strictload.yamltext import dump_yaml
from zerokit.units import counted, format_gib, parse_bytes, parse_count, parse_share
from zerokit.values import frozen_dataclass, replace

FILE_NAME = "plan.yaml"
_MOST = 1 << 20  # of ranks, nodes or sequences: more than any run has
SCHEMA = "zerokit.planfile/1"

_REQUIRED: Mapping[type, tuple[str, ...]] = {
    dict: ("request", "chosen"),
    int: ("chosen.data_parallel", "chosen.tensor_parallel", "chosen.micro_batch",
          "chosen.gradient_accumulation"),
    str: ("chosen.precision",),
}  # fmt: skip
_OF_ENGINE: Mapping[str, Mapping[type, tuple[str, ...]]] = {
    "deepspeed": {dict: ("chosen.deepspeed_config",), int: ("chosen.zero_stage",)},
    "fsdp2": {dict: ("chosen.accelerate_config",)},
    "ddp": {dict: ("chosen.accelerate_config",)},
}
"""Engine -> what a plan for it must have, too; a plan without the key is for DeepSpeed."""
_LAUNCH = "zerokit launch --plan DIR train.py"
_ACCELERATE = "accelerate launch --config_file accelerate.yaml train.py"
_NOT_READ_BACK = {
    "ddp": "is a plan without an engine: nothing of it is divided, so nothing is read back",
    "parts": "divides layers as Transformers loads them, of which nothing is read back: start the script "
    "with `accelerate launch`, or rehearse it without the plan",
}
"""What ``launch`` does not run -> what is said of a plan for it."""
_AT_LEAST_ONE = ("data_parallel", "tensor_parallel", "pipeline_parallel", "sequence_parallel", "micro_batch",
                 "gradient_accumulation")  # fmt: skip
_OPTIONAL: Mapping[type, tuple[str, ...]] = {
    dict: ("reasons", "files", "cluster", "chosen.script", "chosen.rehearsed", "chosen.environment",
           "chosen.estimate"),
    list: ("assumptions", "trainer_arguments", "chosen.script.decided", "chosen.script.arguments",
           "chosen.estimate.per_rank"),
    str: ("chosen.activation_checkpointing", "chosen.offload_optimizer", "chosen.offload_param"),
    int: ("chosen.context_parallel", "chosen.parameters", "chosen.seq_len",
          "chosen.estimate.peak_allocated_bytes",
          "chosen.estimate.host_bytes_per_node"),
}  # fmt: skip
_NAMES: Mapping[type, str] = {dict: "a mapping", int: "a whole number", str: "text", list: "a list"}


@frozen_dataclass
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
    chosen: Chosen
    assumptions: tuple[str, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    trainer_arguments: tuple[str, ...] = ()

    @property
    def folder(self) -> pathlib.Path:
        """Where the plan's files lie."""
        return self.path.parent

    @property
    def world_size(self) -> int:
        """Ranks the plan is for."""
        return world_size(self.chosen)

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence that it is for. Raises InputError: it is no number."""
        return parse_count(str(self.chosen.get("seq_len", self.request.get("seq-len", Job().seq_len))))

    @property
    def decided_by_script(self) -> tuple[str, ...]:
        """Options of the request that the script decided which was planned for, not its user."""
        return tuple(map(str, (self.chosen.get("script") or {}).get("decided") or ()))

    @property
    def rehearsed_arguments(self) -> tuple[str, ...] | None:
        """Arguments that its script was rehearsed with, secrets masked; None: not known."""
        arguments = (self.chosen.get("script") or {}).get("arguments")
        return None if arguments is None else tuple(map(str, arguments))

    @property
    def method(self) -> str:
        """What the plan trains: ``full``, ``lora`` or ``qlora``."""
        return str(self.request.get("method", Job().method))

    @property
    def trainer(self) -> str:
        """Whose defaults it counts: a key of ``zerokit.domain.trainers.TRAINERS``."""
        name = str(self.request.get("trainer", Job().trainer))
        return name if name in TRAINERS else Job().trainer

    @property
    def lora(self) -> Lora | None:
        """The adapters that it trains; None: all weights. Raises InputError: their rank is no number."""
        if self.method == "full":
            return None
        plain = Lora()
        targets = str(self.request.get("lora-targets", ",".join(plain.targets)))
        rank = parse_count(str(self.request.get("lora-rank", plain.rank)))
        row = TRAINERS[self.trainer]
        dropout = parse_share(self.request.get("lora-dropout", row.lora_dropout), "lora-dropout")
        return Lora(rank=rank, targets=tuple(part.strip() for part in targets.split(",")), dropout=dropout)

    @property
    def title(self) -> str:
        """What it is for and when it was written: ``the plan of 2026-11-23 18:36 for QLoRA of llama-3.1-8b on
        8 × h200``."""
        written_at = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.path.stat().st_mtime))
        names = (
            (self.chosen.get("script") or {}).get("model"),
            self.request.get("model"),
            self.request.get("params"),
            (self.chosen.get("rehearsed") or {}).get("script"),
        )
        model = next((str(name) for name in names if name), "a model")
        trains = {"lora": "LoRA of ", "qlora": "QLoRA of "}.get(self.method, "")
        if "inference" in self.request:
            trains = "inference of "
        gpus = f"{self.world_size} × {self.gpu}"
        ranks = counted(self.world_size, "CPU rank") if self.gpu == "cpu" else gpus
        return f"the plan of {written_at} for {trains}{model} on {ranks}"

    @property
    def gpu(self) -> str:
        """The GPU's name; its memory where that alone was given: the cluster has whose speeds are assumed."""
        if self.request.get("vram") and not self.request.get("gpu"):
            return f"{format_gib(parse_bytes(self.request['vram'], 'vram'), 1)} GPU"
        return str(self.cluster.get("gpu", "GPU"))

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the plan sets; each was checked against the list of those it may set."""
        from zerokit.domain.environment import as_text

        return as_text(self.chosen.get("environment") or {})

    @property
    def nodes(self) -> int:
        """Nodes the plan is for."""
        return int(self.cluster.get("nodes", 1))

    def strategy(self) -> Strategy:
        """The choice as the emitters take it. Raises InputError: a value of the wrong kind in ``chosen``, or
        a plan without an engine."""
        checkpointing = self.chosen.get("activation_checkpointing", "none")
        if (message := _not_read_back(self.chosen)) is not None:
            raise FileInputError(self.path, message)
        if self.engine == "fsdp2":
            return Strategy(settings=self._fsdp2(), checkpointing=checkpointing, **degrees(self.chosen))
        try:
            settings = from_config(self.chosen["deepspeed_config"])
            if settings.optimizer is None and client_optimizer(self.request.get("optimizer")) is not None:
                settings = with_optimizer(settings, self.request["optimizer"])
        except InputError as error:
            raise FileInputError(self.path, f"chosen.deepspeed_config: {error}") from None
        return Strategy(settings=settings, checkpointing=checkpointing, **degrees(self.chosen))

    @property
    def engine(self) -> str:
        """The engine that trains: deepspeed or fsdp2."""
        return self.chosen.get("engine", "deepspeed")

    def _fsdp2(self) -> Fsdp2Settings:
        from zerokit.domain.fsdp2_config import from_accelerate

        try:
            settings = from_accelerate(self.chosen["accelerate_config"]).settings
        except InputError as error:
            raise FileInputError(self.path, f"chosen.accelerate_config: {error}") from None
        precision = self.chosen["precision"]
        return replace(
            settings,
            precision=precision,
            master_bytes=4 if settings.precision == precision else 2,
            micro_batch=self.chosen["micro_batch"],
            gradient_accumulation=self.chosen["gradient_accumulation"],
            gradient_clipping=float(self.chosen.get("gradient_clipping", 0.0)),
            optimizer=str(self.request.get("optimizer", settings.optimizer)),
        )


def _not_read_back(chosen: Mapping[str, Any]) -> str | None:
    """Why a choice is no strategy of ``launch``; None: it is one."""
    engine = str(chosen.get("engine"))
    in_parts = engine == "fsdp2" and chosen.get("tensor_parallel", 1) > 1
    return _NOT_READ_BACK.get("parts" if in_parts else engine)


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
    """Write ``plan.yaml`` into ``folder`` (made if missing); returns its path. Raises InputError: the folder
    cannot be written, or a value is not plain data."""
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
    run = _LAUNCH if _not_read_back(chosen) is None else _ACCELERATE
    text = dump_yaml(
        body,
        header=f"A plan of zerokit. Run it:     {run}\n"
        "Plan again from the request: zerokit plan --recipe plan.yaml",
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text, through_links=True)
    except OSError as error:
        raise InputError(f"⟨out⟩ {folder}: cannot be written: {error.strerror}") from None
    return path


class NotAPlan(FileInputError):
    """A readable file of another kind stands where a plan is expected."""


def read(
    location: str | pathlib.Path, run_dir: str | pathlib.Path | None = None, document: Document | None = None
) -> PlanFile:
    """Read a plan from its folder or its file; ``run_dir``: where it may write; ``document``: what the file
    says, where it was read. Raises NotAPlan: a file of another kind. Raises FileInputError: missing, a value
    of the wrong kind, or one that names what only a user may name, with line and column."""
    path = pathlib.Path(location)
    if path.is_dir():
        path = path / FILE_NAME
    if document is None and not path.exists():
        raise FileInputError(location, _missing(path.parent if path.name == FILE_NAME else path))
    if path.suffix == ".py":
        raise FileInputError(location, "is a Python script, not a plan")
    document = document or load_yaml(path)
    body = document.value
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        if path.name != FILE_NAME and (path.parent / FILE_NAME).is_file():
            raise FileInputError(location, f"is one file of a plan: name its folder, {path.parent}")
        raise NotAPlan(path, f"is not a plan: expected `schema: {SCHEMA}`", *document.location(("schema",)))
    engine = _at(document, ("chosen", "engine")) or "deepspeed"
    if engine not in _OF_ENGINE:
        message = f"chosen.engine: {engine!r:.60} must be one of {', '.join(_OF_ENGINE)}"
        raise document.error(("chosen", "engine"), message)
    for table, is_required in ((_REQUIRED, True), (_OF_ENGINE[engine], True), (_OPTIONAL, False)):
        for kind, names in table.items():
            for key_path in (tuple(name.split(".")) for name in names):
                if is_required or _at(document, key_path) is not None:
                    _expect(document, key_path, kind)
    cluster = body.get("cluster") or {}
    for block, given, name in (
        *(("chosen", body["chosen"], name) for name in _AT_LEAST_ONE), ("cluster", cluster, "nodes"),
    ):  # fmt: skip
        number = given.get(name, 1)
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MOST:
            message = f"{block}.{name}: {number!r:.60} must be a whole number from 1 to {_MOST:,}"
            raise document.error((block, name), message)
    _check_environment(document)
    _check_estimate(document)
    if engine == "deepspeed":
        check_config(document, ("chosen", "deepspeed_config"))
        check_outside(document, ("chosen", "deepspeed_config"), run_dir)
    return PlanFile(
        path=path,
        request=body["request"],
        chosen=body["chosen"],
        assumptions=tuple(str(text) for text in body.get("assumptions") or ()),
        reasons=dict(body.get("reasons") or {}),
        files=dict(body.get("files") or {}),
        cluster=dict(cluster),
        trainer_arguments=tuple(str(text) for text in body.get("trainer_arguments") or ()),
    )


def is_of_something_else(path: pathlib.Path) -> bool:
    """Whether a ``plan.yaml`` is readable YAML that is no plan of zerokit: a file of the user's."""
    try:
        body = load_yaml(path).value
    except InputError:
        return False
    return not (isinstance(body, dict) and str(body.get("schema", "")).startswith("zerokit."))


def _missing(folder: pathlib.Path) -> str:
    from zerokit.suggest import folder_alike

    if (similar := folder_alike(folder, holding=FILE_NAME)) is not None:
        return f"there is no plan; did you mean {similar}?"
    return f"there is no plan; make one with: zerokit plan --out {folder} …"


def _check_environment(document: Document) -> None:
    if not (variables := document.value["chosen"].get("environment")):
        return
    from zerokit.domain.environment import problem_of

    for name, value in variables.items():
        problem = problem_of(name, value)
        if problem is not None:
            raise document.error(("chosen", "environment", name), f"chosen.environment.{problem}")


def _check_estimate(document: Document) -> None:
    """What the report sets beside the measured: bytes by phase and component, for a rank or some alike."""
    for number, entry in enumerate(_at(document, ("chosen", "estimate", "per_rank")) or ()):
        key_path = ("chosen", "estimate", "per_rank", number)
        if not isinstance(entry, dict):
            raise document.error(key_path, f"{_dotted(key_path)} must be a mapping, not {entry!r:.60}")
        span = entry.get("ranks", [0, 0])
        if not isinstance(span, list) or [type(end) for end in span] != [int, int]:
            raise document.error((*key_path, "ranks"), f"{_dotted(key_path)}.ranks must be two whole numbers")
        for name in ("phases", "components"):
            sizes = entry.get(name) or {}
            if not isinstance(sizes, dict) or not all(type(size) is int for size in sizes.values()):
                raise document.error((*key_path, name), f"{_dotted(key_path)}.{name} must be bytes by name")
        for name in ("peak_allocated_bytes", "rank"):
            if entry.get(name) is not None:
                _expect(document, (*key_path, name), int)


def check_config(document: Document, key_path: tuple[str, ...] = ()) -> None:
    """The blocks of a DeepSpeed configuration at ``key_path`` that a launch changes. Raises FileInputError:
    one is no mapping, with line and column."""
    for block in (("optimizer",), ("optimizer", "params"), ("scheduler",), ("scheduler", "params")):
        if _at(document, (*key_path, *block)) is not None:
            _expect(document, (*key_path, *block), dict)


def _at(document: Document, path: Sequence[str | int]) -> Any:
    """The value there; None where there is none."""
    value: Any = document.value
    for name in path:
        if isinstance(value, list) and isinstance(name, int):
            value = value[name]
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def _dotted(path: Sequence[str | int]) -> str:
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path).removeprefix(".")


def _expect(document: Document, path: tuple[str | int, ...], kind: type) -> None:
    value = _at(document, path)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        problem = "is missing" if value is None else f"must be {_NAMES[kind]}, not {value!r:.60}"
        error: FileInputError = document.error(path, f"{_dotted(path)} {problem}")
        raise error


def title_of(folder: str | pathlib.Path) -> str | None:
    """:attr:`PlanFile.title` of the plan in a folder; None: there is none, or it cannot be read."""
    try:
        return read(folder).title
    except (InputError, OSError):
        return None


def read_of_run(folder: pathlib.Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The plan that a run folder keeps, for its report: ``request``, ``chosen`` and ``cluster``. One that
    cannot be read is a problem of the report, not its end."""
    if not os.path.lexists(folder / FILE_NAME):
        return None, []
    try:
        plan = read(folder, run_dir=folder)
    except InputError as error:
        return None, [f"the plan is not used: {error}"]
    return {"request": plan.request, "chosen": plan.chosen, "cluster": plan.cluster}, []
