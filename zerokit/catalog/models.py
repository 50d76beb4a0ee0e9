"""The models zerokit knows: one YAML file each in ``models/``, named as the model is.

``parameters`` is what transformers builds from the file's ``hf_config`` (tied weights once); a
test builds every one and compares. ``published_parameters`` is the authors' own figure: exact,
or rounded to as many digits as they gave.

``models/index.json`` repeats everything but the configurations, so that choosing a model reads
one file instead of all. After a change to a model run ``python -m zerokit.catalog.models_index``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.catalog.reader import Field, read
from zerokit.errors import InputError
from zerokit.strictload import Document

FOLDER = Path(__file__).parent / "models"
HEADS = ("causal", "mlm", "seq2seq", "speech-seq2seq", "image-classification")

_FIELDS = {
    "name": Field(kind="text"),
    "title": Field(kind="text"),
    "family": Field(kind="text"),
    "head": Field(kind="text", choices=HEADS),
    "hub": Field(kind="text", required=False),
    "aliases": Field(kind="texts", required=False),
    "experts": Field(kind="whole", required=False),
    "parameters": Field(kind="whole"),
    "published_parameters": Field(kind="whole"),
    "source": Field(kind="text"),
    "licence": Field(kind="text"),
    "hf_config": Field(kind="mapping"),
}
INDEX = FOLDER / "index.json"
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
_PREFERRED_WITHIN = 0.15  # how far off in size a Llama, or a model built like one, may be and stand in
_DROPPED_WORDS = {"meta", "instruct", "chat", "it", "hf", "pt", "base"}
_MOST_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the catalogue says about a model, apart from its configuration.

    Attributes:
        head: which ``AutoModelFor…`` builds it: one of ``HEADS``.
        parameters: as transformers builds it, tied weights counted once.
        published_parameters: the authors' figure, with ``source``.
        licence: of the published weights; zerokit carries no weights.
        hub: where the weights are on the Hugging Face hub; ``None``: not published there.
        experts: routed experts per mixture-of-experts layer; ``None``: a dense model.
        model_type: the transformers architecture, as ``hf_config`` has it.
    """

    name: str
    title: str
    family: str
    head: str
    parameters: int
    published_parameters: int
    source: str
    licence: str
    hub: str | None
    aliases: tuple[str, ...]
    experts: int | None
    model_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel(Summary):
    """A model with its configuration.

    Attributes:
        hf_config: for ``transformers.AutoConfig.for_model(**hf_config)``; hand it a deep copy,
            because transformers writes into nested mappings.
    """

    hf_config: Mapping[str, Any]


def names() -> tuple[str, ...]:
    """All catalogue names, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load(name: str) -> CatalogModel:
    """The model with exactly this catalogue name, reading only its file.

    Raises:
        InputError: there is none.
    """
    if _is_name(name):
        return read_model(FOLDER / f"{name}.yaml")
    raise InputError(_unknown(name))


@functools.cache
def index() -> tuple[Summary, ...]:
    """Every model's summary, by name, from the index file."""
    entries = json.loads(INDEX.read_text(encoding="utf-8"))
    return tuple(Summary(**{**entry, "aliases": tuple(entry["aliases"])}) for entry in entries)


def lookup(text: str) -> CatalogModel:
    """The model a person means: ``llama-3.1-8b``, ``meta-llama/Llama-3.1-8B``, ``llama3.1-8b-instruct``.

    Raises:
        InputError: nothing fits, or several do; the message lists them.
    """
    if len(text) > 200:
        raise InputError(f"--model {text[:20]!r}…: too long for a model's name; `zerokit models` lists them")
    if _is_name(text):
        return load(text)
    words = _words(text)
    found = _named(words) or _named(_plain(words)) or _containing(_plain(words))
    if len(found) == 1:
        return load(found[0])
    if found:
        more = f" and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
        listed = ", ".join(found[:_MOST_LISTED]) + more
        raise InputError(f"--model {text!r} could be any of: {listed}; name one of them")
    raise InputError(_unknown(text))


def nearest(parameters: int) -> CatalogModel:
    """The dense causal language model that stands in for a bare ``--params``.

    Sizes are compared as ratios. A Llama within 15 % is taken first, then a model of the same
    architecture within 15 %, then the nearest of all. Of equals the newer version wins.

    Raises:
        InputError: ``parameters`` is not positive.
    """
    if parameters < 1:
        raise InputError(f"--params {parameters} must be at least 1")

    def distance(model: Summary) -> float:
        return abs(math.log(model.parameters / parameters))

    dense = [model for model in index() if model.head == "causal" and model.experts is None]
    ranked = sorted(sorted(dense, key=lambda model: model.name, reverse=True), key=distance)
    close = [model for model in ranked if distance(model) <= math.log1p(_PREFERRED_WITHIN)]
    llamas = [model for model in close if model.family == "llama"]
    alike = [model for model in close if model.model_type == "llama"]
    for model in (*llamas, *alike, *ranked):
        loaded = load(model.name)
        if "vision_config" not in loaded.hf_config:  # part of its weights is no language model
            return loaded
    raise AssertionError("the catalogue has no dense causal language model")


def agrees(published: int, counted: int) -> bool:
    """Whether ``counted``, rounded to as many digits as ``published`` gives, is ``published``."""
    given_digits = len(str(published).rstrip("0"))
    return round(counted, given_digits - len(str(counted))) == published


def read_model(path: Path) -> CatalogModel:
    """One catalogue file.

    Raises:
        FileInputError: with the line, when the file breaks a rule.
    """
    document = read(path, _FIELDS)
    _check(document, path.stem)
    values = {"hub": None, "experts": None, **document.value}
    values["aliases"] = tuple(values.get("aliases", ()))
    return CatalogModel(**values, model_type=values["hf_config"]["model_type"])


def summary(model: Summary) -> dict[str, Any]:
    """The model without its configuration, as the index file and ``--json`` hold it."""
    values = {field.name: getattr(model, field.name) for field in dataclasses.fields(Summary)}
    return {**values, "aliases": list(model.aliases)}


def _check(document: Document, name: str) -> None:
    """Rules that join several keys."""
    values: dict[str, Any] = document.value
    if values["name"] != name:
        raise document.error(("name",), f"name: {values['name']!r} must be the file's name, {name!r}")
    config = values["hf_config"]
    if not isinstance(config.get("model_type"), str):
        raise document.error(("hf_config",), "hf_config: model_type is missing")
    if "auto_map" in config:
        raise document.error(
            ("hf_config", "auto_map"), "hf_config: auto_map is not used; no remote code is run"
        )
    experts = next((config[key] for key in _EXPERT_KEYS if key in config), None)
    if experts != values.get("experts"):
        raise document.error(("experts",), f"experts: must be {experts}, as hf_config has it")
    published, counted = values["published_parameters"], values["parameters"]
    if not agrees(published, counted):
        message = f"published_parameters: {published} is not {counted} rounded to its digits"
        raise document.error(("published_parameters",), message)


def _is_name(text: str) -> bool:
    return bool(re.fullmatch(r"[a-z0-9][a-z0-9._-]*", text)) and (FOLDER / f"{text}.yaml").is_file()


def _words(text: str) -> tuple[str, ...]:
    """Letters and numbers apart, in lower case, without the hub's organisation."""
    return tuple(re.findall(r"[a-z]+|\d+(?:\.\d+)?", text.lower().rstrip("/").rpartition("/")[2]))


def _plain(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in _DROPPED_WORDS)


@functools.cache
def _labels() -> tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]:
    """Each catalogue name with the words of everything that the model is called."""
    return tuple(
        (model.name, tuple(_words(text) for text in (model.name, model.hub or model.name, *model.aliases)))
        for model in index()
    )


def _named(words: tuple[str, ...]) -> list[str]:
    key = "".join(words)
    return [name for name, labels in _labels() if any("".join(label) == key for label in labels)]


def _containing(words: tuple[str, ...]) -> list[str]:
    wanted = set(words)
    if not any(len(word) > 1 and word.isalpha() for word in words):
        return []  # a bare size names no model
    return [name for name, labels in _labels() if any(wanted <= set(label) for label in labels)]


def _unknown(text: str) -> str:
    import difflib

    close = difflib.get_close_matches(text.lower().rpartition("/")[2], names(), n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return (
        f"--model {text!r} is neither a file nor in the catalogue; {hint}"
        "`zerokit models` lists them; a Hugging Face config.json, or a folder with one, works as well"
    )
