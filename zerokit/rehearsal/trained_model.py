"""The planner's words for what a script trains, as its first rehearsal showed it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.domain.settings import unlike_script
from zerokit.errors import InputError
from zerokit.files import cache_folder, write_whole
from zerokit.planner.hardware import integer, share
from zerokit.rehearsal.result import Rehearsal

_SAME_PARAMETERS = 0.02
_TRAINED = {
    "full": "all weights", "lora": "LoRA adapters on weights that are not in 4 bits",
    "qlora": "LoRA adapters on weights in 4 bits (QLoRA)",
}  # fmt: skip


def options_of(
    done: Rehearsal, options: Mapping[str, Any], sequence_parallel: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arguments of a plan that the script decides and nobody gave, and a note for each. ``options``: those
    that were given. ``sequence_parallel``: ranks that share a sequence. Raises InputError: the script trains
    no model of Transformers, and none was named."""
    model, engine = done.model or {}, done.engine or {}
    result: dict[str, Any] = {}
    notes: list[str] = []
    method = model.get("method", "full")
    if not options.get("model") and not options.get("params"):
        config = model.get("config")
        if config is not None and method == "qlora":  # the method packs the weights: not the model twice
            config = {name: value for name, value in config.items() if name != "quantization_config"}
        result["model"] = _model(config, engine)
        notes.append(f"model {result['model']}: the configuration of what the script trains")
    if not options.get("method") and method != "full":
        result["method"] = method
        notes.append(f"⟨method⟩ {method}: the script trains adapters")
    if method != "full":  # whose rank and modules are the script's, whoever named the method
        if not options.get("lora_rank") and model.get("lora_rank"):
            result["lora_rank"] = str(model["lora_rank"])
        if not options.get("lora_targets") and model.get("lora_targets"):
            result["lora_targets"] = ",".join(model["lora_targets"])
        if not options.get("lora_dropout") and model.get("lora_dropout") is not None:
            result["lora_dropout"] = f"{model['lora_dropout']:g}"
    length = fed_tokens(engine, sequence_parallel)
    if not options.get("seq_len") and length:
        result["seq_len"] = str(length)
        notes.append(f"sequences of {length} tokens: the longest that the script fed its model")
    return result, tuple(notes)


def name_of(done: Rehearsal) -> str:
    """The model's name or path as the script has it; empty: it has none, or it is not known."""
    config = (done.model or {}).get("config") or {}
    return str(config.get("_name_or_path") or "")


def is_named(model: str, name: str) -> bool:
    """Whether a script's name or path of a model names this one of the catalogue."""
    from zerokit.catalog import models

    if not name or Path(name).exists():
        return False
    try:
        return models.resolve(name)[0].name == model
    except InputError:
        return False


def fed_tokens(engine: Mapping[str, Any], sequence_parallel: int) -> int | None:
    """Tokens of the longest sequence, of which each sequence-parallel rank is fed its part; rows that are
    joined into one count as those that were asked for."""
    rows, columns, micro = (engine.get(name) for name in ("batch_rows", "batch_columns", "micro_batch"))
    if not columns:
        return None
    return int(-(-columns // micro) if rows == 1 and micro else columns) * sequence_parallel


def refuse_unlike_method(done: Rehearsal, asked: Mapping[str, Any], adapters_option: str = "") -> None:
    """Stop where something else is trained than was asked for: all weights, adapters, or others. ``asked``:
    the options that were given. ``adapters_option``: of the script, with which it trains adapters; empty:
    none is known. Raises InputError: says both."""
    model, engine, method = done.model or {}, done.engine or {}, asked.get("method")
    saw, targets = str(model.get("method", "full")), asked.get("lora_targets")
    total, trained = engine.get("parameters") or 0, engine.get("trainable_parameters") or 0
    unlike = method is not None and method != saw
    if unlike and (saw != "full" or trained == total):  # others are adapters of another kind than LoRA's
        change = "change the script"
        if saw == "full" and adapters_option:
            change = f"give the script {adapters_option}, after its name"
        raise unlike_script("method", method, f"the script trains {_TRAINED[saw]}", change)
    rank, seen_rank = integer(asked, "lora_rank"), model.get("lora_rank")
    if rank is not None and seen_rank not in (None, rank):
        raise unlike_script("lora_rank", rank, f"the script's is {seen_rank}")
    dropout, seen_dropout = share(asked, "lora_dropout"), model.get("lora_dropout")
    if dropout is not None and seen_dropout is not None and bool(dropout) != bool(seen_dropout):
        raise unlike_script("lora_dropout", f"{dropout:g}", f"the script's is {seen_dropout:g}")
    seen = tuple(model.get("lora_targets") or ())
    names = {part.strip() for part in str(targets or "").split(",")}
    if targets and seen and seen != ("all-linear",) and names != set(seen):  # which any names may amount to
        raise unlike_script("lora_targets", targets, f"the script's are {','.join(seen)}")


def contradiction(done: Rehearsal, parameters: int, method: str) -> str | None:
    """Why the model that was named is not the one that the script trains."""
    engine = done.engine or {}
    total, trained = engine.get("parameters"), engine.get("trainable_parameters")
    if not total or not trained or method == "qlora":  # packed weights count half
        return None
    total -= trained if trained < total and method == "lora" else 0
    if abs(total / parameters - 1) <= _SAME_PARAMETERS:
        return None
    return f"the script trains a model of {total:,} parameters, the one named has {parameters:,}"


def _model(config: Mapping[str, Any] | None, engine: Mapping[str, Any]) -> str:
    """A name of the catalogue, or the path of the configuration among our cached files. Raises InputError:
    there is no configuration."""
    if config is None:
        raise InputError(
            "the script's model is not one of Transformers, so its configuration is not known: "
            "name one of its size with ⟨model⟩ or ⟨params⟩"
        )
    entry = _catalogued(config, engine)
    if entry is not None:
        return entry
    text = json.dumps(config, indent=1, sort_keys=True)
    name = f"{config.get('model_type', 'model')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    path = cache_folder() / "script-models" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror}; name the script's model with ⟨model⟩"
        ) from None
    return str(path)


def _catalogued(config: Mapping[str, Any], engine: Mapping[str, Any]) -> str | None:
    """The model of the catalogue with this very configuration, whose traces are stored."""
    from zerokit.catalog import models

    count = engine.get("parameters") or 0
    if engine.get("trainable_parameters", count) < count:
        count -= engine["trainable_parameters"]
    for entry in models.index():
        is_alike = (
            entry.model_type == config.get("model_type") and abs(entry.parameters - count) <= count // 1000
        )
        if is_alike and _says_the_same(config, models.load(entry.name).hf_config):
            return entry.name
    return None


def _says_the_same(value: Any, catalogued: Any) -> bool:
    """Whether a configuration holds what the catalogue's does, or nothing in its place; of lists, whose words
    for layers changed between releases of Transformers, as many."""
    if value is None:
        return True
    if isinstance(catalogued, Mapping):
        return isinstance(value, Mapping) and all(
            _says_the_same(value.get(key), part) for key, part in catalogued.items()
        )
    if isinstance(catalogued, list):
        return isinstance(value, list) and len(value) == len(catalogued)
    return bool(value == catalogued)
