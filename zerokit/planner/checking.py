"""Check configurations: lint them and, where asked for, ask DeepSpeed, fix, estimate whether they fit."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from zerokit.domain.unmodelled import unmodelled_keys
from zerokit.errors import InputError
from zerokit.fields import Say, silent
from zerokit.linter.accelerate.top_level import named_config
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.deepspeed.tables import has_key
from zerokit.linter.discover import files_of
from zerokit.linter.files import CheckedFile, check_files
from zerokit.linter.finding import Finding
from zerokit.machine.model_code import model_code
from zerokit.messages import shown
from zerokit.planner import without_collecting
from zerokit.planner.check_plans import add_plans_and_recipes
from zerokit.planner.check_result import CheckResult, Fit
from zerokit.planner.options import CheckOptions
from zerokit.rules.batch import ranks_of
from zerokit.units import counted, parse_positive_int

# a key that was renamed may have a value to fix
_MOST_PASSES = 5


@contextmanager
def for_versions(deepspeed: str | None, accelerate: str | None) -> Iterator[None]:
    """Inside, the tables are of the versions named, else of those installed, else the newest.

    Raises:
        InputError: no tables of a version that is named.
    """
    from zerokit.linter.accelerate import keys
    from zerokit.linter.deepspeed import tables
    from zerokit.machine.versions import installed

    with ExitStack() as stack:
        for name, named, room in (("deepspeed", deepspeed, tables), ("accelerate", accelerate, keys)):
            version = named or installed(name)
            if version is None:
                continue  # the newest
            try:
                stack.callback(room.restore, room.choose(version))
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
    """Lint the files; ``options`` say what they are for (those of a plan that ``check`` takes).

    Raises:
        InputError: an argument that cannot be.
    """
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
    context = _context(options, settings, say)
    files, discovered, leaving = files_of(paths, exclude=tuple(exclude))
    for link in leaving:
        say(f"warning: {shown(link)} is a link that leaves the folder: skipped")
    read = functools.partial(
        check_files,
        files,
        context,
        kind=settings["kind"],
        ignore=frozenset(settings["ignore"]),
        discovered=discovered,
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


def _context(options: Mapping[str, Any], settings: CheckOptions, say: Say) -> Context:
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
        file.findings.append(
            Finding(
                path=file.path,
                location=file.document.location(()),
                rule="accelerate-says" if reader == "Accelerate" else "deepspeed-says",
                severity="error",
                marked=f"{reader} refuses it{ranks}: {result.error}",
                marked_fix="",
                source=f"the installed {reader}",
            )
        )


def _smallest_world(file: CheckedFile, tensor_parallel: int) -> int:
    """A number of ranks the batch sizes allow, when none was named."""
    assert file.document is not None
    value = file.document.value
    return (ranks_of({"gradient_accumulation_steps": 1, **value}) or 2) * tensor_parallel


def _not_modelled(file: CheckedFile) -> list[Finding]:
    """The keys that whether it fits was judged without."""
    document = file.document
    assert document is not None
    return [
        Finding(
            path=file.path,
            location=document.location(tuple(key.split("."))),
            rule="not-modelled",
            severity="note",
            marked=f"{key} ({changes}) is not modelled: whether the file fits was judged without it",
            marked_fix="measure a run with zerokit launch",
        )
        for key, changes in unmodelled_keys(document.value, has_key).items()
    ]


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
    from zerokit.planner.check_fits import whether_accelerate_fits, whether_it_fits

    told: dict[str, Fit] = {}
    for file in checked:
        why_not = _why_not_judged(file)
        if why_not is not None:
            told[file.path] = Fit(fits=None, severity=None, marked=f"fit not judged: {why_not}")
            say(f"{file.path}: {told[file.path].marked}")
        if file.document is None or file.failed or why_not is not None:
            continue
        if file.kind == "deepspeed":
            ranks = world_size or file.batch_ranks
            fit = whether_it_fits(file.path, options, ranks, say)
            file.findings += _not_modelled(file)
            stage = ("zero_optimization", "stage")
        elif file.kind == "accelerate" and isinstance(file.document.value, dict):
            accelerate_fit = whether_accelerate_fits(file.document.value, options, world_size, say)
            if accelerate_fit is None:
                continue
            fit, stage = accelerate_fit, ("deepspeed_config", "zero_stage")
        else:
            continue
        told[file.path] = fit
        if fit.severity is None:
            say(f"{file.path}: {fit.marked}")
            continue
        file.findings.append(
            Finding(
                path=file.path,
                location=file.document.location(stage),
                rule="does-not-fit",
                severity=fit.severity,
                marked=fit.marked,
                marked_fix="turn it on in the script, and say so here with ⟨checkpointing⟩ full"
                if fit.severity == "warning"
                else "let `zerokit plan` choose",
            )
        )
    return told
