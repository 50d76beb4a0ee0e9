"""How many of which GPU a model and job need: what is asked for, and the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zerokit.domain.hardware import Gpu
from zerokit.domain.job import METHODS
from zerokit.errors import InputError, NothingFits
from zerokit.memory.closed_form import CLOSED_FORM_NOTE
from zerokit.notes import Note, notes_of
from zerokit.planner.hardware import choice, doubted_vram, integer, prices_of
from zerokit.planner.memory_source import Say, silent
from zerokit.planner.request import resolve
from zerokit.planner.size_result import FewestGpus, SizeResult
from zerokit.units import counted
from zerokit.values import replace

if TYPE_CHECKING:
    from zerokit.search.sizing import Size
    from zerokit.search.space import Request


TYPICAL = ("rtx-4090", "l40s", "a100-40gb", "a100-80gb", "h100-sxm-80gb", "h200", "b200", "mi300x")
_MOST_GPUS = 1 << 14

_COUNTED = ("gpus-assumed", "nodes-assumed")
"""Notes of a request on what an answer counts itself."""


def fewest(options: Mapping[str, Any], *, price: str | None = None, say: Say | None = None) -> SizeResult:
    """The fewest GPUs of each kind; ``gpu`` and ``method`` may name several with commas, ``gpus`` the most.

    Raises:
        InputError: an argument that cannot be; names it and the fix.
    """
    from zerokit.planner.options import given_options
    from zerokit.search.sizing import sizes

    _refuse(options)
    named = _methods(options)
    adapters = next((method for method in named if method != "full"), None)  # which lora_rank is read with
    one_method = {**options, "gpus": None, "method": adapters}
    kinds = _kinds(one_method)
    resolved = resolve({**one_method, "gpu": kinds[0].name, "vram": None}, say=say or silent)
    request = resolved.request
    if say is not None and (doubted := doubted_vram(options)) is not None:
        say(doubted)
    prices = prices_of(price, [gpu.name for gpu in kinds])
    methods = named or (("full",) if request.job.inference else METHODS)
    most = integer(options, "gpus") or _MOST_GPUS
    results = list(sizes(request, kinds, methods, most))
    if all(size.refused for size in results):
        raise InputError(results[-1].why)
    return SizeResult(
        model_name=resolved.model_name,
        request=given_options(options),
        sizes=tuple(FewestGpus(size=size, price_per_gpu_hour=prices.get(size.gpu.name)) for size in results),
        notes=(
            *(note for note in request.assumptions if note.id not in _COUNTED and note.topic != "hardware"),
            *_batch_notes(request, results),
            *_speed_notes(options),
            *_host_notes(options, kinds),
            *notes_of("unread", _unread(options, results)),
            *_closed_form_notes(results),
        ),
        misfit=(
            None
            if any(size.gpus for size in results)
            else _misfit(resolved.model_name, request, kinds, methods, most)
        ),
    )


def _misfit(
    model_name: str, request: Request, kinds: Sequence[Gpu], methods: Sequence[str], most: int
) -> str:
    """That nothing fits; and of each method why not on the most GPUs of the kind with the most memory, at
    most one node of them, and what would."""
    from zerokit.search.explain import gpu_words
    from zerokit.search.plan import WHAT_WOULD_FIT
    from zerokit.suggest import alternatives

    gpu = max(kinds, key=lambda kind: kind.driver_vram_bytes)
    cluster = replace(request.cluster, gpu=gpu, gpus=min(most, gpu.max_gpus_per_node), nodes=1)
    names = alternatives(list(dict.fromkeys(gpu_words(kind) for kind in kinds)))
    answers = {method: _why_not(replace(request, cluster=cluster), method) for method in methods}
    first = f"{model_name} does not fit on up to {counted(most, 'GPU')} ({names})"
    if len(methods) > 1:
        named = {
            method: why.replace(WHAT_WOULD_FIT, WHAT_WOULD_FIT.replace(" it ", f" {method} "))
            for method, why in answers.items()
        }
        return "\n".join((first, *(f"{method}: {why}" for method, why in named.items() if why)))
    why = answers[methods[0]]
    if not why:
        return first
    return why if len(kinds) == 1 and cluster.gpus == most else f"{first}\nfor example, {why}"


def _why_not(request: Request, method: str) -> str:
    """Why nothing fits with this method, and what would; empty where something does."""
    from zerokit.search.plan import make_plan

    lora = None if method == "full" else request.job.adapters
    try:
        make_plan(replace(request, job=replace(request.job, method=method, lora=lora)))
    except (InputError, NothingFits) as error:
        return error.marked
    return ""


def _speed_notes(options: Mapping[str, Any]) -> tuple[Note, ...]:
    """Why a card of the catalogue is named where only its memory was given."""
    from zerokit.catalog.gpus import for_vram
    from zerokit.units import parse_bytes

    if options.get("gpu") or not options.get("vram"):
        return ()
    return (Note("speeds-assumed", for_vram(parse_bytes(options["vram"], "⟨vram⟩"))[1]),)


def _closed_form_notes(sizes: Sequence[Size]) -> tuple[Note, ...]:
    """Which of the answers are no replay of a trace."""
    found = [size.candidate.memory.assumptions for size in sizes if size.candidate is not None]
    rough = [notes for notes in found if CLOSED_FORM_NOTE in notes]
    if not rough:
        return ()
    note = CLOSED_FORM_NOTE
    return (note if len(rough) == len(found) else note.with_text(f"some rows: {note}"),)


def _batch_notes(request: Request, sizes: Sequence[Size]) -> tuple[Note, ...]:
    """The global batch of the rows, where it was not given: it depends on their number of GPUs."""
    batches = {size.candidate.strategy.global_batch for size in sizes if size.candidate is not None}
    if not batches or request.job.inference or request.job.global_batch is not None:
        return ()
    least, most = min(batches), max(batches)
    some = f"{least:,} to {counted(most, 'sequence')}, by the number of GPUs"
    text = f"global batch {some if least < most else counted(most, 'sequence')}: ⟨global_batch⟩ not given"
    return (Note("global-batch", text, "default"),)


def _host_notes(options: Mapping[str, Any], kinds: Sequence[Gpu]) -> tuple[Note, ...]:
    if options.get("host_ram"):
        return ()
    name = kinds[0].name if len(kinds) == 1 else "NAME"
    text = f"host memory is no more than nodes with these GPUs have (`zerokit gpus {name}`)"
    text += ": ⟨host_ram⟩ not given"
    return (Note("host-memory-assumed", text, "default"),)


def _unread(options: Mapping[str, Any], sizes: Sequence[Size]) -> tuple[str, ...]:
    """What was given and none of the answers depends on."""
    from zerokit.planner.effects import unread

    candidates = [size.candidate for size in sizes if size.candidate is not None]
    notes = unread(options, [candidate.strategy for candidate in candidates])
    if candidates and options.get("network") and all(size.nodes <= 1 for size in sizes):
        notes = (*notes, f"⟨network⟩ {options['network']}: not used, one node sends nothing over it")
    return notes


def _refuse(options: Mapping[str, Any]) -> None:
    """Refuse what the answer says, or what it does not depend on."""
    if options.get("device") in ("cpu", "local"):
        raise InputError(f"⟨device⟩ {options['device']}: size counts GPUs; leave it out")
    if options.get("nodes"):
        raise InputError("⟨nodes⟩: size finds the number of nodes; leave it out")
    if options.get("no_calibration"):
        raise InputError("⟨no_calibration⟩: size uses the catalogue's figures; leave it out")
    if options.get("all_gpus"):
        raise InputError("⟨all_gpus⟩: size finds the number of GPUs; leave it out")


def _methods(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The methods that are asked about, in the order of the answer; none: none was named.

    Raises:
        InputError: one that there is not, or that the other options leave no room for.
    """
    given = options.get("method")
    named = [part.strip().lower() for part in str(given or "").split(",") if part.strip() not in ("", "auto")]
    for name in named:
        choice({"method": name}, "method", METHODS)
    if len(named) > 1 and options.get("quant"):
        raise InputError(
            f"⟨quant⟩ {options['quant']}: {len(named)} kinds of ⟨method⟩ differ in it; name one method"
        )
    return tuple(method for method in METHODS if method in named)


def _kinds(options: Mapping[str, Any]) -> tuple[Gpu, ...]:
    """The kinds of GPU that are asked about."""
    from zerokit.catalog import gpus as catalog
    from zerokit.units import parse_bytes

    named = [part.strip() for part in str(options.get("gpu") or "").split(",") if part.strip()]
    vram = options.get("vram")
    if len(named) > 1 and vram:
        raise InputError(f"⟨vram⟩: {len(named)} kinds of ⟨gpu⟩ have different sizes; name one kind")
    if named and vram:
        return (catalog.lookup(named[0]).with_total_memory(parse_bytes(vram, "⟨vram⟩")),)
    if vram:
        return (resolve(options).request.cluster.gpu,)
    return tuple(catalog.lookup(name) for name in named or TYPICAL)
