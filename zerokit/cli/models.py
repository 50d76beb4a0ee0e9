"""``zerokit models``: list the models in the catalogue."""

from __future__ import annotations

import json

import click

from zerokit.catalog import models
from zerokit.cli.base import Command
from zerokit.cli.prose import aligned
from zerokit.cli.say import say, write, write_json
from zerokit.units import format_count

_COLUMNS = ("NAME", "PARAMETERS", "FAMILY", "HEAD", "TITLE")


@click.command("models", cls=Command)
@click.argument("name", required=False)
@click.option("--family", metavar="NAME", help="Only the models of this family.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
def command(name: str | None, family: str | None, as_json: bool) -> None:
    """List the models that plans may name with --model; with NAME, show one with its configuration.

    NAME forgives case and separators: `meta-llama/Llama-3.1-8B` and `llama3.1-8b` lead to the same entry.
    """
    if name is not None:
        model, notes = models.resolve(name, option="")
        for note in notes:
            say(note)
        write_json(models.as_dict(model)) if as_json else write(_one(model))
        return
    chosen = models.index()
    if family is not None:
        chosen = tuple(model for model in chosen if model.family == family)
        if not chosen:
            families = ", ".join(sorted({model.family for model in models.index()}))
            raise click.BadParameter(
                f"no model of family {family!r}; use one of {families}", param_hint="--family"
            )
    if as_json:
        listed = [models.summary(model) for model in chosen]
        write_json({"schema": "zerokit.models/1", "models": listed})
    else:
        write(_table(chosen))


def _table(chosen: tuple[models.Summary, ...]) -> str:
    rows = [_COLUMNS]
    for model in sorted(chosen, key=lambda model: (model.family, model.parameters, model.name)):
        rows.append((model.name, f"{model.parameters:,}", model.family, model.head, model.title))
    return "\n".join(aligned(rows, right=(1,)))


def _one(model: models.CatalogModel) -> str:
    rows: list[tuple[str, ...]] = [
        (
            "",
            "parameters",
            f"{model.parameters:,} ({format_count(model.parameters)}), as transformers builds it",
        ),
        ("", "published", f"{model.published_parameters:,}: {model.source}"),
        *([("", "", model.published_differs)] if model.published_differs else []),
        ("", "family", model.family + (f", {model.experts} experts per layer" if model.experts else "")),
        ("", "head", model.head),
        ("", "weights", f"{model.hub or 'not on the hub'} ({model.licence})"),
    ]
    if model.aliases:
        rows.append(("", "also called", ", ".join(model.aliases)))
    config = json.dumps(dict(model.hf_config), indent=1)
    return "\n".join([f"{model.name}: {model.title}", *aligned(rows), "  hf_config", config])
