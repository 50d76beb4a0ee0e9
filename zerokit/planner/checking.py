"""Check configurations: lint them and, where asked for, ask DeepSpeed, fix, estimate whether they fit."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit import planner
from zerokit.commands import command_text
from zerokit.domain.fsdp2_settings import PARALLELISM_PREFIX
from zerokit.domain.unmodelled import unmodelled_keys
from zerokit.errors import FileInputError, InputError, NothingFits
from zerokit.fields import Say, as_options, plain, silent
from zerokit.linter import output
from zerokit.linter.accelerate.top_level import named_config
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.deepspeed.tables import has_key
from zerokit.linter.discover import files_of
from zerokit.linter.files import INTERNAL_ERROR, CheckedFile, check_files, internal_error, rehearsal_of
from zerokit.linter.finding import Finding, Row
from zerokit.machine.model_code import model_code
from zerokit.messages import shown
from zerokit.notes import Note, warning, with_id
from zerokit.planner import without_collecting
from zerokit.planner.answer import not_modelled
from zerokit.planner.documents import html_table
from zerokit.planner.options import ELSEWHERE, CheckOptions
from zerokit.planner.recipes import Recipe
from zerokit.rules.batch import ranks_of
from zerokit.search import explain
from zerokit.search.explain import host_lack_words
from zerokit.search.space import LayoutRefused
from zerokit.strictload import Document, Location
from zerokit.units import counted, format_gib, parse_positive_int

_SHOWN = 5
"""Findings at a Python prompt."""
_OF_THE_JOB = ("method", "lora-rank", "lora-targets", "lora-dropout", "trainer", "seq-len", "attention")
"""Of a plan's request: what its DeepSpeed file does not say."""
_PLAN_INVALID = Row("plan-invalid", "", "{message}", "")
_NOT_MODELLED = Row(
    "not-modelled", "", "{key} ({changes}) is not modelled: whether the file fits was judged without it",
    "measure a run with zerokit launch", "", "note",
)  # fmt: skip
_SHARED = f"parallelism_config.{PARALLELISM_PREFIX}cp_size"
_DOES_NOT_FIT = Row("does-not-fit", "", "{message}", "let `zerokit plan` choose")
_FITS_CHECKPOINTED = _DOES_NOT_FIT._replace(
    fix="turn it on in the script, and say so here with ⟨checkpointing⟩ full", severity="warning"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a file fits.

    Attributes:
        fits: None: no memory was named, it does not use DeepSpeed, or errors keep it from being judged.
        row: of the finding that it is; None: nothing is lacking, as far as is told.
        marked: a sentence with the figures, with the arguments that it names marked (:mod:`zerokit.fields`).
    """

    fits: bool | None
    row: Row | None
    marked: str

    @property
    def message(self) -> str:
        """A sentence with the figures."""
        return plain(self.marked)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckResult:
    """What was found in the files.

    Attributes:
        files: each with its kind and findings; those that a file names come after it.
        fixed: findings whose fix was written.
        fits: of a file's path, whether it fits, where a model was named.
        skipped: files of a folder that are no configurations.
        stopped: why DeepSpeed could not be asked, or why nobody can tell whether it fits; else None.
    """

    files: tuple[CheckedFile, ...]
    fixed: tuple[Finding, ...] = ()
    fits: Mapping[str, Fit] = field(default_factory=dict)
    skipped: int = 0
    stopped: InputError | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of all files."""
        return tuple(finding for file in self.files for finding in file.findings)

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not any(file.failed for file in self.files)

    def exit_code(self, *, strict: bool = False) -> int:
        """0, 2 for errors (``strict``: warnings too), 1 for an error of zerokit's own."""
        if any(finding.rule == INTERNAL_ERROR for finding in self.findings):
            return 1
        failing = ("error", "warning") if strict else ("error",)
        return 2 if any(finding.severity in failing for finding in self.findings) else 0

    def __repr__(self) -> str:
        """What a Python prompt shows: how many findings there are, and the first of them."""
        first = self.findings[:_SHOWN]
        shown = [f"{one.where}: {one.severity}: {one.message}" for one in first]
        more = len(self.findings) - len(shown)
        shown += [f"and {more} more, in findings"] if more else []
        counts = output.summary(self.files, notes=True, skipped=self.skipped)
        return "\n  ".join((f"<Check of {counts}", *shown)) + ">"

    def _repr_html_(self) -> str:
        rows = [(one.where, one.severity, one.message, one.fix, one.rule) for one in self.findings]
        caption = output.summary(self.files, notes=True, skipped=self.skipped)
        return html_table(caption, rows, titles=("location", "severity", "message", "fix", "rule"))

    def to_dict(self) -> dict[str, Any]:
        """What ``check --json`` prints."""
        body = output.as_dict(self.files, fixed=self.fixed)
        for file in body["files"]:
            fit = self.fits.get(file["path"])
            if fit is not None:
                file["fit"] = {"fits": fit.fits, "message": as_options(fit.marked)}
        return body


def _whether_accelerate_fits(
    value: Mapping[str, Any], path: str, options: Mapping[str, str], say: Say
) -> Fit | None:
    """What an estimate of an accelerate YAML says; None: the DeepSpeed file that it names speaks for it."""
    engine = value.get("distributed_type")
    if engine not in ("DEEPSPEED", "FSDP"):
        return Fit(fits=None, row=None, marked=f"it does not use DeepSpeed: {rehearsal_of(value)}")
    if engine == "DEEPSPEED" and (value.get("deepspeed_config") or {}).get("deepspeed_config_file"):
        return None  # checked as a file of its own
    try:
        return _fit(options, path, say, "accelerate")
    except InputError as error:
        if isinstance(error, LayoutRefused) and not error.broken.rule.unmodelled:
            refused, rule = error.broken, error.broken.rule
            row = Row(rule.id, _SHARED, "{message}", refused.fix, rule.source)
            return Fit(fits=None, row=row, marked=refused.message)
        return Fit(fits=None, row=None, marked=f"fit not judged: {error.marked}")


def _fit(estimate_options: Mapping[str, str], path: str, say: Say, named: str) -> Fit:
    """Whether it fits; ``named``: the argument of an estimate that takes the file."""
    fits, message = _answer(estimate_options, path, say, named)
    if fits is not False:
        return Fit(fits=fits, row=None, marked=message)
    if "checkpointing" not in estimate_options:
        fits_then, _ = _answer({**estimate_options, "checkpointing": "full"}, path, say, named)
        if fits_then is not False:
            return Fit(
                fits=False,
                row=_FITS_CHECKPOINTED,
                marked=f"{message} without activation checkpointing; it {'fits' if fits_then else 'may fit'} "
                "if the script turns that on",
            )
    return Fit(fits=False, row=_DOES_NOT_FIT, marked=message)


def _answer(estimate_options: Mapping[str, str], path: str, say: Say, named: str) -> tuple[bool | None, str]:
    """Whether it fits, and a sentence with the figures."""
    try:
        answer = planner.estimate(
            estimate_options,
            deepspeed=path if named == "deepspeed" else None,
            accelerate=path if named == "accelerate" else None,
            say=say,
        )
    except NothingFits as error:
        return False, error.marked
    peak = f"peak of tensors {format_gib(answer.peak_allocated_bytes)}"
    left_open = _left_open(answer.planned.notes, estimate_options, path, named)
    required = f"{format_gib(answer.min_vram_bytes)} required"
    settings, length = answer.planned.strategy.settings, answer.planned.job.seq_len
    job = f"{peak}; {settings.precision}, batch size per GPU {settings.micro_batch}, {length:,} tokens each"
    job += "" if "seq_len" in estimate_options else ": ⟨seq_len⟩ not given"
    if answer.fits is False:
        return False, f"does not fit: {required} on the worst GPU ({job}){left_open}"
    if answer.planned.fits is None:
        return None, f"{required} per GPU ({job}); ⟨gpu⟩ or ⟨vram⟩ tells whether it fits{left_open}"
    memory, gpu = answer.planned.candidate.memory, answer.planned.cluster.gpu
    available = format_gib(gpu.driver_vram_bytes)
    lack = host_lack_words(memory, answer.planned.cluster)
    host = f", and {lack}" if lack else ""
    fits = "fits" if answer.planned.is_sure else "may fit"
    if unmodelled := not_modelled(answer.planned.not_modelled):
        fits += f" ({unmodelled})"
    if not explain.is_sure(memory, gpu):
        job = f"{explain.headroom_words(memory, gpu)}; {job}"
    fits += " the GPU, but maybe not the host" if lack else ""
    return answer.fits, f"{fits}: {required} of {available} per GPU{host} ({job}){left_open}"


def _left_open(notes: Iterable[Note], estimate_options: Mapping[str, str], path: str, named: str) -> str:
    """What was taken for the keys that the file leaves to the script, and the command that takes others."""
    taken = [note.short for note in with_id(notes, "left-open")]
    if not taken:
        return ""
    again = command_text("estimate", f"--{named}", path, options=estimate_options)
    return f"; left to the script, and taken as: {', '.join(taken)} (`{again}` takes other values)"


def _estimate_options(path: str, options: Mapping[str, Any], world_size: int | str | None) -> dict[str, str]:
    given = _given(options, world_size)
    planned = _of_plan_beside(Path(path))
    if given.get("method") not in (None, planned.get("method")):  # the plan's adapters are of another method
        planned = {name: value for name, value in planned.items() if not name.startswith("lora_")}
    return planned | given


def _given(options: Mapping[str, Any], ranks: object) -> dict[str, str]:
    """The options that ``check`` takes for this, the number of GPUs from ``ranks`` where it was not given."""
    values = {name: options.get(name) for name in ELSEWHERE["check"]}
    values["gpus"] = values["gpus"] or ranks
    return {name: str(value) for name, value in values.items() if value}


def _of_plan_beside(path: Path) -> dict[str, str]:
    """What the plan that the file was written with says of its job."""
    from zerokit.emit import plan_file

    plan_path = path.parent / plan_file.FILE_NAME
    if not plan_path.is_file():
        return {}
    try:
        plan = plan_file.read(plan_path)
    except InputError:
        return {}
    if path.name not in plan.files.values():
        return {}
    decided = {
        name.replace("-", "_"): str(plan.request[name]) for name in _OF_THE_JOB if plan.request.get(name)
    }
    chosen = {"checkpointing": "activation_checkpointing"}
    if plan.engine == "fsdp2":  # its file leaves the batch to the script
        chosen |= {name: name for name in ("micro_batch", "gradient_accumulation")}
    return decided | {name: str(plan.chosen.get(key) or "none") for name, key in chosen.items()}


def add_plans_and_recipes(checked: Sequence[CheckedFile]) -> None:
    """Add the findings about plans, their files, and recipes."""
    for file in checked:
        if file.document is None:
            continue
        if file.kind in ("deepspeed", "accelerate"):
            file.findings += _named_by_plan(file.path, file.document, file.kind)
        if file.kind not in ("plan", "recipe"):
            continue
        try:
            if file.kind == "plan":
                from zerokit.emit import plan_file

                plan_file.read(file.path, document=file.document)
            else:
                from zerokit.planner.recipes import parse_recipe

                _look_up(parse_recipe(file.document), file.document)
        except InputError as error:
            line, column = (error.line, error.column) if isinstance(error, FileInputError) else (1, 1)
            row = Row(f"{file.kind}-invalid", "", "{message}", "")
            message = error.message if isinstance(error, FileInputError) else error.marked
            file.findings.append(row.found(file.path, Location(line or 1, column or 1), message=message))
        except Exception as error:
            file.findings.append(internal_error(file.path, error))


def _named_by_plan(path: str, document: Document, kind: str) -> Iterator[Finding]:
    """What a file of a plan names outside of a run folder."""
    from zerokit.emit import outside, plan_file

    folder = Path(path).parent
    if not (folder / plan_file.FILE_NAME).is_file():
        return
    table, folders = (outside.DEEPSPEED, ()) if kind == "deepspeed" else (outside.ACCELERATE, (str(folder),))
    for named in outside.outside(document.value, folders, table):
        if named.path[-1] == "deepspeed_config_file" and (folder / Path(named.written).name).is_file():
            continue  # a plan that was moved
        yield _PLAN_INVALID.at(document, named.path, message=outside.say(named))


def _look_up(recipe: Recipe, document: Document) -> None:
    """The model and GPU that a recipe names. Raises FileInputError: there is no such thing."""
    from zerokit.catalog import gpus, models

    for key, look_up in (("gpu", gpus.lookup), ("model", models.lookup)):
        name = recipe.request.get(key)
        if name is None or (key == "model" and ("/" in name or Path(name).exists())):
            continue
        try:
            look_up(name)
        except InputError as error:
            raise document.error((key,), as_options(error.marked)) from None


# a key that was renamed may have a value to fix
_MOST_PASSES = 5


@contextmanager
def for_versions(deepspeed: str | None, accelerate: str | None) -> Iterator[None]:
    """Inside, the tables are of the versions named, else of those installed, else the newest. Raises
    InputError: no tables of a version that is named."""
    from zerokit.linter.accelerate import keys
    from zerokit.linter.deepspeed import tables
    from zerokit.machine.versions import installed

    with ExitStack() as stack:
        for named, of in ((deepspeed, tables.TABLES), (accelerate, keys.TABLES)):
            version = named or installed(of.name)
            if version is None:
                continue  # the newest
            try:
                stack.enter_context(of.chosen(version))
            except InputError:
                if named:
                    raise
        yield


def check(
    paths: Sequence[str],
    options: Mapping[str, Any],
    settings: CheckOptions,
    *,
    exclude: Sequence[str] = (),
    say: Say = silent,
) -> CheckResult:
    """Lint the files; ``options`` say what they are for (those of a plan that ``check`` takes). Raises
    InputError: an argument that cannot be."""
    if settings["unsafe"] and not settings["fix"]:
        raise InputError("⟨unsafe⟩ needs ⟨fix⟩")
    if not paths:
        raise InputError("name files or folders to check, or - for standard input")
    if "-" in paths and settings["fix"]:
        raise InputError("⟨fix⟩ writes files, and - is standard input; leave one out")
    with without_collecting(), for_versions(settings["deepspeed_version"], settings["accelerate_version"]):
        return _checked(paths, options, settings, exclude, say)


def _checked(
    paths: Sequence[str], options: Mapping[str, Any], settings: CheckOptions, exclude: Sequence[str], say: Say
) -> CheckResult:
    context = context_of(options, settings, say)
    files, discovered, leaving = files_of(paths, exclude=tuple(exclude))
    for link in leaving:
        say(warning("leaving-link", f"{shown(link)} is a link that leaves the folder: skipped"))
    ignore = frozenset(settings["ignore"])
    read = functools.partial(
        check_files, files, context, kind=settings["kind"], ignore=ignore, discovered=discovered
    )
    checked = read()
    fixed: list[Finding] = []
    for _ in range(_MOST_PASSES if settings["fix"] else 0):
        more = _fix(checked, unsafe=settings["unsafe"], say=say)
        if not more:
            break
        fixed += more
        checked = read()
    add_plans_and_recipes(checked)
    stopped: InputError | None = None
    fits: dict[str, Fit] = {}
    try:
        if settings["deepspeed_classes"] or settings["deep"]:
            _ask_deepspeed(checked, context, deep=settings["deep"])
        if options.get("model") or options.get("params"):
            fits = _ask_whether_it_fits(checked, options, settings["world_size"], say)
    except InputError as error:
        stopped = error  # what is known already is shown first
    skipped = len(set(discovered).difference(file.path for file in checked))
    return CheckResult(files=tuple(checked), fixed=tuple(fixed), fits=fits, skipped=skipped, stopped=stopped)


def context_of(options: Mapping[str, Any], settings: CheckOptions, say: Say) -> Context:
    """What is known of the run. Raises InputError: an argument that cannot be."""
    texts = {"world_size": settings["world_size"], **{name: options.get(name) for name in ("gpus", "nodes")}}
    numbers = {
        name: parse_positive_int(value, f"⟨{name}⟩") if value else None for name, value in texts.items()
    }
    fitting = ("vram", "seq_len", "micro_batch", "method", "lora_rank", "checkpointing")
    unasked = [f"⟨{name}⟩" for name in fitting if options.get(name)]
    if unasked and not (options.get("model") or options.get("params")):
        raise InputError(
            f"{', '.join(unasked)}: needed only to tell whether it fits; name the model with ⟨model⟩ or "
            "⟨params⟩"
        )
    ranks = numbers["world_size"] or numbers["gpus"]
    if numbers["world_size"] and numbers["gpus"] and numbers["world_size"] != numbers["gpus"]:
        raise InputError("⟨world_size⟩ and ⟨gpus⟩ differ; give one of them")
    nodes = numbers["nodes"] or 1
    if ranks and ranks % nodes:
        raise InputError(
            f"{counted(ranks, 'rank')} cannot be divided over ⟨nodes⟩ {nodes}; use a multiple of {nodes}"
        )
    precisions = gpu_name = None
    config = hf_config(str(options["model"]), say) if options.get("model") else None
    if options.get("gpu"):
        from zerokit.catalog import gpus

        gpu = gpus.lookup(str(options["gpu"]))
        gpu_name, precisions = gpu.title, frozenset({*gpu.peak_flops, "fp32"})
    return Context(
        readers=None if settings["reader"] is None else _readers(settings["reader"]),
        every_reader_must_do=settings["reader"] == "all",
        world_size=ranks,
        gpus_per_node=ranks // nodes if ranks else None,
        key_value_heads=_key_value_heads(config) if config is not None else None,
        model_code=model_code(config) if config is not None else None,
        precisions=precisions,
        gpu_name=gpu_name,
    )


def _readers(word: str) -> frozenset[str]:
    from zerokit.rules import EVERY_READER

    if word == "all":
        return EVERY_READER
    if word not in EVERY_READER:
        raise InputError(f"⟨for⟩ {word}: use raw, trainer, accelerate or all")
    return frozenset({word})


def hf_config(model: str, say: Say = silent) -> Mapping[str, Any]:
    """Of a model: a Hugging Face config.json (a path or its folder) or the catalogue's."""
    from zerokit.strictload import load_json

    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix == ".json" or path.is_file():
        config = load_json(path, strict=False).value
    else:
        from zerokit.catalog import models

        entry, notes = models.resolve(model)
        for note in notes:
            say(note)
        config = entry.hf_config
    return config if isinstance(config, Mapping) else {}


def _key_value_heads(config: Mapping[str, Any]) -> int | None:
    config = config.get("text_config") or config
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or config.get("n_head")
    return heads if isinstance(heads, int) and not isinstance(heads, bool) else None


def _fix(checked: Sequence[CheckedFile], *, unsafe: bool, say: Say) -> list[Finding]:
    from zerokit.linter.fix import fix_file

    fixed: list[Finding] = []
    for file in checked:
        try:
            fixed += fix_file(file, unsafe=unsafe)
        except InputError as error:
            say(error.marked)
    return fixed


def _ask_deepspeed(checked: Sequence[CheckedFile], context: Context, *, deep: bool) -> None:
    """Tiers 2 and deep; only of files that can be read at all."""
    from zerokit.linter.deepspeed.deep import DeepCase, run_deep
    from zerokit.linter.deepspeed.file import degree

    cases: list[tuple[CheckedFile, DeepCase]] = []
    for file in checked:
        if file.document is None or not isinstance(file.document.value, dict):
            continue
        if file.kind == "accelerate":
            cases.append((file, DeepCase(mode="accelerate", path=file.path)))
        elif file.kind == "deepspeed":
            tensor_parallel = degree(file.document.value)
            case = DeepCase(
                config=file.document.value,
                mode="initialize" if deep else "classes",
                world_size=context.world_size or _smallest_world(file, tensor_parallel),
                tensor_parallel=tensor_parallel,
                key_value_heads=context.key_value_heads,
            )
            cases.append((file, case))
    for (file, case), result in zip(cases, run_deep([case for _, case in cases]), strict=True):
        if result.error is None or file.document is None:
            continue
        reader = "Accelerate" if case.mode == "accelerate" else "DeepSpeed"
        ranks = f" (ranks {', '.join(map(str, result.ranks_failed))} of {case.world_size})" if deep else ""
        message = "{reader} refuses it{ranks}: {error}"
        row = Row(f"{reader.lower()}-says", "", message, "", f"the installed {reader}")
        file.findings.append(row.at(file.document, reader=reader, ranks=ranks, error=result.error))


def _smallest_world(file: CheckedFile, tensor_parallel: int) -> int:
    """A number of ranks the batch sizes allow, when none was named."""
    assert file.document is not None
    value = file.document.value
    return (ranks_of({"gradient_accumulation_steps": 1, **value}) or 2) * tensor_parallel


def _why_not_judged(file: CheckedFile) -> str | None:
    """Why nothing tells whether a configuration fits; None: something does, or a file that it names will."""
    if file.kind not in ("deepspeed", "accelerate"):
        return None
    if any(finding.rule == "accelerate-config-file-missing" for finding in file.findings):
        return "the DeepSpeed JSON that it names is not here"
    names_another = file.document is not None and named_config(file.document) is not None
    if not file.failed or (file.kind == "accelerate" and names_another):
        return None
    errors = sum(finding.severity == "error" for finding in file.findings)
    return f"{counted(errors, 'error')}; fix {'it' if errors == 1 else 'them'} first"


def _ask_whether_it_fits(
    checked: Sequence[CheckedFile], options: Mapping[str, Any], world_size: int | str | None, say: Say
) -> dict[str, Fit]:
    """What is told of each file, by its path; what is lacking is a finding, too."""

    told: dict[str, Fit] = {}
    for file in checked:
        why_not = _why_not_judged(file)
        if why_not is not None:
            told[file.path] = Fit(fits=None, row=None, marked=f"fit not judged: {why_not}")
            say(f"{file.path}: {told[file.path].marked}")
        if file.document is None or file.failed or why_not is not None:
            continue
        if file.kind == "deepspeed":
            ranks = world_size or file.batch_ranks
            fit = _fit(_estimate_options(file.path, options, ranks), file.path, say, "deepspeed")
            # the keys that whether it fits was judged without
            for key, changes in unmodelled_keys(file.document.value, has_key).items():
                found = _NOT_MODELLED.at(file.document, tuple(key.split(".")), key=key, changes=changes)
                file.findings.append(found)
            stage = ("zero_optimization", "stage")
        elif file.kind == "accelerate" and isinstance(file.document.value, dict):
            asked = _estimate_options(file.path, options, world_size)
            accelerate_fit = _whether_accelerate_fits(file.document.value, file.path, asked, say)
            if accelerate_fit is None:
                continue
            fit, stage = accelerate_fit, ("deepspeed_config", "zero_stage")
        else:
            continue
        told[file.path] = fit
        if fit.row is None:
            say(f"{file.path}: {fit.marked}")
            continue
        at = None if fit.row.key else stage
        file.findings.append(fit.row.at(file.document, at, message=fit.marked))
    return told
