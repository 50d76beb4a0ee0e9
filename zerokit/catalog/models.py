"""The models zerokit knows: one YAML file each in ``models/``, named as the model is.

``parameters`` is what transformers builds from the file's ``hf_config`` (tied weights once); a
test builds every one and compares. ``published_parameters`` is the authors' own figure: exact,
or rounded to as many digits as they gave; where they counted what transformers does not build,
``published_differs`` says what.

``models/index.json`` repeats everything but the configurations, so that choosing a model reads
one file instead of all; a model that is not in it yet is read from its own. After a change to a model that
is, run ``python -m tools.models_index``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.catalog.reader import (
    Field,
    Words,
    contains,
    could_mean,
    entry_names,
    has_entry,
    incomplete,
    read,
    skipped,
    split,
    suggestions,
)
from zerokit.domain.hf_classes import HEADS
from zerokit.errors import InputError
from zerokit.strictload import Document
from zerokit.units import parse_count
from zerokit.values import frozen_dataclass

FOLDER = Path(__file__).parent / "models"

_FIELDS = {
    "name": Field(kind="text"),
    "title": Field(kind="text"),
    "family": Field(kind="text"),
    "head": Field(kind="text", choices=tuple(HEADS)),
    "hub": Field(kind="text", required=False),
    "aliases": Field(kind="texts", required=False),
    "experts": Field(kind="whole", required=False),
    "parameters": Field(kind="whole"),
    "published_parameters": Field(kind="whole"),
    "published_differs": Field(kind="text", required=False),
    "source": Field(kind="text"),
    "licence": Field(kind="text"),
    "hf_config": Field(kind="mapping"),
}
INDEX = FOLDER / "index.json"
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
_PREFERRED_WITHIN = 0.15  # how far off in size a Llama, or a model built like one, may be and stand in
_MOST_ALIKE = 6  # of the models that are named for a size
_SAME_SHAPE = {"instruct", "chat", "it", "hf", "pt", "base"}  # endings of repositories of one shape


@frozen_dataclass
class Summary:
    """What the catalogue says about a model, apart from its configuration.

    Attributes:
        head: which ``AutoModelFor…`` builds it: one of :data:`zerokit.domain.hf_classes.HEADS`.
        parameters: as transformers builds it, tied weights counted once.
        published_parameters: the authors' figure, with ``source``.
        published_differs: what they counted that transformers does not build; ``None``: nothing.
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
    published_differs: str | None
    source: str
    licence: str
    hub: str | None
    aliases: tuple[str, ...]
    experts: int | None
    model_type: str

    @property
    def has_closed_form(self) -> bool:
        """Whether its shape follows from its configuration; else Transformers has to build it."""
        from zerokit.domain.families import FAMILIES

        return self.model_type in FAMILIES


@frozen_dataclass
class CatalogModel(Summary):
    """A model with its configuration; ``hf_config``: for ``transformers.AutoConfig.for_model(**hf_config)``;
    hand it a deep copy, because transformers writes into nested mappings."""

    hf_config: Mapping[str, Any]


def names() -> tuple[str, ...]:
    """All catalogue names, sorted."""
    return entry_names(FOLDER)


def load(name: str) -> CatalogModel:
    """The model with exactly this catalogue name, reading only its file. Raises InputError: there is none."""
    if has_entry(FOLDER, name):
        return read_model(FOLDER / f"{name}.yaml")
    raise InputError(f"⟨model⟩ {_unknown(name)}")


@functools.cache
def index() -> tuple[Summary, ...]:
    """Every model's summary, by name: from the index file, and of a model that is not in it from its own."""
    entries = json.loads(INDEX.read_text(encoding="utf-8"))
    indexed = {entry["name"]: Summary(**{**entry, "aliases": tuple(entry["aliases"])}) for entry in entries}
    return tuple(indexed.get(name) or load(name) for name in names())


def lookup(text: str) -> CatalogModel:
    """The model that ``resolve`` finds, without its note."""
    return resolve(text)[0]


def is_same(text: str, other: str) -> bool:
    """Whether two names, of any organisation, mean one model of the catalogue."""
    try:
        return lookup(text.rpartition("/")[2]).name == lookup(other.rpartition("/")[2]).name
    except InputError:
        return False


def resolve(text: str, option: str = "⟨model⟩ ") -> tuple[CatalogModel, tuple[str, ...]]:
    """The model that a name means, and what was taken for what where the name is not the catalogue's.

    Names are compared exactly but for case and separators: the catalogue's name, a listed alias or
    the repository's, with or without its organisation (``meta-llama/Llama-3.1-8B``). An ending that
    changes no shape (``-Instruct``, ``-Base``, ``-Chat``) is dropped, and the note says so. ``option`` stands
    before the name in messages.

    Raises:
        InputError: no model has this name. The message lists those that an incomplete name could
            mean, and chooses none.
    """
    if len(text) > 200:
        raise InputError(f"{option}{text[:20]!r}…: too long for a model's name; `zerokit models` lists them")
    if has_entry(FOLDER, text):
        return load(text), ()
    words = split(text)
    candidates = _by_words().get(words)
    if candidates is not None:
        return load(candidates.name), () if candidates.own else (
            f"{option}{text}: another name of {candidates.name}",
        )
    unmatched = words
    while len(unmatched) > 1 and unmatched[-1] in _SAME_SHAPE:
        unmatched = unmatched[:-1]
        candidates = _by_words().get(unmatched)
        if candidates is not None:
            ending = "-".join(words[len(unmatched) :])
            return load(candidates.name), (
                f"{option}{text}: taken as {candidates.name}; -{ending} changes no shape",
            )
    if not any(len(word) > 1 and word.isalpha() for word in unmatched):
        raise InputError(option + (_size(text) or _unknown(text)))
    could_be = could_mean((label.name, skipped(words, unmatched)) for words, label in _by_words().items())
    raise InputError(option + (f"{text!r} {incomplete(could_be)}" if could_be else _unknown(text)))


def nearest(parameters: int) -> CatalogModel:
    """The dense causal language model that stands in for a bare ``--params``.

    Sizes are compared as ratios. A Llama within 15 % is taken first, then a model of the same
    architecture within 15 %, then the nearest of all. Of equals the newer version wins.

    Raises:
        InputError: ``parameters`` is not positive.
    """
    if parameters < 1:
        raise InputError(f"⟨params⟩ {parameters} must be at least 1")

    def distance(model: Summary) -> float:
        return abs(math.log(model.parameters / parameters))

    dense = [m for m in index() if m.head == "causal" and m.experts is None and m.has_closed_form]
    ranked = sorted(sorted(dense, key=lambda model: model.name, reverse=True), key=distance)
    close = [model for model in ranked if distance(model) <= math.log1p(_PREFERRED_WITHIN)]
    llamas = [model for model in close if model.family == "llama"]
    alike = [model for model in close if model.model_type == "llama"]
    for model in (*llamas, *alike, *ranked):
        loaded = load(model.name)
        if "vision_config" not in loaded.hf_config:  # part of its weights is no language model
            return loaded
    raise AssertionError("the catalogue has no dense causal language model")


def agrees(published: int, computed: int) -> bool:
    """Whether ``computed``, rounded to as many digits as ``published`` gives, is ``published``."""
    given_digits = len(str(published).rstrip("0"))
    return round(computed, given_digits - len(str(computed))) == published


def read_model(path: Path) -> CatalogModel:
    """One catalogue file. Raises FileInputError: with the line, when the file breaks a rule."""
    document = read(path, _FIELDS)
    _check(document, path.stem)
    values = {"hub": None, "experts": None, "published_differs": None, **document.value}
    values["aliases"] = tuple(values.get("aliases", ()))
    return CatalogModel(**values, model_type=values["hf_config"]["model_type"])


def summary(model: Summary) -> dict[str, Any]:
    """The model without its configuration, as the index file and ``--json`` hold it."""
    values = {field.name: getattr(model, field.name) for field in dataclasses.fields(Summary)}
    return {**values, "aliases": list(model.aliases)}


def as_dict(model: CatalogModel) -> dict[str, Any]:
    """The model with its configuration, as ``--json`` shows it."""
    return {**summary(model), "hf_config": dict(model.hf_config)}


def _check(document: Document, name: str) -> None:
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
    published, computed = values["published_parameters"], values["parameters"]
    differs = "published_differs" in values
    if differs and agrees(published, computed):
        raise document.error(("published_differs",), f"published_differs: {published} is {computed} rounded")
    if not differs and not agrees(published, computed):
        message = f"published_parameters: {published} is not {computed} rounded to its digits"
        raise document.error(("published_parameters",), message)


@frozen_dataclass
class _Label:
    """One of the names of a model; ``own``: it is the catalogue's or the repository's."""

    name: str
    own: bool


@functools.cache
def _by_words() -> dict[Words, _Label]:
    labels: dict[Words, _Label] = {}
    for model in index():
        owner, _, repository = (model.hub or model.name).rpartition("/")
        for is_own, names_of_it in ((True, (model.name, repository)), (False, model.aliases)):
            for name in names_of_it:
                labels.setdefault(split(name), _Label(name=model.name, own=is_own))
                if owner:
                    labels.setdefault(split(f"{owner}/{name}"), _Label(name=model.name, own=is_own))
    return labels


def _size(text: str) -> str | None:
    """What to say of a bare size, which names no model; None where it is none."""
    try:
        parse_count(text)
    except InputError:
        return None
    alike = dict.fromkeys(label.name for words, label in _by_words().items() if contains(words, split(text)))
    of_size = f"one of this size: {', '.join(list(alike)[:_MOST_ALIKE])}; " if alike else ""
    return f"{text!r} is a size, not a name: ⟨params⟩ {text}, or {of_size}`zerokit models` lists all"


def _unknown(text: str) -> str:
    return (
        f"{text!r} is neither a file nor in the catalogue; {suggestions(text, names())}"
        "`zerokit models` lists them; a Hugging Face config.json, or a folder with one, works as well"
    )
