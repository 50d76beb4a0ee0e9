"""The parent's side: one request in, a process of its own for the script, one result out."""

from __future__ import annotations

import json
import os
import select
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit.catalog import gpus
from zerokit.domain.hardware import Gpu
from zerokit.domain.phases import WITHOUT_TRAINING
from zerokit.errors import InputError
from zerokit.launcher.secrets import Secrets
from zerokit.memory import card
from zerokit.rehearsal import result as results
from zerokit.rehearsal import step_time
from zerokit.rehearsal.changes import changes, could_halve
from zerokit.rehearsal.order import ENGINE, PHASE, STEP, FakeGpu, Order, reads_log
from zerokit.rehearsal.result import Fed
from zerokit.rehearsal.script import PlanUse, PreparedScript, prepare
from zerokit.rehearsal.zygote import DATA_CACHE, Stale, Zygote, environment_at, make_caches
from zerokit.report import training
from zerokit.script.entry_points import Target
from zerokit.temporary import temporary_folder
from zerokit.timing.host_speed import HostSpeed
from zerokit.units import format_seconds

_LEFT_OUT = "downloads"


def user_data_cache(environment: Mapping[str, str]) -> Path:
    """Where ``datasets`` keeps what it prepared (``datasets/config.py``, HF_DATASETS_CACHE)."""
    named = environment.get(DATA_CACHE)
    if named:
        return Path(named).expanduser()
    home = environment.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "datasets"
    caches = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".cache"
    return Path(caches, "huggingface", "datasets")


def link_data_cache(cache: Path, folder: Path) -> None:
    """Make ``folder`` look like ``cache``, the user's prepared data sets, as far as that can be read.

    Every folder is a new one and every file a link: what is there is found, and what ``Dataset.map`` puts
    beside it is gone with the last of a script's rehearsals (:meth:`Zygote.keep_data`).
    """
    for source, folders, files in os.walk(cache):
        if Path(source) == cache:
            folders[:] = [folder_name for folder_name in folders if folder_name != _LEFT_OUT]
        target = folder / Path(source).relative_to(cache)
        target.mkdir(parents=True, exist_ok=True)
        for name in files:
            if not name.endswith(".lock"):
                (target / name).symlink_to(Path(source, name).absolute())


LIKELY_STEPS = 3
"""Optimizer steps after which the peaks of most scripts repeat; the last one's time tells what is left."""
QUIET_SECONDS = 30.0
"""After so long without a line one says where the rehearsal is."""


def pass_on(descriptor: int, say: Callable[[str], None], over: threading.Event, quiet_seconds: float) -> None:
    """Say each line that a rehearsed process writes, with the time so far, until it writes no more. ``over``:
    the process has ended; what it left running may keep the pipe open."""
    started_at, place, rest = time.monotonic(), "in load", b""
    step_began, said_at, left, done = started_at, started_at, 0.0, 0
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while True:
            quiet_until = said_at + quiet_seconds
            ready, _, _ = select.select([pipe], [], [], max(0.0, quiet_until - time.monotonic()))
            now = time.monotonic()
            took = format_seconds(now - started_at)
            if now >= quiet_until:
                if not ready and over.is_set():
                    return
                said_at = now
                rest_of_steps = left - (now - step_began)
                more = f", about {format_seconds(rest_of_steps)} left" if rest_of_steps > 0 else ""
                after = f", after {STEP}{done}" if done else ""
                say(f"rehearsing for {took} so far: {place}{after}{more}")
                continue
            data = pipe.read(1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                text = line.decode("utf-8", "replace")
                if text.startswith(PHASE):
                    place = f"in {text.removeprefix(PHASE)}"
                    if place == "in forward" and step_began == started_at:
                        step_began = now
                    continue
                if text.startswith(STEP):
                    done += 1
                    left, step_began = max(0, LIKELY_STEPS - done) * (now - step_began), now
                say(f"{text}, after {took}")
                said_at = now


DEFAULT_STEPS = 5
_NO_NAMESPACES = (
    "no namespaces can be made here ({why}): what native code of the script writes would remain; allow them "
    "(Docker: `--security-opt seccomp=unconfined`; Ubuntu 24.04: `sysctl "
    "kernel.apparmor_restrict_unprivileged_userns=0`), or accept that with ⟨unconfined=True⟩"
)
_STEPS_WITH_WARM_UP = 20
"""Where a script counts on rounds of its loop that were left out: a warm-up takes 3, 5 or 10 as a rule."""
_COURSE = "course.npz"
_AS_REPORTED = (
    "steps", "repeats", "last_steps_differ_by", "versions", "engine", "model", "bf16", "data_parallel",
    "fully_sharded", "depth", "seconds", "cpu_seconds",
)  # fmt: skip
"""What a rehearsal has of the process's report as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalRequest:
    """What to rehearse.

    Attributes:
        plan: its configuration reaches the script as ``zerokit launch`` would give it.
        gpus: ranks in all; None: the plan's, or 1.
        memory_named: whether the memory of ``gpu`` is a limit that the run must fit into.
        steps: optimizer steps at most; fewer where all peaks repeat.
        output: a file for what the script prints; None: shown only where it fails.
        writable: a folder that the script may really write into.
        step_time: whether the operators of a step are recorded and priced.
        host: the speed of the run's host; None: as measured on this machine, where it has such a GPU.
        operators: a file for the recorded operators (``zerokit.timing.operators.from_rows``).
        limit_seconds: after which it is ended; None: never.
        unconfined: go on where the kernel gives no namespaces, and native code may write what remains.
        more_micro_steps: so many micro-batches more than are rehearsed are in the step that is timed.
        layers: so many of a decoder's are built; None: all.
        whole: all are built, whatever a few of them would tell.
    """

    target: Target
    gpu: Gpu
    gpus: int | None = None
    plan: PlanUse = field(default_factory=PlanUse)
    rank: int = 0
    steps: int = DEFAULT_STEPS
    launcher: str = "auto"
    memory_named: bool = True
    output: Path | None = None
    writable: Path | None = None
    step_time: bool = True
    operators: Path | None = None
    limit_seconds: float | None = None
    unconfined: bool = False
    more_micro_steps: int = 0
    host: HostSpeed | None = None
    no_cache: bool = False
    layers: int | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Exchange:
    """What ranks of one run send each other, from one rehearsal to the next.

    Attributes:
        folder: of those that were rehearsed before, and of the one that is now: what they send, and the
            operators of a step.
        unknown_senders: ranks whose messages are guessed.
        fewer_layers: of a rehearsal in ``folder``, whose course with this one's tells that of all layers; 0:
            this is the first of two; None: no courses are compared.
    """

    folder: Path
    unknown_senders: tuple[int, ...] = ()
    fewer_layers: int | None = None

    @property
    def is_replayed(self) -> bool:
        """Whether DeepSpeed trained a few layers, of which no course tells what all take."""
        return (self.folder / ENGINE).is_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsRanks:
    """A rank works with values from ``ranks``, which have to be rehearsed first; ``so_far``: the answer
    without them, incomplete."""

    ranks: tuple[int, ...]
    so_far: results.Rehearsal


@dataclass(frozen=True, slots=True)
class NeedsWhole:
    """A few layers do not tell of the others."""

    why: str


def rehearse_one(
    request: RehearsalRequest, progress: Callable[[str], None], exchange: Exchange, zygote: Zygote
) -> results.Rehearsal | NeedsRanks | NeedsWhole:
    """Run the script on the fake GPU, once more if it counts on rounds of a loop that were left out.
    ``progress``: called with a line after each optimizer step. Raises InputError: no such script, plan, GPU
    or launcher."""
    result, lacks_rounds = _once(request, progress, exchange, zygote, 0)
    if not isinstance(result, results.Rehearsal) or not lacks_rounds:
        return result
    if request.limit_seconds is not None:
        request = replace(request, limit_seconds=max(1.0, request.limit_seconds - result.seconds))
    progress(f"the script counts on more rounds of its loop: again, with {_STEPS_WITH_WARM_UP} steps")
    return _once(request, progress, exchange, zygote, _STEPS_WITH_WARM_UP)[0]


def _once(
    request: RehearsalRequest, progress: Callable[[str], None], exchange: Exchange, zygote: Zygote,
    fewest_steps: int,
) -> tuple[results.Rehearsal | NeedsRanks | NeedsWhole, bool]:  # fmt: skip
    """The result, and whether the script may have failed for want of rounds that were left out."""
    with temporary_folder("rehearsal") as temporary:
        folder = temporary.resolve()
        step_time.recorded(exchange.folder, request.rank).unlink(missing_ok=True)
        script = prepare(
            request.target, plan=request.plan, ranks=request.gpus, rank=request.rank,
            launcher=request.launcher, folder=folder,
        )  # fmt: skip
        try:
            report, tail = _run(request, script, folder, progress, exchange, fewest_steps, zygote)
        except Stale as why:
            progress(f"libraries are imported anew: {why}")
            return _once(request, progress, exchange, zygote, fewest_steps)
        if (why_not := (report or {}).get("no_namespaces")) is not None:
            raise InputError(_NO_NAMESPACES.format(why=why_not))
        if report is not None and "whole" in report:
            return NeedsWhole(report["whole"]), False
        if report is not None and "needs" in report:
            nothing = {"complete": False, "stopped": None}
            so_far = _result(request, script, nothing, tail)
            return NeedsRanks(ranks=tuple(report["needs"]), so_far=so_far), False
        result = _result(request, script, report, tail)
        is_course = exchange.fewer_layers == 0 and not exchange.is_replayed
        if is_course and result.few_layers is not None:
            return result, False
        said = report or {}
        timed = _timed(
            request, result, exchange,
            too_long=bool(said.get("step_too_long")), plans=bool(said.get("plans_attention")),
        )  # fmt: skip
        return timed, bool(said.get("lacks_rounds"))


def fake_gpu(request: RehearsalRequest, ranks: int) -> FakeGpu:
    """The GPU that one of so many ranks sees. Raises InputError: a GPU that cannot be rehearsed."""
    return FakeGpu.of(request.gpu, min(ranks, request.gpu.max_gpus_per_node))


def _timed(
    request: RehearsalRequest, result: results.Rehearsal, exchange: Exchange, *, too_long: bool, plans: bool
) -> results.Rehearsal:
    """The result with its step time; ``plans``: cuDNN's attention makes plans, which that leaves out."""
    if not request.step_time:
        return result
    step, why = step_time.of_rank(
        exchange.folder, request.rank, request.gpu, result.gpus, request.host,
        too_long=too_long, more=request.more_micro_steps, steps=result.steps,
    )  # fmt: skip
    if step is None:
        if result.stopped is not None and not result.steps:
            return result  # why it stopped says more
        return replace(result, untimed=why, notes=(*result.notes, f"no step time: {why}"))
    if plans:  # a run's steps then tell nothing of its host
        step = replace(step, by_host_factor=())
    return replace(result, step_seconds=step.seconds, step_seconds_range=(step.low, step.high), step=step)


def _run(
    request: RehearsalRequest, script: PreparedScript, folder: Path, progress: Callable[[str], None],
    exchange: Exchange, fewest_steps: int, zygote: Zygote,
) -> tuple[dict[str, Any] | None, str]:  # fmt: skip
    """The process's report, None where it left none, and the end of what it printed. Raises Stale: as
    :meth:`Zygote.rehearse`."""
    began, limit = time.monotonic(), request.limit_seconds
    output = folder / "output"
    data, log = make_caches(folder), reads_log(exchange.folder, request.rank)
    if not zygote.take_data(data, log):
        link_data_cache(user_data_cache(script.environment), data)
    gpu = fake_gpu(request, script.ranks)
    seen_at = zygote.sees(gpu, script.environment, folder, script.arguments)
    environment = environment_at(script.environment, seen_at)
    if exchange.fewer_layers is not None and not zygote.forks:
        return {"whole": "each rehearsal imports its libraries here"}, ""
    host = request.host or step_time.machine(request.gpu)[0]
    recorded = step_time.recorded(exchange.folder, request.rank)
    order = Order(
        target=script.target, is_module=script.is_module, arguments=script.arguments, gpu=gpu,
        rank=request.rank, world_size=script.ranks, most_steps=request.steps, fewest_steps=fewest_steps,
        folder=str(folder), output_path=str(output), result_path=str(folder / "result.json"),
        writable=str(request.writable.resolve()) if request.writable is not None else None,
        environment=environment, cwd=str(Path.cwd()), gpu_name=request.gpu.name,
        unconfined=request.unconfined, host_factor=host.factor if host is not None else None,
        operators_path=str(recorded) if request.step_time else None,
        messages_folder=str(exchange.folder), unknown_senders=exchange.unknown_senders,
        layers=request.layers, reserves=request.layers is None or not request.whole,  # a plan asks for less
        fewer_layers=exchange.fewer_layers or None,
        course_path=str(exchange.folder / _COURSE) if exchange.fewer_layers is not None else None,
    )  # fmt: skip
    reading, writing = os.pipe()
    over = threading.Event()
    reader = threading.Thread(target=pass_on, args=(reading, progress, over, QUIET_SECONDS), daemon=True)
    reader.start()
    try:
        with output.open("wb") as stream:
            left = None if limit is None else max(0.0, limit - (time.monotonic() - began))
            code = zygote.rehearse(order, (stream.fileno(), writing), left)
    finally:
        os.close(writing)
        over.set()
    if code is None:
        return None, f"it did not end within {round(limit or 0, 2):g} s"
    reader.join(timeout=5)
    secrets = Secrets(script.environment, [*request.target.arguments, *script.arguments])
    if request.output is not None:
        # what the script printed, without secrets, for this user alone.
        request.output.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with output.open("rb") as lines, os.fdopen(os.open(request.output, flags, 0o600), "wb") as file:
            for line in lines:
                file.write(secrets.data(line))
    if request.operators is not None and recorded.is_file():
        shutil.copyfile(recorded, request.operators)
    tail = secrets.text("\n".join(output.read_text(errors="replace").splitlines()[-30:]))
    result_path = Path(order.result_path)
    if not result_path.is_file():
        return None, f"the process ended with code {code}\n{tail}"
    report = secrets.tree(json.loads(result_path.read_text()))
    assert isinstance(report, dict)
    if report.get("prepared_on_host"):
        zygote.keep_data(data, log)
    return report, tail


def _result(
    request: RehearsalRequest, script: PreparedScript, report: dict[str, Any] | None, tail: str
) -> results.Rehearsal:
    if report is None:
        report = {"complete": False, "stopped": {"location": "", "operator": "", "reason": tail}}
    rank = results.of_process(report, request.rank)
    complete = bool(report["complete"])
    needed = _min_vram_bytes(request.gpu, script.ranks, rank, report) if rank.peak_allocated_bytes else None
    notes = list(script.notes)
    if (why_not := report.get("unconfined")) is not None:
        notes.append(
            f"no namespaces here ({why_not}): what Python writes outside of a temporary folder was refused; "
            "what native code wrote remains"
        )
    stopped = report.get("stopped")
    is_idle = not report.get("steps") and not WITHOUT_TRAINING.keys() & rank.phases.keys()
    untrained = script.untrained if complete and is_idle else None
    fed = Fed.read(report.get("fed"), script.length_limit)
    fits_here = needed is not None and needed <= request.gpu.driver_vram_bytes
    return results.Rehearsal(
        fed=fed,
        complete=complete,
        # what was seen so far may be too much already; that it is enough only the end can tell, and only
        # where nothing is missing from the figures
        fits=(fits_here if (complete and not rank.lower_bounds and not untrained) or not fits_here else None)
        if request.memory_named and needed
        else None,
        min_vram_bytes=needed,
        gpu=request.gpu.name,
        vram_bytes=request.gpu.driver_vram_bytes if request.memory_named else None,
        own_vram=request.gpu.driver_vram_bytes == gpus.load(request.gpu.name).driver_vram_bytes,
        gpus=script.ranks,
        ranks=(rank,),
        guesses=tuple(results.GuessedValue(**guess) for guess in report.get("guesses", ())),
        stubbed=tuple(report.get("stubbed", ())),
        untrained=untrained,
        stopped=results.Stop(**stopped) if stopped else None,
        warnings=(
            *(fed.warnings if fed is not None else ()),
            *report.get("warnings", ()),
            *(finding.text for finding in training.of_script({request.rank: report})),
        ),
        notes=tuple(notes),
        sandboxed=why_not is None,
        asked=tuple((report.get("training") or {}).get("asked", ())),
        config_files=tuple(script.config_title(path) for path in report.get("config_files", ())),
        changes=changes(
            rank,
            script.ranks // report.get("peers", 1),
            report.get("engine"),
            fully_sharded=bool(report.get("fully_sharded")),
            batch_rows=report.get("batch_rows") or None,
            checkpointing=report.get("gradient_checkpointing"),
            unwrapped=report.get("unwrapped") or ((), 1.0),
            halved=could_halve(request.gpu, fed),
        ),
        **{name: report[name] for name in _AS_REPORTED if name in report},
    )


def _min_vram_bytes(gpu: Gpu, ranks: int, rank: results.RankMemory, report: dict[str, Any]) -> int:
    """The smallest card, in nvidia-smi's total, on which this rank runs. Bytes. With expandable segments at
    least the margin that was measured on capped allocators: the replay is some tens of MiB below what ran."""
    outside = (gpu.context_bytes or card.DEFAULT_CONTEXT_BYTES) + card.LIBRARIES_BYTES
    if ranks > 1:
        outside += card.NCCL_BYTES
    further = report.get("communicators", [])[1:]
    outside += len(further) * card.NCCL_FURTHER_BYTES
    segments, peak = rank.smallest_reserved_bytes, report["required_allocated_bytes"]
    if rank.expandable_segments:
        segments = max(segments, peak + card.allocator_bytes(replace(gpu, expandable_segments=True), peak))
    segments = max([segments, *map(int, further)])  # NCCL gets nothing of what the allocator keeps
    return segments + outside + gpu.driver_kept_bytes
