"""The answer of ``zerokit size``: the fewest GPUs of each kind, what they cost, and the plan to make next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zerokit.commands import command_text
from zerokit.domain.hardware import Gpu
from zerokit.domain.job import METHODS
from zerokit.errors import InputError, NothingFits
from zerokit.fields import plain
from zerokit.memory.closed_form import CLOSED_FORM_NOTE
from zerokit.notes import Note, notes_of
from zerokit.planner.costs import costs_of, price_notes
from zerokit.planner.documents import LONGER_WITHOUT_ENGINE, Document, Read, Sentence, degrees, html_table
from zerokit.planner.hardware import choice, doubted_vram, integer
from zerokit.planner.memory_source import Say, silent
from zerokit.planner.request import refuse_other_engines, resolve
from zerokit.search.engine import ENGINES
from zerokit.search.explain import gpu_words, is_roomy, is_sure, remark, strategy_words
from zerokit.suggest import alternatives
from zerokit.units import GIB, counted, format_gib, format_seconds
from zerokit.values import replace

if TYPE_CHECKING:
    from zerokit.catalog.prices import Prices, Rate
    from zerokit.search.sizing import Size
    from zerokit.search.space import Request


_OF_ADAPTERS = ("lora-rank", "lora-targets", "lora-dropout")
_OFFLOADED_TO = {"cpu": "host memory", "nvme": "NVMe"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestGpus(Document):
    """The fewest GPUs of one kind that can do the job with one method, with or without offload.

    Attributes:
        size: what the search found.
        price_per_gpu_hour: as it was given, else on demand at ``provider``, in US dollars; None: not known.
        provider: the cheapest that rents nodes with so many of these GPUs; None where the price was given.
        spot: what a GPU-hour costs on spot, where GPUs can be taken away, and at which provider.
        tokens: what the job trains on; None where it was not given.
    """

    size: Size
    price_per_gpu_hour: float | None = None
    provider: str | None = None
    spot: Rate | None = None
    tokens: int | None = None

    gpu = Read[str]("size.gpu.name", "The kind of GPU, as the catalogue names it.")
    method = Read[str]("size.method", "``full``, ``lora`` or ``qlora``.")
    offload_allowed = Read[bool]("size.offload", "Whether states and weights may leave the GPUs.")
    seconds_per_1e9_tokens = Read[float | None](
        "size.seconds_per_billion_tokens", "Wall time to train on 1e9 tokens."
    )
    gpu_hours_per_1e9_tokens = Read[float | None](
        "size.gpu_hours_per_billion_tokens", "GPU-hours to train on 1e9 tokens."
    )
    measured_on_no_machine = Read[tuple[str, ...]](
        "size.candidate.time.measured_on_no_machine",
        "Of the hardware, what no step time was ever compared on: the GPU's name, ``several nodes``.",
        without=(),
    )
    min_vram_bytes = Read[int | None](
        "size.candidate.memory.min_vram_bytes", "The smallest GPU memory on which the run succeeds."
    )
    host_bytes_per_node = Read[int | None](
        "size.candidate.memory.host_bytes_per_node", "Host memory that a node needs."
    )
    global_batch = Read[int | None]("size.candidate.strategy.global_batch", "Sequences per optimizer step.")

    @property
    def gpu_words(self) -> str:
        """The kind of GPU for people: ``14.9 GiB GPU`` where only its memory was given."""
        return gpu_words(self.size.gpu)

    @property
    def offloads(self) -> bool:
        """Whether any do: what may offload may still be fastest without."""
        return bool(self.offloaded_to)

    @property
    def offloaded_to(self) -> str:
        """Where they go: ``host memory``, ``NVMe``, ``host memory and NVMe``; empty where none do."""
        if self.size.candidate is None:
            return ""
        settings = self.size.candidate.strategy.settings
        devices = {settings.optimizer_device, settings.weights_device}
        return " and ".join(words for device, words in _OFFLOADED_TO.items() if device in devices)

    @property
    def gpus(self) -> int | None:
        """How many are needed; None where none of the numbers tried is enough."""
        return self.size.gpus or None

    @property
    def nodes(self) -> int | None:
        """The nodes that they are on."""
        return self.size.nodes or None

    @property
    def cost_per_1e9_tokens(self) -> float | None:
        """What these GPU-hours cost, in the price's currency; None without a price."""
        return self.cost_at(self.price_per_gpu_hour)

    @property
    def spot_cost_per_1e9_tokens(self) -> float | None:
        """What they cost on spot, in US dollars, if nothing has to be done twice; None: nobody is known."""
        return self.cost_at(None if self.spot is None else self.spot.usd)

    def cost_at(self, price: float | None) -> float | None:
        """What the GPU-hours for 1e9 tokens cost at a price of one."""
        hours = self.gpu_hours_per_1e9_tokens
        return hours * price if hours is not None and price is not None else None

    @property
    def job(self) -> dict[str, float | None] | None:
        """The whole job's ``tokens``, ``seconds``, ``gpu_hours``, ``cost`` and ``spot_cost``: training alone,
        no loading, storage or transfer; None without ``tokens``."""
        if self.tokens is None:
            return None
        figures = {
            "seconds": self.seconds_per_1e9_tokens, "gpu_hours": self.gpu_hours_per_1e9_tokens,
            "cost": self.cost_per_1e9_tokens, "spot_cost": self.spot_cost_per_1e9_tokens,
        }  # fmt: skip
        of_job = {name: None if each is None else each * self.tokens / 1e9 for name, each in figures.items()}
        return {"tokens": self.tokens, **of_job}

    why = Sentence[str]("_why", "The strategy in a line, or why there is none.")

    @property
    def _why(self) -> str:
        candidate = self.size.candidate
        if candidate is None:
            return self.size.why
        return ", ".join(filter(None, (
            strategy_words(candidate.strategy), f"global batch {self.global_batch}",
            self.provider and f"{_price(self.price_per_gpu_hour)} USD per GPU-hour at {self.provider}",
            self.remark,
        )))  # fmt: skip

    @property
    def remark(self) -> str:
        """``barely: 0.2 GiB headroom``, ``may fit: 0.6 ± 4.6 GiB headroom``; empty where it is roomy."""
        return "" if self.size.candidate is None else remark(self.size.candidate, self.size.gpu)

    @property
    def surely_fits(self) -> bool | None:
        """Whether the headroom holds what the prediction leaves open; None where there is no strategy."""
        return None if self.size.candidate is None else is_sure(self.size.candidate.memory, self.size.gpu)

    @property
    def strategy(self) -> dict[str, Any] | None:
        """The strategy as JSON has it; None where no number of these GPUs is enough."""
        return None if self.size.candidate is None else degrees(self.size.candidate.strategy)

    PUBLISHED = (
        "gpu", "method", "offload_allowed", "gpus", "nodes", "seconds_per_1e9_tokens",
        "gpu_hours_per_1e9_tokens", "cost_per_1e9_tokens", "min_vram_bytes", "surely_fits",
        "host_bytes_per_node", "measured_on_no_machine", "strategy", "global_batch", "remark", "why",
        "price_per_gpu_hour", "provider", "spot", "spot_cost_per_1e9_tokens", "job",
    )  # fmt: skip

    def _more(self) -> dict[str, Any]:
        return {"shown_as": self.gpu_words}

    def cells(self) -> tuple[str, ...]:
        """Texts of its row below the titles, of the job where its tokens are known; dashes where no number of
        these GPUs is enough."""
        asked = (self.gpu_words, self.method, "allowed" if self.offload_allowed else "none")
        if self.size.candidate is None:
            return (*asked, "-", *[""] * (len(TITLES) - len(asked) - 1))
        cost, billions = self.cost_per_1e9_tokens, (self.tokens or 1e9) / 1e9
        return (
            *asked, str(self.gpus), str(self.global_batch),
            format_seconds((self.seconds_per_1e9_tokens or 0) * billions),
            _amount((self.gpu_hours_per_1e9_tokens or 0) * billions),
            "-" if cost is None else _amount(cost * billions),
            f"{(self.min_vram_bytes or 0) / GIB:.1f}", f"{(self.host_bytes_per_node or 0) / GIB:,.0f}",
        )  # fmt: skip


def _amount(value: float) -> str:
    """Hours or money: whole, where that says enough."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _price(each: float | None) -> str:
    """A price with as many decimals as money has, or as it takes."""
    each = each or 0.0
    return f"{each:g}" if each == int(each) or each != round(each, 2) else f"{each:.2f}"


TITLES = (
    "GPU", "method", "offload", "GPUs", "batch", "per 1e9\ntokens", "GPU-\nhours", "cost", "GiB per\nGPU",
    "GiB per\nnode",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeResult(Document):
    """The fewest GPUs of each kind that was asked about.

    Attributes:
        request: the arguments that were given, by option without dashes in front.
        sizes: by kind of GPU, method and offload.
        notes: what was assumed, with arguments marked (:mod:`zerokit.fields`).
        trainer_file: whose job it is; None: the arguments alone say it.
        misfit: where no number of these GPUs will do, that, with arguments marked.
        prices: the table that costs are of; None where prices were given.
        cheapest: whether the lowest cost was asked for: it comes first.
    """

    model_name: str
    request: Mapping[str, Any]
    sizes: tuple[FewestGpus, ...]
    notes: tuple[Note, ...]
    trainer_file: str | None = None
    misfit: str | None = None
    prices: Prices | None = None
    cheapest: bool = False

    def __repr__(self) -> str:
        """What a Python prompt shows: the answer."""
        return "\n  ".join((f"<Fewest GPUs for {self.model_name}", *self.answer)) + ">"

    def _repr_html_(self) -> str:
        told = self.answer if self.misfit is None else (self.nothing_fits or "",)
        answer = html_table(f"Fewest GPUs for {self.model_name}", [(sentence,) for sentence in told])
        titles = [title.replace("-\n", "-").replace("\n", " ") for title in (*self.titles, "strategy")]
        rows = [(*size.cells(), size.why) for size in self.sizes]
        return answer + html_table("By kind of GPU", rows, titles=titles)

    assumptions = Sentence[tuple[str, ...]]("notes", "What was assumed, in sentences.")

    @property
    def answer(self) -> tuple[str, ...]:
        """In sentences: the fewest GPUs, the fewest GPU-hours and, with a price, the lowest cost. Of each
        method by itself; a number of GPUs counts without offload where that needs no more of them."""
        found = self._fitting().items()
        subjects = {method: f"{method}: " if self._compares_methods else "" for method, _ in found}
        return tuple(
            sentence
            for method, sizes in found
            for sentence in _answer(sizes, subjects[method], cheapest_first=self.cheapest)
        )

    @property
    def titles(self) -> tuple[str, ...]:
        """The columns' titles: times and costs are of 1e9 tokens, or of all where they are known."""
        of_job = any(size.tokens for size in self.sizes)
        return tuple("all\ntokens" if of_job and title.startswith("per") else title for title in TITLES)

    @property
    def next_command(self) -> str | None:
        """The plan for the fewest GPUs, or with ``cheapest`` for the lowest cost; None where nothing fits, or
        several methods are compared."""
        return None if self._compares_methods else next(iter(self.next_in_order[0].values()), None)

    @property
    def next_in_order(self) -> tuple[dict[str, str], dict[str, str]]:
        """Method → its plan to make next, and another: for the fewest GPUs, then for the lowest cost; with
        ``cheapest`` in the other order."""
        fewest, lowest_cost = self.next_by_method, self.next_for_lowest_cost_by_method
        if not self.cheapest:
            return fewest, lowest_cost
        return fewest | lowest_cost, {method: fewest[method] for method in lowest_cost}

    @property
    def next_by_method(self) -> dict[str, str]:
        """Method → the plan for its fewest GPUs, of those methods that fit."""
        return {method: self._plan_command(_smallest(sizes)[0]) for method, sizes in self._fitting().items()}

    @property
    def next_for_lowest_cost_by_method(self) -> dict[str, str]:
        """Method → the plan for the GPUs that cost least; only where that is not the one for the fewest."""
        fewest = self.next_by_method
        cheapest = {method: _cheapest(sizes) for method, sizes in self._fitting().items()}
        commands = {method: self._plan_command(found[0]) for method, found in cheapest.items() if found}
        return {method: command for method, command in commands.items() if command != fewest[method]}

    def _fitting(self) -> dict[str, list[FewestGpus]]:
        """Method → its kinds of GPU of which some number is enough."""
        by_method: dict[str, list[FewestGpus]] = {}
        for size in self.sizes:
            if size.gpus:
                by_method.setdefault(size.method, []).append(size)
        return by_method

    @property
    def _compares_methods(self) -> bool:
        return len({size.method for size in self.sizes}) > 1

    def _plan_command(self, smallest: FewestGpus) -> str:
        request = dict(self.request)
        if self._compares_methods or "method" in request:
            request["method"] = smallest.method
        if smallest.method == "full":
            request = {name: value for name, value in request.items() if name not in _OF_ADAPTERS}
        options = {name: value for name, value in request.items() if name not in ("gpu", "gpus")}
        options["gpus"] = smallest.gpus
        if "vram" not in self.request or "gpu" in self.request:
            options["gpu"] = smallest.gpu
        return command_text(
            "plan",
            *([self.trainer_file] if self.trainer_file else []),
            options=options | self._without_offload(smallest),
        )

    def _without_offload(self, smallest: FewestGpus) -> dict[str, str]:
        """Options that keep ``plan`` from offloading, where it would and the answer does not."""
        if smallest.offload_allowed or smallest.size.candidate is None:
            return {}
        same = (smallest.gpu, smallest.method, smallest.gpus)
        others = [size.size.candidate for size in self.sizes
                  if size.offload_allowed and (size.gpu, size.method, size.gpus) == same]  # fmt: skip
        if all(c is None or c.strategy == smallest.size.candidate.strategy for c in others):
            return {}
        offloads = ("offload-optimizer", "offload-param")
        return {name: "none" for name in offloads if name not in self.request}

    @property
    def nothing_fits(self) -> str | None:
        """That no number of these GPUs will do, why, and what would; None where some will."""
        return None if self.misfit is None else plain(self.misfit)

    SCHEMA = "zerokit.size/1"
    PUBLISHED = ("request", "answer", "next_by_method", "next_for_lowest_cost_by_method", "sizes",
                 "assumptions", "notes")  # fmt: skip

    def _more(self) -> dict[str, Any]:
        prices = self.prices
        table = prices and {
            "date": prices.date.isoformat(), "days_old": prices.days_old, "currency": "USD",
            "source": prices.source,
        }  # fmt: skip
        return {"model": self.model_name, "next": self.next_command, "prices": table}


def _smallest(sizes: Sequence[FewestGpus]) -> tuple[FewestGpus, dict[str, FewestGpus]]:
    """The fewest GPUs, and all kinds of which as few are enough.

    Named is the kind with the least memory, of those with room for an error of the prediction where there are
    some, and of those that need not offload. Of one kind, the strategy that may offload, as fast or faster,
    stands back unless the one without offload lacks that room.
    """
    number = min(size.gpus or 0 for size in sizes)
    by_gpu: dict[str, FewestGpus] = {}
    for size in sizes:
        known = by_gpu.get(size.gpu)
        if size.gpus == number and (known is None or not _is_roomy(known)):
            by_gpu[size.gpu] = size
    roomy = [size for size in by_gpu.values() if _is_roomy(size)]
    named = min(roomy or by_gpu.values(), key=lambda size: (size.offloads, size.size.gpu.driver_vram_bytes))
    return named, by_gpu


def _cheapest(sizes: Sequence[FewestGpus], *, spot: bool = False) -> tuple[FewestGpus, float] | None:
    """The one whose cost is lowest, and its cost for 1e9 tokens; None: none has a price."""
    costs = [size.spot_cost_per_1e9_tokens if spot else size.cost_per_1e9_tokens for size in sizes]
    priced = [(size, cost) for size, cost in zip(sizes, costs, strict=True) if cost is not None]
    return min(priced, key=lambda pair: pair[1], default=None)


def _is_roomy(size: FewestGpus) -> bool:
    return size.size.candidate is not None and is_roomy(size.size.candidate, size.size.gpu)


def _with_offload(size: FewestGpus, named: FewestGpus) -> str:
    """Said where as many GPUs of one kind were named already, and these offload as those do not."""
    alike = (size.gpu, size.gpus) == (named.gpu, named.gpus)
    return f" with offload to {size.offloaded_to}" if alike and size.offloads and not named.offloads else ""


def _without_offload(named: FewestGpus, sizes: Sequence[FewestGpus]) -> str:
    """Said of one that offloads, where as many GPUs of its kind are enough without."""
    alike = (size for size in sizes if (size.gpu, size.gpus) == (named.gpu, named.gpus) and not size.offloads)
    without = next(alike, None) if named.offloads else None
    if without is None or without.size.candidate is None:
        return ""
    tight = f", {words}" if (words := without.remark) else ""
    required = format_gib(without.size.candidate.memory.min_vram_bytes, 1)
    return f", or without, slower ({required} required{tight})"


def _answer(sizes: Sequence[FewestGpus], subject: str, *, cheapest_first: bool = False) -> list[str]:
    """The sentences of one method. ``sizes``: of those kinds of GPU that some number of is enough."""
    smallest, by_gpu = _smallest(sizes)
    fewest_gpus = smallest.gpus
    others = []
    for name, size in by_gpu.items():
        remarks = [words for words in ("with offload" if size.offloads else "", size.remark) if words]
        if name != smallest.gpu:
            others.append(f"{name} ({', '.join(remarks)})" if remarks else name)
    memory = smallest.size.candidate.memory.min_vram_bytes if smallest.size.candidate else 0
    available = smallest.size.gpu.driver_vram_bytes
    tight = f", {words}" if (words := smallest.remark) else ""
    or_without = _without_offload(smallest, sizes)
    offload = (
        f" {'with' if or_without else 'and'} offload to {smallest.offloaded_to}" if smallest.offloads else ""
    )
    as_well = f"; {fewest_gpus} × {alternatives(others)} would do as well" if others else ""
    sentences = [
        f"{subject}fewest GPUs: {fewest_gpus} × {smallest.gpu_words}{offload} ({format_gib(memory, 1)} "
        f"required of {format_gib(available, 1)} per GPU{tight}){or_without}{as_well}"
    ]
    timed = [size for size in sizes if size.gpu_hours_per_1e9_tokens is not None]
    if len(timed) > 1:
        least = min(timed, key=lambda size: size.gpu_hours_per_1e9_tokens or 0.0)
        sentences.append(
            f"{subject}fewest GPU-hours: {least.gpus} × {least.gpu_words}, "
            f"{_for_tokens(least, least.gpu_hours_per_1e9_tokens or 0.0)}{_with_offload(least, smallest)}"
            + (", not measured on this GPU" if least.measured_on_no_machine else "")
        )
    costs = [
        _lowest_cost(sizes, smallest, spot=spot) for spot in ((False, True) if cheapest_first else (False,))
    ]
    told = [subject + sentence for sentence in costs if sentence]
    return [*told, *sentences] if cheapest_first else [*sentences, *told]


def _for_tokens(size: FewestGpus, per_1e9: float) -> str:
    """So much for 1e9 tokens, or for the job's where they are known."""
    if size.tokens is None:
        return f"{per_1e9:,.0f} per 1e9 tokens"
    return f"{_amount(per_1e9 * size.tokens / 1e9)} for {size.tokens:,} tokens"


def _lowest_cost(sizes: Sequence[FewestGpus], smallest: FewestGpus, *, spot: bool) -> str:
    """A sentence; empty where none has a price."""
    if (found := _cheapest(sizes, spot=spot)) is None:
        return ""
    size, cost = found
    each, at, who = size.price_per_gpu_hour, size.provider, "lowest cost"
    if spot and size.spot is not None:
        each, at, who = size.spot.usd, f"{size.spot.provider} on spot", f"{who} where GPUs can be taken away"
    else:
        unpriced = dict.fromkeys(row.gpu for row in sizes if row.price_per_gpu_hour is None)
        if unpriced:
            given = f"cost of those with a price (none given for {', '.join(unpriced)})"
            who = "lowest known cost" if at else f"lowest {given}"
    told = f"{_for_tokens(size, cost)} at {_price(each)} per GPU-hour"
    told = f"USD {told} ({at})" if at else told
    return f"{who}: {size.gpus} × {size.gpu_words}{_with_offload(size, smallest)}, {told}"


TYPICAL = ("rtx-4090", "l40s", "a100-40gb", "a100-80gb", "h100-sxm-80gb", "h200", "b200", "mi300x")
_MOST_GPUS = 1 << 14

_COUNTED = ("gpus-assumed", "nodes-assumed")
"""Notes of a request on what an answer counts itself."""


def fewest(
    options: Mapping[str, Any],
    *,
    price: str | None = None,
    tokens: str | None = None,
    cheapest: bool = False,
    say: Say | None = None,
) -> SizeResult:
    """The fewest GPUs of each kind; ``gpu`` and ``method`` may name several with commas, ``gpus`` the most.
    Raises InputError: an argument that cannot be; names it and the fix."""
    from zerokit.catalog.gpus import for_vram
    from zerokit.planner.options import given_options
    from zerokit.search.sizing import sizes
    from zerokit.units import parse_bytes, parse_count

    # refuse what the answer says, or what it does not depend on
    if options.get("device") in ("cpu", "local"):
        raise InputError(f"⟨device⟩ {options['device']}: size counts GPUs; leave it out")
    if options.get("nodes"):
        raise InputError("⟨nodes⟩: size finds the number of nodes; leave it out")
    if options.get("no_calibration"):
        raise InputError("⟨no_calibration⟩: size uses the catalogue's figures; leave it out")
    if options.get("all_gpus"):
        raise InputError("⟨all_gpus⟩: size finds the number of GPUs; leave it out")
    named = _methods(options)
    adapters = next((method for method in named if method != "full"), None)  # which lora_rank is read with
    one_method = {**options, "gpus": None, "method": adapters}
    kinds = _kinds(one_method)
    refuse_other_engines(one_method, ENGINES, f"sizes are of one engine: {', '.join(ENGINES)}")
    resolved = resolve({**one_method, "gpu": kinds[0].name, "vram": None}, say=say or silent)
    request = resolved.request
    if say is not None and (doubted := doubted_vram(options)) is not None:
        say(doubted)
    table, costs = costs_of(price, kinds, is_other_card=bool(options.get("vram")))
    trained_on = None if tokens is None else parse_count(tokens, "⟨tokens⟩")
    methods = named or (("full",) if request.job.inference else METHODS)
    most = integer(options, "gpus") or _MOST_GPUS
    results = list(sizes(request, kinds, methods, most))
    if all(size.refused for size in results):
        raise InputError(results[-1].why)
    fits = any(size.gpus for size in results)
    speeds: tuple[Note, ...] = ()
    if options.get("vram") and not options.get("gpu"):  # why a card of the catalogue is named
        speeds = (Note("speeds-assumed", for_vram(parse_bytes(options["vram"], "⟨vram⟩"))[1]),)
    if any(size.candidate is not None and size.candidate.strategy.engine == "ddp" for size in results):
        speeds = (*speeds, Note("longer-without-engine", f"measured {LONGER_WITHOUT_ENGINE}"))
    rows = [FewestGpus(size=size, tokens=trained_on, **costs(size)) for size in results]
    priced = any(row.price_per_gpu_hour is not None for row in rows)
    if cheapest and not priced:
        unpriced = ", ".join(dict.fromkeys(row.gpu_words for row in rows))
        raise InputError(f"⟨cheapest⟩: no price is known of {unpriced}; give ⟨price⟩")
    if cheapest:
        rows.sort(key=lambda row: math.inf if row.cost_per_1e9_tokens is None else row.cost_per_1e9_tokens)
    return SizeResult(
        model_name=resolved.model_name,
        request=given_options(options),
        sizes=tuple(rows),
        prices=table,
        cheapest=cheapest,
        notes=(
            *(note for note in request.assumptions if note.id not in _COUNTED and note.topic != "hardware"),
            *_batch_notes(request, results),
            *speeds,
            *(price_notes(table, any((row.nodes or 0) > 1 for row in rows)) if priced else ()),
            *_host_notes(options, kinds),
            *notes_of("unread", _unread(options, results)),
            *_closed_form_notes(results),
        ),
        misfit=None if fits else _misfit(resolved.model_name, request, kinds, methods, most),
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


def _closed_form_notes(sizes: Sequence[Size]) -> tuple[Note, ...]:
    """Which of the answers are no replay of a trace."""
    found = [size.candidate.memory.assumptions for size in sizes if size.candidate is not None]
    rough, note = [notes for notes in found if CLOSED_FORM_NOTE in notes], CLOSED_FORM_NOTE
    told = note if len(rough) == len(found) else note.with_text(f"some rows: {note}")
    return (told,) if rough else ()


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


def _methods(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The methods that are asked about, in the order of the answer; none: none was named. Raises InputError:
    one that there is not, or that the other options leave no room for."""
    given = options.get("method")
    named = [part.strip().lower() for part in str(given or "").split(",") if part.strip() not in ("", "auto")]
    for name in named:
        choice({"method": name}, "method")
    if len(named) > 1 and options.get("quant"):
        raise InputError(
            f"⟨quant⟩ {options['quant']}: {len(named)} kinds of ⟨method⟩ differ in it; name one method"
        )
    return tuple(method for method in METHODS if method in named)


def _kinds(options: Mapping[str, Any]) -> tuple[Gpu, ...]:
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
