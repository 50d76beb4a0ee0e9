"""Which model a request means: a catalogue entry, a config.json, or a stand-in for a bare size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.domain.families import from_config
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape, scaled
from zerokit.errors import InputError
from zerokit.planner.memory_source import Model, Source
from zerokit.units import format_count, parse_count

# "7b" is what people call 6.74e9: a figure of so many digits within this names the model
_SAME_SIZE = (0.0, 0.06, 0.06, 0.015)
_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A model to plan for.

    Attributes:
        memory: gives the memory model for a job.
        max_seq_len: positions of the configuration, where it limits them.
    """

    shape: ModelShape
    memory: Callable[[Job], Model]
    max_seq_len: int | None
    assumptions: tuple[str, ...] = ()


def choose_model(params: str | None, model: str | None, *, single: bool = False) -> Chosen:
    """The model of ``--params`` or ``--model``.

    ``single``: one strategy is to be estimated, so whatever it needs may be traced.

    Raises:
        InputError: neither or both are given, or what is given cannot be used.
    """
    if params and model:
        raise InputError("--params and --model: give one of them")
    if model:
        return _named(model, single)
    if params:
        return _sized(params, single)
    raise InputError("name the model: --params 70b, or --model NAME|PATH (zerokit models lists the names)")


def _memory(source: Source) -> Callable[[Job], Model]:
    def memory(job: Job) -> Model:
        source.check_targets(job)
        return Model(source)

    return memory


def _chosen(
    config: Mapping[str, Any],
    name: str,
    parameters: int | None,
    notes: tuple[str, ...],
    *,
    trace: str,
    head: str | None = None,
    catalogued: bool = False,
) -> Chosen:
    shape = from_config(config, name=name, parameters=parameters)
    source = Source(shape=shape, name=name, head=head, hf_config=config, trace=trace)
    if catalogued:
        from zerokit.catalog import profiles

        source.profile = profiles.load(name)
        source.catalogued = True
    limit = next((config[key] for key in _LIMITS if isinstance(config.get(key), int)), None)
    return Chosen(shape=shape, memory=_memory(source), max_seq_len=limit, assumptions=notes)


def _named(model: str, single: bool) -> Chosen:
    place = Path(model)
    if place.is_dir():
        place = place / "config.json"
        if not place.is_file():
            raise InputError(f"--model {model}: the folder has no config.json")
    if place.is_file():
        return _from_file(place, single)
    if model.endswith(".json"):
        raise InputError(f"--model {model}: no such file")
    from zerokit.catalog import models

    entry, notes = models.resolve(model)
    return _chosen(
        entry.hf_config, entry.name, entry.parameters, notes, head=entry.head, catalogued=True,
        trace="always" if single else "never",
    )  # fmt: skip


def _from_file(place: Path, single: bool) -> Chosen:
    from zerokit.strictload import load_json

    config = load_json(place).value
    if not isinstance(config, dict):
        raise InputError(f"--model {place}: expected a JSON object, a Hugging Face config.json")
    chosen = _chosen(config, str(place), None, (), trace="always" if single else "some")
    note = f"{place}: {format_count(chosen.shape.parameters)} parameters, counted from the configuration"
    return Chosen(
        shape=chosen.shape, memory=chosen.memory, max_seq_len=chosen.max_seq_len, assumptions=(note,)
    )


def _sized(params: str, single: bool) -> Chosen:
    from zerokit.catalog import models

    wanted = parse_count(params, "--params")
    entry = models.nearest(wanted)
    digits = len(str(wanted).rstrip("0"))
    reach = _SAME_SIZE[digits] if digits < len(_SAME_SIZE) else 0.0
    if abs(entry.parameters / wanted - 1) <= reach:
        note = f"--params {params}: taken as {entry.name}, {entry.parameters:,} parameters"
        return _chosen(
            entry.hf_config, entry.name, entry.parameters, (note,), head=entry.head, catalogued=True,
            trace="always" if single else "never",
        )  # fmt: skip
    shape = scaled(from_config(entry.hf_config, name=entry.name, parameters=entry.parameters), wanted)
    note = (
        f"--params {params}: a model built like {entry.name} ({format_count(entry.parameters)}), scaled to "
        f"{shape.layers} layers of width {shape.hidden}; --model names a real one"
    )
    return Chosen(
        shape=shape,
        memory=_memory(Source(shape=shape, name=entry.name)),
        max_seq_len=None,
        assumptions=(note,),
    )
