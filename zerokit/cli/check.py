"""``zerokit check``: lint DeepSpeed JSON, accelerate YAML, hostfiles, plans and recipes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from zerokit.errors import FileInputError, InputError
from zerokit.units import parse_positive_int

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token

    from zerokit.linter.deepspeed.file import Context
    from zerokit.linter.files import CheckedFile
    from zerokit.linter.finding import Finding
    from zerokit.linter.suppress import Settings
    from zerokit.planner.recipes import Recipe
    from zerokit.strictload import Document


# a key that was renamed may have a value to change
_MOST_PASSES = 5


@click.command("check")
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER|-]…")
@click.option(
    "--deepspeed-version", metavar="V", help="DeepSpeed to check for; the installed one unless given."
)
@click.option("--accelerate-version", metavar="V", help="Accelerate to check for; likewise.")
@click.option("--explain", metavar="RULE", help="What a rule finds, why, an example, the fix and its source.")
@click.option(
    "--schema", type=click.Choice(["deepspeed", "accelerate"]), help="Print a JSON Schema for editors."
)
@click.option("--ignore", metavar="RULE", multiple=True, help="Do not show this rule; may be repeated.")
@click.option(
    "--kind", metavar="KIND", help="deepspeed, accelerate, hostfile, plan or recipe; else found out."
)
@click.option(
    "--for",
    "reader",
    metavar="raw|trainer|accelerate|all",
    help="Who reads a DeepSpeed JSON: deepspeed.initialize, the Trainer, Accelerate, or each of them; "
    "otherwise inferred from what lies beside it.",
)
@click.option("--world-size", metavar="N", help="Ranks of the run, for batch arithmetic (also: --gpus).")
@click.option("--gpus", metavar="N", help="GPUs on all nodes together.")
@click.option("--nodes", metavar="M", help="Nodes; 1 unless given.")
@click.option("--gpu", metavar="NAME", help="Kind of GPU, for precision and memory.")
@click.option("--vram", metavar="SIZE", help="Memory per GPU, for whether it fits.")
@click.option("--model", metavar="NAME|PATH", help="Model, for tensor parallelism and whether it fits.")
@click.option("--params", metavar="N", help="Parameters, for whether it fits.")
@click.option("--seq-len", metavar="N", help="Tokens per sequence, for whether it fits.")
@click.option("--method", metavar="full|lora|qlora", help="Training method, for whether it fits.")
@click.option("--lora-rank", metavar="R", help="Rank of the adapters, for whether it fits.")
@click.option(
    "--checkpointing", metavar="none|full|selective", help="What the script turns on, for whether it fits."
)
@click.option("--deepspeed-classes", is_flag=True, help="Also ask DeepSpeed's and Accelerate's own classes.")
@click.option(
    "--deep", is_flag=True, help="Also run the real deepspeed.initialize for every rank, on this CPU."
)
@click.option("--fix", is_flag=True, help="Write the fixes that cannot change what runs.")
@click.option(
    "--unsafe", is_flag=True, help="With --fix: also those that let an ignored setting take effect."
)
@click.option("--strict", is_flag=True, help="Warnings fail, too.")
@click.option("--notes", is_flag=True, help="Show notes as well.")
@click.option(
    "--format", "style", type=click.Choice(["text", "json", "github", "sarif", "junit"]), default="text"
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
def command(files: tuple[str, ...], **options: Any) -> int:
    """Find what DeepSpeed, Accelerate or the launcher would ignore, refuse or trip over.

    Names the line, what will happen and the fix. Exit code 0: nothing wrong; 2: errors.
    """
    if options["explain"]:
        return _explain(options["explain"])
    settings = _settings(options)
    chosen = _choose_versions(options)
    try:
        return _schema(options["schema"]) if options["schema"] else _check(files, options, settings)
    finally:
        for restore, token in chosen:
            restore(token)


def _check(files: tuple[str, ...], options: dict[str, Any], settings: Settings) -> int:
    from zerokit.linter.discover import files_of
    from zerokit.linter.files import check_files

    if options["unsafe"] and not options["fix"]:
        raise InputError("--unsafe needs --fix")
    if not files:
        raise InputError("name files or folders to check, or - for standard input")
    if "-" in files and options["fix"]:
        raise InputError("--fix writes files, and - is standard input; leave one out")
    context = _context(options)
    paths, found = files_of(files, exclude=settings.exclude)
    ignore = settings.ignore | frozenset(options["ignore"])
    read = functools.partial(check_files, paths, context, kind=options["kind"], ignore=ignore, found=found)
    checked = read()
    fixed: list[Finding] = []
    for _ in range(_MOST_PASSES if options["fix"] else 0):
        more = _fix(checked, unsafe=options["unsafe"])
        if not more:
            break
        fixed += more
        checked = read()
    _plans_and_recipes(checked)
    stopped: InputError | None = None
    try:
        if options["deepspeed_classes"] or options["deep"]:
            _ask_deepspeed(checked, context, deep=options["deep"])
        if options["model"] or options["params"]:
            _ask_whether_it_fits(checked, options)
    except InputError as error:
        stopped = error  # what is known already is shown first
    _show(checked, fixed, options)
    if stopped is not None:
        raise stopped
    return _exit_code(checked, strict=options["strict"])


def _explain(rule: str) -> int:
    from zerokit.linter.explain import as_text, explain

    click.echo(as_text(explain(rule)))
    return 0


def _choose_versions(options: dict[str, Any]) -> list[tuple[Callable[[Token[str]], None], Token[str]]]:
    """The tables of the versions named, else of those installed, else the newest; and how to take it back."""
    from importlib import metadata

    from zerokit.linter.accelerate import keys
    from zerokit.linter.deepspeed import tables

    chosen = []
    for name, room in (("deepspeed", tables), ("accelerate", keys)):
        named = options[f"{name}_version"]
        try:
            chosen.append((room.restore, room.choose(named or metadata.version(name))))
        except metadata.PackageNotFoundError:
            continue  # the newest
        except InputError:
            if named:
                raise
    return chosen


def _schema(name: str) -> int:
    import json

    from zerokit.linter.schema import SCHEMAS

    click.echo(json.dumps(SCHEMAS[name](), indent=1))
    return 0


def _settings(options: dict[str, Any]) -> Settings:
    """The section of pyproject.toml; what it says goes where the command line says nothing."""
    from pathlib import Path

    from zerokit.linter.suppress import settings_beside

    settings = settings_beside(Path.cwd())
    for key, value in settings.options.items():
        name = {"for": "reader"}.get(key, key.replace("-", "_"))
        if not options.get(name):
            options[name] = value if isinstance(value, bool) else str(value)
    return settings


def _exit_code(checked: Sequence[CheckedFile], *, strict: bool) -> int:
    from zerokit.linter.files import INTERNAL_ERROR

    findings = [finding for file in checked for finding in file.findings]
    if any(finding.rule == INTERNAL_ERROR for finding in findings):
        return 1
    failing = ("error", "warning") if strict else ("error",)
    return 2 if any(finding.severity in failing for finding in findings) else 0


def _context(options: dict[str, Any]) -> Context:
    from zerokit.linter.deepspeed.file import Context

    numbers = {
        name: parse_positive_int(options[name], f"--{name.replace('_', '-')}") if options[name] else None
        for name in ("world_size", "gpus", "nodes")
    }
    fitting = ("vram", "seq_len", "method", "lora_rank", "checkpointing")
    unasked = [f"--{name.replace('_', '-')}" for name in fitting if options[name]]
    if unasked and not (options["model"] or options["params"]):
        raise InputError(
            f"{', '.join(unasked)}: for whether it fits; name the model, with --model or --params"
        )
    world_size = numbers["world_size"] or numbers["gpus"]
    if numbers["world_size"] and numbers["gpus"] and numbers["world_size"] != numbers["gpus"]:
        raise InputError("--world-size and --gpus say different numbers; give one of them")
    nodes = numbers["nodes"] or 1
    if world_size and world_size % nodes:
        raise InputError(f"{world_size} ranks do not divide over --nodes {nodes}; use a multiple of {nodes}")
    precisions = gpu_name = None
    if options["gpu"]:
        from zerokit.catalog import gpus

        gpu = gpus.lookup(options["gpu"])
        gpu_name, precisions = gpu.title, frozenset({*gpu.peak_flops, "fp32"})
    readers = None
    if options["reader"]:
        readers = _readers(options["reader"])
    return Context(
        readers=readers,
        every_reader_must_do=options["reader"] == "all",
        world_size=world_size,
        gpus_per_node=world_size // nodes if world_size else None,
        key_value_heads=_key_value_heads(options["model"]) if options["model"] else None,
        precisions=precisions,
        gpu_name=gpu_name,
    )


def _readers(word: str) -> frozenset[str]:
    from zerokit.rules import EVERY_READER

    if word == "all":
        return EVERY_READER
    if word not in EVERY_READER:
        raise InputError(f"--for {word}: use raw, trainer, accelerate or all")
    return frozenset({word})


def _key_value_heads(model: str) -> int | None:
    """From a Hugging Face config.json (a path or its folder) or the catalogue."""
    from pathlib import Path

    from zerokit.strictload import load_json

    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix == ".json" or path.is_file():
        config = load_json(path, strict=False).value
    else:
        from zerokit.catalog import models

        entry, notes = models.resolve(model)
        for note in notes:
            click.echo(f"zerokit: {note}", err=True)
        config = entry.hf_config
    if not isinstance(config, dict):
        config = dict(config)
    config = config.get("text_config") or config
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or config.get("n_head")
    return heads if isinstance(heads, int) and not isinstance(heads, bool) else None


def _fix(checked: Sequence[CheckedFile], *, unsafe: bool) -> list[Finding]:
    from zerokit.linter.fix import fix_file

    fixed: list[Finding] = []
    for file in checked:
        try:
            fixed += fix_file(file, unsafe=unsafe)
        except InputError as error:
            click.echo(f"zerokit: {error}", err=True)
    return fixed


def _plans_and_recipes(checked: Sequence[CheckedFile]) -> None:
    from zerokit.linter.files import internal_error
    from zerokit.linter.finding import Finding
    from zerokit.strictload import Place

    for file in checked:
        if file.document is None or file.kind not in ("plan", "recipe"):
            continue
        try:
            if file.kind == "plan":
                from zerokit.emit import plan_file

                plan_file.read(file.path)
            else:
                from zerokit.planner.recipes import parse_recipe

                _look_up(parse_recipe(file.document), file.document)
        except InputError as error:
            line, column = (error.line, error.column) if isinstance(error, FileInputError) else (1, 1)
            file.findings.append(
                Finding(
                    path=file.path,
                    place=Place(line or 1, column or 1),
                    rule=f"{file.kind}-invalid",
                    severity="error",
                    message=error.message if isinstance(error, FileInputError) else str(error),
                    fix="",
                )
            )
        except Exception as error:
            file.findings.append(internal_error(file.path, error))


def _look_up(recipe: Recipe, document: Document) -> None:
    """The model and GPU that a recipe names.

    Raises:
        FileInputError: there is no such thing.
    """
    from pathlib import Path

    from zerokit.catalog import gpus, models

    for key, look_up in (("gpu", gpus.lookup), ("model", models.lookup)):
        name = recipe.request.get(key)
        if name is None or (key == "model" and ("/" in name or Path(name).exists())):
            continue
        try:
            look_up(name)
        except InputError as error:
            raise document.error((key,), str(error)) from None


def _ask_deepspeed(checked: Sequence[CheckedFile], context: Context, *, deep: bool) -> None:
    """Tiers 2 and deep; only of files that can be read at all."""
    from zerokit.linter.deepspeed.deep import DeepCase, run_deep
    from zerokit.linter.deepspeed.file import degree
    from zerokit.linter.finding import Finding

    asked: list[tuple[CheckedFile, DeepCase]] = []
    for file in checked:
        if file.document is None or not isinstance(file.document.value, dict):
            continue
        if file.kind == "accelerate":
            asked.append((file, DeepCase(mode="accelerate", path=file.path)))
        elif file.kind == "deepspeed":
            tensor_parallel = degree(file.document.value)
            case = DeepCase(
                config=file.document.value,
                mode="initialize" if deep else "classes",
                world_size=context.world_size or _smallest_world(file, tensor_parallel),
                tensor_parallel=tensor_parallel,
                key_value_heads=context.key_value_heads,
            )
            asked.append((file, case))
    for (file, case), result in zip(asked, run_deep([case for _, case in asked]), strict=True):
        if result.error is None or file.document is None:
            continue
        who = "Accelerate" if case.mode == "accelerate" else "DeepSpeed"
        ranks = f" (ranks {', '.join(map(str, result.ranks_failed))} of {case.world_size})" if deep else ""
        file.findings.append(
            Finding(
                path=file.path,
                place=file.document.place(()),
                rule="accelerate-says" if who == "Accelerate" else "deepspeed-says",
                severity="error",
                message=f"{who} refuses it{ranks}: {result.error}",
                fix="",
                source=f"the installed {who}",
            )
        )


def _smallest_world(file: CheckedFile, tensor_parallel: int) -> int:
    """A number of ranks the batch sizes allow, when none was named."""
    assert file.document is not None
    value = file.document.value
    train, micro = value.get("train_batch_size"), value.get("train_micro_batch_size_per_gpu")
    steps = value.get("gradient_accumulation_steps", 1)
    if all(isinstance(number, int) and number > 0 for number in (train, micro, steps)):
        return int(max(1, train // (micro * steps)) * tensor_parallel)
    return 2 * tensor_parallel


def _ask_whether_it_fits(checked: Sequence[CheckedFile], options: dict[str, Any]) -> None:
    from zerokit.cli.fits import why_it_does_not_fit
    from zerokit.linter.finding import Finding

    for file in checked:
        if file.kind != "deepspeed" or file.document is None or file.failed:
            continue
        answer = why_it_does_not_fit(file.path, options)
        if answer is not None:
            severity, message = answer
            file.findings.append(
                Finding(
                    path=file.path,
                    place=file.document.place(("zero_optimization", "stage")),
                    rule="does-not-fit",
                    severity=severity,
                    message=message,
                    fix="turn it on in the script, and say so here with --checkpointing full"
                    if severity == "warning"
                    else "let `zerokit plan` choose",
                )
            )


def _show(checked: Sequence[CheckedFile], fixed: Sequence[Finding], options: dict[str, Any]) -> None:
    from zerokit.linter import output

    style = "json" if options["as_json"] else options["style"]
    if style == "json":
        click.echo(output.as_json(checked, fixed=fixed))
        return
    for finding in fixed:
        place = f"{finding.path}:{finding.place.line}:{finding.place.column}"
        click.echo(f"{place}: fixed: {finding.message} [{finding.rule}]", err=True)
    text = output.FORMATS[style]
    shown = text(checked, notes=options["notes"])
    if shown:
        click.echo(shown)
