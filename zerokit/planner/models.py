"""Which model a request means: a catalogue entry, a config.json, or a stand-in for a bare size; and whether a
script names the same."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

from zerokit.catalog import models
from zerokit.domain.families import FAMILIES, attends_fully, can_be_separate, from_config
from zerokit.domain.hf_classes import check_modelled, has_other_layers, is_named_for, named_head
from zerokit.domain.hf_config import longest_sequence, named_positions
from zerokit.domain.images import SequenceImages
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape, scaled
from zerokit.errors import FileInputError, InputError
from zerokit.machine.versions import installed
from zerokit.notes import Note, notes_of
from zerokit.planner.image_models import RequestedImages, built_with_images, processor_of
from zerokit.planner.memory_source import ITS_BUCKETS, Model, Say, Source, note_on_trace, silent
from zerokit.units import counted, format_count, parse_count
from zerokit.values import frozen_dataclass, replace

MODEL_CONFIG = "config.json"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")


def config_file(model: str) -> Path | None:
    """The configuration that ``model`` is, or holds; None: it is no path that exists, nor looks like one.
    Raises InputError: there is something else, or a JSON file is named that does not exist."""
    path = Path(model)
    if path.is_dir() and not (path := path / MODEL_CONFIG).is_file():
        raise InputError(f"⟨model⟩ {model}: the folder has no {MODEL_CONFIG}")
    if not path.is_file():
        if model.endswith(".json"):
            raise InputError(f"⟨model⟩ {model}: no such file")
        return None
    if path.suffix == ".py":
        raise InputError(f"⟨model⟩ {model}: a script is no model: zerokit plan … -- {model}")
    if path.suffix in _WEIGHTS:
        raise InputError(f"⟨model⟩ {model}: a file of weights; name its folder, {path.parent}")
    return path


_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_repository(name: str) -> bool:
    """Whether it is spelt as a repository of the Hub: ``organisation/name``."""
    return _REPOSITORY.fullmatch(name) is not None and ".." not in name


def cached_config(name: str, environment: Mapping[str, str] | None = None) -> Path | None:
    """The config.json of the repository's main branch in the cache (huggingface_hub 2.4, ``constants.py``);
    None where it is not there."""
    if not is_repository(name):
        return None
    variables = os.environ if environment is None else environment
    home = (
        variables.get("HF_HOME")
        or Path(variables.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    )
    root = Path(variables.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    folder = root / f"models--{name.replace('/', '--')}"
    with suppress(OSError):
        commit = (folder / "refs" / "main").read_text().strip()
        path = folder / "snapshots" / commit / "config.json"
        if _COMMIT.fullmatch(commit) and path.is_file():
            return path
    return None


_HUB_SECONDS = 8
"""How long a plan waits for the Hub; without a network huggingface_hub tries for three times as long."""


def fetched_config(name: str, say: Say) -> tuple[Path | None, str]:
    """The repository's config.json by huggingface_hub, with the token that it knows, and why there is none:
    the package is missing, told to be offline, or the Hub refuses or does not answer in time."""
    if find_spec("huggingface_hub") is None:
        return None, "huggingface_hub is not installed here"
    import logging

    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.utils import logging as hub_logging

    if constants.HF_HUB_OFFLINE:
        return None, "HF_HUB_OFFLINE is set"
    say(f"fetching {MODEL_CONFIG} of {name} from the Hub, for {_HUB_SECONDS} s at most")
    found: list[Path | str] = []

    def fetch() -> None:
        verbosity = hub_logging.get_verbosity()
        hub_logging.set_verbosity(logging.ERROR)  # it tells of every attempt
        try:
            found.append(Path(hf_hub_download(name, MODEL_CONFIG, etag_timeout=_HUB_SECONDS)))
        except Exception as error:  # huggingface_hub's own, those of the connection, of a full disk
            found.append(str(error).strip().partition("\n")[0])
        finally:
            hub_logging.set_verbosity(verbosity)

    thread = Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(_HUB_SECONDS)
    (one,) = found or ["it did not answer in time"]
    return (one, "") if isinstance(one, Path) else (None, f"the Hub: {one}")


def fetch_command(name: str) -> str:
    """What brings the repository's config.json, and nothing else, into the cache."""
    return f"hf download {shlex.quote(name)} config.json"


# "7b" is what people call 6.74e9: a figure of so many digits within this names the model
_SAME_SIZE = (0.0, 0.06, 0.06, 0.015)
_FEWEST_PARAMETERS = 10_000  # below it a suffix was forgotten: 70 for 70b
_CLOSED_FORM_WITHIN = 0.02  # of Transformers' count: a closed form that is further off is of another model
_ROUGH = {
    False: "step times are those of the products in the model that transformers builds; how many kernels its "
    "layers launch is a guess",
    True: "step times count the products of state-space and linear-attention layers, not their scans: no "
    "more than a rough guide; memory is that of Transformers' own PyTorch code, and the kernels of "
    "mamba-ssm, causal-conv1d or flash-linear-attention take less",
}


@frozen_dataclass
class Chosen:
    """A model to plan for.

    Attributes:
        memory: gives the memory model for a job.
        max_seq_len: positions of the configuration, where it limits them.
        longest_sequence: tokens beyond which the model named fails.
    """

    shape: ModelShape
    memory: Callable[[Job], Model]
    max_seq_len: int | None
    longest_sequence: int | None = None
    assumptions: tuple[Note, ...] = ()
    images: SequenceImages | None = None


def choose_model(
    params: str | None,
    model: str | None,
    *,
    single: bool = False,
    say: Say = silent,
    images: RequestedImages | None = None,
) -> Chosen:
    """The model of ``--params`` or ``--model``.

    ``single``: one strategy is to be estimated, so whatever it needs may be traced; ``say`` hears of it;
    ``images``: those of each sequence.

    Raises:
        InputError: neither or both are given, or what is given cannot be used.
    """
    if params and model:
        raise InputError("⟨params⟩ and ⟨model⟩: give one of them")
    if model:
        return _named(model, single, say, images)
    if params:
        return _sized(params, single, say)
    raise InputError("name the model: ⟨params⟩ 70b, or ⟨model⟩ NAME|PATH (zerokit models lists the names)")


def _memory(source: Source) -> Callable[[Job], Model]:
    def memory(job: Job) -> Model:
        source.check_targets(job)
        return Model(source=source)

    return memory


def _chosen(
    config: Mapping[str, Any],
    name: str,
    parameters: int | None,
    notes: tuple[str, ...],
    *,
    trace: str,
    head: str | None = None,
    shape: ModelShape | None = None,
    catalogued: bool = False,
    closed_form: bool = True,
    say: Say = silent,
) -> Chosen:
    of_version: tuple[Note, ...] = ()
    shape = shape or _shape_here(config, name=name, parameters=parameters)
    source = Source(shape=shape, name=name, head=head, hf_config=config, trace=trace, closed_form=closed_form,
                    say=say)  # fmt: skip
    if catalogued:
        from zerokit.catalog import profiles

        source.profile = profiles.load(name, installed("transformers"))
        source.catalogued = True
        source.stored = 0 if source.profile is None else len(source.profile.traces)
        of_version = _of_other_version(source)
    longest = longest_sequence(config)
    return Chosen(
        shape=shape,
        memory=_memory(source),
        max_seq_len=longest or named_positions(config),
        longest_sequence=longest,
        assumptions=(*notes_of("model", notes), *of_version),
    )


def _shape_here(config: Mapping[str, Any], **named: Any) -> ModelShape:
    """The shape by its family's table, with modules as the installed Transformers has them."""
    older = (installed("transformers") or "").startswith("4.") and can_be_separate(config.get("model_type"))
    return from_config(config, separate=older, **named)


def _of_other_version(source: Source) -> tuple[Note, ...]:
    """What to say where the catalogue's traces are of another Transformers than the one installed here.

    Kernels differ between versions, and with them what a model keeps: T5's forward allocates twice as much
    with 5.19 as with 5.20. One strategy is traced again; a search takes what was traced with the installed
    one, else the catalogue's traces, of the range of releases that it belongs to, and says so.
    """
    from zerokit.catalog.profiles import alike

    version, profile = installed("transformers"), source.profile
    if profile is None or version is None:
        return ()
    if version.split(".")[:2] == profile.transformers_version.split(".")[:2]:
        return ()
    traced = f"the catalogue's traces are of {profile.transformers_version}"
    mismatch = f"Transformers {version} is installed, {traced}"
    if source.trace == "always":
        source.other_version, source.profile, source.catalogued = profile, None, False
        text = f"{mismatch}: traced again where the installed one can be traced"
        return (Note("traces-of-other-version", text, "minor"),)
    if alike(str((source.hf_config or {}).get("model_type")), version, profile.transformers_version):
        text = f"{mismatch}, with the same result (a sweep of releases)"
        return (Note("traces-of-other-version", text, "minor"),)
    source.other_version, source.profile, source.catalogued, source.stored = profile, None, False, 0
    source.of_other_version = note_on_trace(
        "traces-of-other-version",
        f"{mismatch}, and versions may keep more or less for backward; "
        f"{{command}} traces with the installed one, {ITS_BUCKETS}; then plan again",
        "minor",
    )
    return ()


def _named(model: str, single: bool, say: Say, images: RequestedImages | None) -> Chosen:
    if (path := config_file(model)) is not None:
        return _from_file(path, single, say, images)

    try:
        entry, notes = models.resolve(model)
    except InputError as error:
        from zerokit.suggest import folder_alike

        if (folder := folder_alike(Path(model), holding=MODEL_CONFIG)) is not None:
            raise InputError(f"{error.marked}; there is a model in {folder}") from None
        if not is_repository(model):
            raise
        config, same, why = cached_config(model), _of_same_name(model), ""
        if config is None and same is None:
            config, why = fetched_config(model, say)
        if config is not None:
            return _from_file(config, single, say, images, name=model)
        if same is None:
            raise InputError(
                f"{error.marked}; to fetch that of the Hub into this machine's cache: {fetch_command(model)} "
                f"(not done: {why})"
            ) from None
        entry, notes = same
    if images is None and entry.head == "image-text":
        raise InputError(f"⟨model⟩ {model}: a model of images and text; give ⟨images⟩ N ⟨image_size⟩ WxH")
    if images is not None:
        return _of_images(entry.hf_config, entry.name, {}, images, notes, single, say)
    if not entry.has_closed_form:
        # A model of the catalogue whose family has no closed form: as it was built when it was traced;
        # where it was not, as Transformers builds it now
        from zerokit.catalog import profiles

        shape = profiles.shape(entry.name, installed("transformers"))
        if shape is None:
            return _of_built(entry.hf_config, entry.name, entry.name, notes, single, say)
        shape = replace(shape, attends_fully=attends_fully(entry.hf_config))  # which is not stored
        count = f"{entry.name}: {format_count(shape.parameters)} parameters, as transformers builds it"
        return _chosen(
            entry.hf_config, entry.name, None, (*notes, count, _ROUGH[has_other_layers(entry.hf_config)]),
            trace="always" if single else "some", head=shape.head, shape=shape, catalogued=True,
            closed_form=False, say=say,
        )  # fmt: skip
    return _chosen(
        entry.hf_config, entry.name, entry.parameters, notes, head=entry.head, catalogued=True,
        trace="always" if single else "never", say=say,
    )  # fmt: skip


def _of_built(
    config: Mapping[str, Any], name: str, source: str, notes: tuple[str, ...], single: bool, say: Say
) -> Chosen:
    """The model as Transformers builds it; ``source`` is named in errors."""
    shape = _shape(config, source)
    return _chosen(
        config, name, None, (*notes, *shape.notes), trace="always" if single else "some", head=shape.head,
        shape=replace(shape.shape, name=name), closed_form=shape.closed_form, say=say,
    )  # fmt: skip


def _of_images(
    config: Mapping[str, Any],
    name: str,
    processor: Mapping[str, Any],
    images: RequestedImages,
    notes: tuple[str, ...],
    single: bool,
    say: Say,
) -> Chosen:
    shape, sequence_images, note = built_with_images(config, name, processor, images)
    chosen = _chosen(
        config, name, None, (*notes, *note, _ROUGH[False]), head=shape.head, shape=shape, closed_form=False,
        trace="always" if single else "some", say=say,
    )  # fmt: skip
    return replace(chosen, images=sequence_images)


def _from_file(
    path: Path, single: bool, say: Say, images: RequestedImages | None, name: str | None = None
) -> Chosen:
    from zerokit.strictload import load_json

    document = load_json(path, strict=False)
    config = document.value
    if not isinstance(config, dict):
        raise InputError(f"⟨model⟩ {path}: expected a JSON object, a Hugging Face config.json")
    kind = config.get("model_type")
    if kind is not None and not isinstance(kind, str):
        raise document.error(("model_type",), f"model_type is {kind!r}; expected a text such as 'llama'")
    check_modelled(config, str(path), images is not None)
    packed = config.get("quantization_config")
    if packed:
        method = packed.get("quant_method") if isinstance(packed, dict) else None
        raise document.error(
            ("quantization_config",),
            f"the weights are packed ({method or 'quantization_config'}), and their bytes are not modelled; "
            "name the model that they were made of (⟨method⟩ qlora trains adapters on its weights in 4 "
            "bits), or take this key out of a copy to count them in 16 bits",
        )
    if document.problems:
        first = document.problems[0]
        raise FileInputError(str(path), f"{first.message}; {first.fix}", *first.location)
    if images is not None:
        return _of_images(config, name or str(path), processor_of(path), images, (), single, say)
    return _of_built(config, name or str(path), str(path), (), single, say)


@frozen_dataclass
class _Read:
    """What a configuration's model is; ``closed_form``: whether its family's formulas hold for it."""

    shape: ModelShape
    head: str
    closed_form: bool
    notes: tuple[str, ...]


def _shape(config: Mapping[str, Any], path: str) -> _Read:
    """The model as Transformers builds it, where that is installed; else as its family's table says. Raises
    InputError: Transformers cannot build it; or it is not here, and the family's shape is not known."""
    is_modelled = str(config.get("model_type")) in FAMILIES and not has_other_layers(config)
    if find_spec("torch") is None or find_spec("transformers") is None:
        head = named_head(config)
        if not is_modelled:
            raise InputError(
                f"{path}: model_type {config.get('model_type')!r} is counted and traced by Transformers, "
                "which is not installed here; install torch and transformers, or give ⟨params⟩"
            )
        _check_names(config, path)
        shape = _shape_here(config, name=path, head=head)
        if not _has_family_layers(shape, head):
            raise InputError(
                f"{path}: architectures: of encoder-decoders only …ForConditionalGeneration is known without "
                "transformers, which would build this class; install torch and transformers, or give ⟨params⟩"
            )
        note = (
            f"{path}: {format_count(shape.parameters)} parameters, counted from the configuration: "
            "transformers, which would build and check the model, is not installed here"
        )
        return _Read(shape=shape, head=head or shape.head, closed_form=True, notes=(note,))
    from zerokit.trace.shape import shape_of

    _check_classes(config, path)
    # what its keys do not say is an error with the key's name here, before Transformers speaks
    table = _shape_here(config, name=path, head=named_head(config)) if is_modelled else None
    try:
        built = shape_of(config, path)
    except InputError as error:
        raise InputError(f"{path}: {error.marked}") from None
    if not any(stack.gemms for stack in built.stacks):
        raise InputError(
            f"{path}: model_type {config.get('model_type')}: its layers have no matrix products, only "
            "convolutions or recurrent layers, which are not modelled; `zerokit rehearse` runs the script"
        )
    notes = [f"{path}: {format_count(built.parameters)} parameters, as transformers builds it"]
    if any(name.endswith("ForPreTraining") for name in config.get("architectures") or ()):
        notes.append("…ForPreTraining: taken as the …ForMaskedLM that its checkpoints are fine-tuned with")
    if built.head == "embedding":
        notes.append("a model without a head: traced with a loss of the mean of its last hidden states")
    agrees = table is not None and abs(table.parameters / built.parameters - 1) <= _CLOSED_FORM_WITHIN
    if table is not None and agrees and _has_family_layers(table, built.head):
        shape = replace(table, parameters=built.parameters, head=built.head)
        return _Read(shape=shape, head=built.head, closed_form=True, notes=tuple(notes))
    notes.append(_ROUGH[has_other_layers(config)])
    return _Read(shape=built, head=built.head, closed_form=False, notes=tuple(notes))


def _has_family_layers(shape: ModelShape, head: str | None) -> bool:
    """Whether a class has the layers that its family's formulas count: of an encoder-decoder some classes
    have the encoder or the decoder alone, or run the decoder for its last output."""
    has_decoder_of_encoder = any(stack.cross_attention for stack in shape.stacks)
    return not has_decoder_of_encoder or head in (None, "seq2seq", "speech-seq2seq")


def _check_names(config: Mapping[str, Any], path: str) -> None:
    """Without Transformers: refuse a class that is not named as its own of the model type are. Raises
    InputError: names the class."""
    kind = str(config.get("model_type"))
    for name in config.get("architectures") or ():
        if not is_named_for(name, kind):
            raise InputError(
                f"{path}: architectures: {name} is not named as transformers names its own classes of "
                f"model_type {kind!r}, and transformers, which would tell, is not installed here: install "
                "torch and transformers, or give ⟨params⟩"
            )


def _check_classes(config: Mapping[str, Any], path: str) -> None:
    """Refuse a class that is not Transformers' own: its layers may be anything. Raises InputError: names the
    class, or what the installed Transformers lacks."""
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            f"the installed transformers cannot be imported: {error}; repair it, or give ⟨params⟩"
        ) from error

    for name in config.get("architectures") or ():
        if not hasattr(transformers, name):
            raise InputError(
                f"{path}: architectures: {name} is not a class of the installed transformers "
                f"{transformers.__version__}, and remote code is never run; if its layers are those of "
                "a class there, name that; else `zerokit rehearse` runs the script"
            )


def _sized(params: str, single: bool, say: Say) -> Chosen:

    count = parse_count(params, "⟨params⟩")
    if count < _FEWEST_PARAMETERS:
        raise InputError(
            f"⟨params⟩ {params}: a model of {count} parameters; use a suffix, as in {count}b or {count}m"
        )
    entry = models.nearest(count)
    digits = len(str(count).rstrip("0"))
    reach = _SAME_SIZE[digits] if digits < len(_SAME_SIZE) else 0.0
    if abs(entry.parameters / count - 1) <= reach:
        note = f"⟨params⟩ {params}: taken as {entry.name}, {entry.parameters:,} parameters"
        chosen = _chosen(
            entry.hf_config, entry.name, entry.parameters, (note,), head=entry.head, catalogued=True,
            trace="always" if single else "never", say=say,
        )  # fmt: skip
        return replace(chosen, longest_sequence=None)  # a size was named, not this model
    shape = scaled(from_config(entry.hf_config, name=entry.name, parameters=entry.parameters), count)
    shape = replace(shape, name=f"{format_count(count)} parameters, built like {entry.name}")
    note = (
        f"⟨params⟩ {params}: a model built like {entry.name} ({format_count(entry.parameters)}), scaled to "
        f"{counted(shape.layers, 'layer')} of width {shape.hidden}; ⟨model⟩ names a real one"
    )
    return Chosen(
        shape=shape,
        memory=_memory(Source(shape=shape, name=entry.name)),
        max_seq_len=None,
        assumptions=(Note("model-scaled", note),),
    )


def _of_same_name(repository: str) -> tuple[models.CatalogModel, tuple[str, ...]] | None:
    """The catalogue's model whose repository has the same name in another organisation, and what to say."""
    try:
        entry, _ = models.resolve(repository.partition("/")[2])
    except InputError:
        return None
    said = f"⟨model⟩ {repository}: taken as {entry.name}, whose repository has that name"
    return entry, (f"{said}; `{fetch_command(repository)}` brings its own configuration",)


_SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_experts",
          "num_local_experts", "n_embd", "n_layer", "d_model", "num_layers")  # fmt: skip
_SAME_PARAMETERS = 0.02  # a vocabulary that was resized, say


def unlike_planned(
    name: str, spelt: str, request: Mapping[str, Any], parameters: int | None, *, by_options: bool = True
) -> str | None:
    """What to say of a model that the script's arguments name, as :func:`another_model`; ``by_options``: say
    which option plans for it, as no command is named that plans with the script."""
    another = another_model(name, spelt, request, parameters)
    if another is None:
        return None
    again = f"; plan again with ⟨model⟩ {name}" if by_options else ""
    return f"{another}: memory and time are not those of this run{again}"


def another_model(name: str, spelt: str, request: Mapping[str, Any], parameters: int | None) -> str | None:
    """That the script's arguments name another model than a plan; None: it is the plan's, or not known.

    Args:
        name: as the script gets it: a folder, or a repository of the Hub.
        spelt: how it stands in the arguments.
        request: the plan's.
        parameters: those of the plan's model.
    """
    planned, named = str(request.get("model") or ""), config_of(name)
    if named is None or name == planned:
        return None
    config = config_of(planned) if planned else None
    difference = _of_size(name, parameters) if config is None else _of_configs(named, config)
    if difference is None:
        return None
    planned_model = planned or f"⟨params⟩ {request.get('params')}"
    return f"{spelt} is another model than the plan's {planned_model} ({difference})"


def config_of(name: str) -> Mapping[str, Any] | None:
    """A model's configuration: of its folder, the catalogue, or this machine's cache of the Hub."""
    from zerokit.strictload import load_json

    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if not path.is_file():
        try:
            return models.resolve(name)[0].hf_config
        except InputError:
            cached = cached_config(name) if is_repository(name) else None
        if cached is None:
            return None
        path = cached
    try:
        config = load_json(path, strict=False).value
    except InputError:
        return None
    return config if isinstance(config, dict) else None


def _of_configs(named: Mapping[str, Any], planned: Mapping[str, Any]) -> str | None:
    named, planned = _flat(named), _flat(planned)
    if named.get("model_type") != planned.get("model_type"):
        return f"{named.get('model_type')}, not {planned.get('model_type')}"
    unlike = [key for key in _SIZES if key in named and key in planned and named[key] != planned[key]]
    return ", ".join(f"{key} {named[key]}, not {planned[key]}" for key in unlike[:2]) or None


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """With the sizes of the text part of a model of images and text."""
    text = config.get("text_config")
    return {**(text if isinstance(text, dict) else {}), **config}


def _of_size(name: str, parameters: int | None) -> str | None:
    """Of a plan for a bare size: the parameters of a model of the catalogue beside it."""
    try:
        count = models.resolve(name)[0].parameters
    except InputError:
        return None
    if not parameters or abs(count / parameters - 1) <= _SAME_PARAMETERS:
        return None
    return f"{format_count(count)} parameters, not {format_count(parameters)}"
