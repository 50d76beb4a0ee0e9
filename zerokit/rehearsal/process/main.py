"""The rehearsed process: puts everything in place, runs the script as one rank, writes what it saw."""

from __future__ import annotations

import _thread
import contextlib
import functools
import json
import os
import re
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from zerokit.instrument.frames import frames_of_threads
from zerokit.rehearsal.order import ENGINE, PHASE, STEP, Order, Script

if TYPE_CHECKING:
    from zerokit.rehearsal.process.phases import Context


class Rehearsed:
    """The fake machine, and one run of the script on it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._lacks_rounds = False
        self.why_not: str | None = None

    # ---------------------------------------------------------------- before

    def put_in_place(self) -> None:
        """Put everything in place and try it; ``why_not`` says why nothing can be rehearsed here, if so. To
        libraries and the script it is the rank's process from here on."""
        try:
            from zerokit.rehearsal.process import native
        except ImportError as error:
            self.why_not = (
                f"PyTorch cannot be imported here ({error}): rehearse in the environment of the run"
            )
            return
        try:
            native.install()
            self._put_in_place()
            self.why_not = in_fork(_tried)
        except native.UnknownLayout as error:
            self.why_not = str(error)
        except Exception as error:
            traceback.print_exc()
            self.why_not = f"{native.tried_versions()}: {type(error).__name__}: {error}"
        if self.why_not is not None:
            return
        from zerokit.rehearsal.process import flash_attention, stand_ins

        if (note := native.version_note()) is not None:
            self.machine.warn(note)
        flash_attention.MACHINES.append(self.machine)
        sys.meta_path.append(stand_ins.Missing(self.machine.warn, self._stand_in_late))
        for made_up in stand_ins.offer(self._script):
            self.machine.stub(made_up)

    def _put_in_place(self) -> None:
        import torch.distributed  # noqa: F401  (before the mode: its import makes tensors)

        from zerokit.instrument import phases
        from zerokit.instrument.post_import import PostImport, merged
        from zerokit.instrument.training_facts import TrainingFacts
        from zerokit.rehearsal.process import collectives, device, loops, tensors
        from zerokit.rehearsal.process.adapters import ADAPTERS, compiled, data_loaders, saving, training
        from zerokit.rehearsal.process.allocator import AllocatorSettings
        from zerokit.rehearsal.process.machine import Machine
        from zerokit.rehearsal.process.messages import Messages
        from zerokit.rehearsal.process.mode import FakeCuda
        from zerokit.rehearsal.process.phases import Context, Phases

        self.machine = Machine(
            self._script.gpu, rank=0, world_size=1, allocator=AllocatorSettings(), messages=Messages(None, 0)
        )
        self.phases = Phases(self.machine, 0)
        context = Context(self.machine, self.phases)
        hooks: dict[str, Any] = {
            name: functools.partial(_adapt, context, adapter) for name, adapter in ADAPTERS.items()
        }
        PostImport(hooks).install()
        device.install(self.machine)
        collectives.install(self.machine)
        training.data_parallel(context)
        data_loaders.ending(context)
        saving.torch_save(context)
        self.training = TrainingFacts()
        # around what adapters put there; one finder, as each is asked at every look-up of a script's
        PostImport(merged(phases.hooks(self.phases.inside), self.training.hooks())).install()
        self.mode = FakeCuda(self.machine)
        tensors.install(self.machine, self.mode)
        self.phases.install()
        compiled.install(context)
        loops.install(context)

    @property
    def is_unused(self) -> bool:
        """Whether nothing was on the GPU so far: libraries make no tensors there as a rule."""
        return self.why_not is not None or not self.machine.ledger.peak.allocated_bytes

    # ---------------------------------------------------------------- one rank

    def run(self, order: Order, no_namespaces: str | None, trains: Callable[[], None] | None) -> None:
        """The script from its first to its last line, or as far as it goes, as the rank of an order;
        ``trains``: called when its first phase after ``load`` and ``init`` begins."""
        self._began = time.monotonic()
        self._order, self._no_namespaces = order, no_namespaces
        if no_namespaces is not None:
            self.say(f"no namespaces here ({no_namespaces}): what native code writes remains")
        if self.why_not is not None:
            reason = {"location": "", "operator": "", "reason": self.why_not}
            self._write({"complete": False, "stopped": reason})
            return
        from zerokit.rehearsal.process.endings import NeedsSenders, NeedsWhole

        self._become_rank(trains)
        _thread.start_new_thread(self._say_where, (threading.get_ident(),))
        with contextlib.suppress(AttributeError, ValueError):
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # in order with errors
        try:
            stopped = self._run_script()
            if self.phases.recorder is not None:
                self.phases.recorder.stop()
            depth = self.phases.depth
            config = self.phases.engine_config
            if order.course_path is not None and depth.of and config is not None and stopped is None:
                Path(order.course_path).with_name(ENGINE).write_text(json.dumps(config, default=str))
            elif order.course_path is not None and depth.of:
                self._take_course(order.course_path, stopped)
                if order.fewer_layers is None:
                    self._write({"complete": True, "stopped": None, "depth": depth.to_dict()})
                    return
        except NeedsSenders as error:
            self._write({"needs": error.ranks})
            return
        except NeedsWhole as error:
            self._write({"whole": str(error)})
            return
        self.machine.messages.write(self.phases.enough_after)
        result, recorder = self._result(stopped), self.phases.recorder
        if order.operators_path is not None and recorder is not None:
            result["step_too_long"] = recorder.too_long
            Path(order.operators_path).write_text(json.dumps(recorder.events))
        self._write(result)

    def _become_rank(self, trains: Callable[[], None] | None) -> None:
        """What was put in place has no rank yet, and all that it reads of one it reads when it is used."""
        from zerokit.rehearsal.process.allocator import AllocatorSettings
        from zerokit.rehearsal.process.ledger import GpuMemory, Workspaces
        from zerokit.rehearsal.process.messages import Messages
        from zerokit.rehearsal.process.recorder import Recorder

        order, machine, phases = self._order, self.machine, self.phases
        settings = AllocatorSettings.parse(
            os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        )
        for part in settings.unknown:
            machine.warn(f"the allocator's {part} is not modelled")
        machine.rank, machine.world_size = order.rank, order.world_size
        machine.ledger.__dict__.update(GpuMemory(settings).__dict__)
        machine.ledger.origin = phases.origin
        machine.workspaces = Workspaces(machine.ledger, machine.gpu.capability)
        machine.messages = Messages(
            Path(order.messages_folder) if order.messages_folder is not None else None,
            order.rank,
            order.unknown_senders,
        )
        machine.messages.course = phases
        phases.most_steps = order.most_steps
        phases.see_at_least(order.fewest_steps)
        phases.depth.layers, phases.depth.is_course = order.layers, order.course_path is not None
        phases.on_step = self._step_done
        phases.on_phase = lambda phase: self._phase(phase, trains)
        if order.operators_path is not None:
            phases.recorder = Recorder(machine)

    def _stand_in_late(self) -> Path:
        """A library imports flash-attn and would end without it: what was asked before is asked again."""
        from zerokit.rehearsal.process import stand_ins

        folder = Path(self._script.folder, "stand-ins")
        self.machine.stub(stand_ins.stand_in(folder, "flash_attn"))
        self.machine.warnings.pop(stand_ins.missing(stand_ins.NOT_STOOD_IN["flash_attn"]), None)
        for question in list(vars(sys.modules.get("transformers.utils.import_utils", sys)).values()):
            with contextlib.suppress(AttributeError):
                question.cache_clear()
        return folder

    def _phase(self, phase: str, trains: Callable[[], None] | None) -> None:
        if trains is not None and phase not in ("load", "init"):
            self.phases.on_phase = lambda phase: self._phase(phase, None)
            trains()
        self.say(f"{PHASE}{phase}")

    def _say_where(self, thread: int) -> None:
        """Say which phase a thread is in, and what it imports, where that has changed since the last look."""
        said, is_over = "", _thread.allocate_lock()
        is_over.acquire()
        while not is_over.acquire(timeout=_LOOK_SECONDS):  # never: time.sleep may be the script's
            module = _importing(frames_of_threads().get(thread))
            where = self.phases.phase + (f", importing {module}" if module else "")
            if where != said:
                said = where
                self.say(f"{PHASE}{where}")

    def _step_done(self, number: int) -> None:
        self.machine.unwaited.step_done()
        peak = self.machine.ledger.peak.allocated_bytes / 2**30
        self.say(f"{STEP}{number}: peak allocated so far {peak:.2f} GiB")

    def say(self, text: str) -> None:
        """A line about the progress."""
        with contextlib.suppress(OSError):
            os.write(self._order.progress_fd, f"{text}\n".encode())

    # ---------------------------------------------------------------- the script

    def _run_script(self) -> dict[str, str] | None:
        """Why it stopped early; None where it did not."""
        from zerokit.errors import of_import
        from zerokit.launcher.rank.process import Program, run_target
        from zerokit.rehearsal.process import endings, loops, offline
        from zerokit.rehearsal.process.stand_ins import explain

        order = self._order
        target = Program(name=order.target, is_module=order.is_module, arguments=list(order.arguments))
        try:
            run_target(target)
        except endings.StopRehearsal:
            return None
        except (endings.NeedsSenders, endings.NeedsWhole):
            raise
        except SystemExit as error:
            if error.code in (None, 0) or self.phases.was_enough:
                return None
            return {
                **_stopped(error, self._why_ended(error.code)),
                "cause": endings.cause_of(error, has_guessed=False),
            }
        except endings.NotRehearsed as error:
            return {**_stopped(error, error.reason), "operator": error.operator}
        except BaseException as error:
            traceback.print_exc()
            self._lacks_rounds = loops.STUB in self.machine.stubbed and isinstance(
                error, endings.OF_FEW_ROUNDS
            )
            inner = of_import(error)
            behind = "" if inner is error else f", behind {type(error).__name__}: {error}"
            unreached, explained, operator = offline.unreached(error), explain(inner), _operator_of(error)
            reason = unreached or f"{inner}{explained}{behind}"
            is_ours = bool(unreached or explained or operator)
            return {
                **_stopped(error, f"{type(error if unreached else inner).__name__}: {reason}"),
                "operator": operator,
                "cause": "rehearsal"
                if is_ours
                else endings.cause_of(error, has_guessed=bool(self.machine.guesses.values)),
            }
        return None

    def _take_course(self, path: str, stopped: dict[str, str] | None) -> None:
        """Write what a few layers did, or tell by what fewer did what all do. Raises NeedsWhole: they do not
        tell."""
        from zerokit.rehearsal.process import course
        from zerokit.rehearsal.process.endings import NeedsWhole
        from zerokit.rehearsal.process.repetition import Course, Unproved

        if stopped is not None:
            raise NeedsWhole(stopped["reason"])
        seen = course.course_of(self.machine, self.phases.recorder)
        fewer, depth = self._order.fewer_layers, self.phases.depth
        if fewer is None:
            seen.save(path)
            return
        assert depth.layers is not None
        try:
            course.extend(
                self.machine, self.phases.recorder, Course.load(path), seen, depth.layers - fewer, depth.more
            )
        except Unproved as error:
            raise NeedsWhole(str(error)) from None

    def _why_ended(self, code: Any) -> str:
        """The message of ``sys.exit``, or the code and the last line that the script printed."""
        if not isinstance(code, int):
            return f"the script ended: {code}"
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        # the last line of a file that holds a word; empty: there is none.
        with Path(self._order.output_path).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 14)))
            lines = file.read().decode(errors="replace").splitlines()
        line = next((line.strip() for line in reversed(lines) if re.search(r"\w", line)), "")
        return f"the script ended with code {code}" + (f", after printing: {line}" if line else "")

    # ---------------------------------------------------------------- after

    def _result(self, stopped: dict[str, str] | None) -> dict[str, Any]:
        from zerokit.rehearsal.process import native, summary

        if stopped is None and not self.phases.steps:
            self.machine.warn("no optimizer step was seen")
        fewest, most = self.phases.lengths or (0, 0)
        if fewest != most:
            self.machine.warn(
                f"batches of {fewest:,} to {most:,} tokens a row were fed: the figures are those of the "
                "batches that a run feeds first, and a longer one later takes more"
            )
        new_lengths = self.machine.attention_plans.note(self.phases.lengths)
        for note in (new_lengths, self.machine.unwaited.note(), native.note()):
            if note is not None:
                self.machine.warn(note)
        reserved = self._peak_reserved_bytes()  # may warn
        return {
            **summary.describe(self.machine, self.phases, stopped),
            **self.training.account(),
            "peak_reserved_bytes": reserved,
            "plans_attention": new_lengths is not None,
            "lacks_rounds": self._lacks_rounds,
        }

    def _peak_reserved_bytes(self) -> int:
        """With blocks that come back late because another stream uses them, where a step was recorded.

        Segments stay, and not every step of a run finds the host as far ahead: the most with and without.
        Ranks that wait for each other are as far ahead as the slowest one's host lets them be.
        """
        from zerokit.catalog import gpus
        from zerokit.rehearsal.process.ledger import peak_reserved_bytes
        from zerokit.timing.host_speed import FASTEST, SLOWEST, USUAL, of_slowest_usually
        from zerokit.timing.recorded_step import prices

        ledger, recorder, order = self.machine.ledger, self.phases.recorder, self._order
        if not (order.reserves and ledger.history.other_streams and recorder and recorder.events):
            return ledger.peak_reserved_bytes
        priced = prices(gpus.load(order.gpu_name), order.world_size)
        usual = of_slowest_usually(order.host_factor or USUAL, order.world_size)
        peaks = [
            peak_reserved_bytes(
                ledger.history, ledger.allocator.settings, recorder.events, recorder.clocks,
                priced(factor, ""),
            )
            for factor in ((usual,) if order.host_factor else (usual, FASTEST, SLOWEST))
        ]  # fmt: skip
        peaks = [max(peak, ledger.peak_reserved_bytes) for peak in peaks]
        low, high = min(peaks), max(peaks)
        if high > _WORTH_SAYING * low:
            self.machine.warn(
                "reserved memory depends on how far the host is ahead of the GPU: "
                f"{low / 2**30:.2f} to {high / 2**30:.2f} GiB on hosts that were measured"
            )
        return peaks[0]

    def _write(self, result: dict[str, Any]) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        result = {
            **result,
            "versions": _versions(),
            "unconfined": self._no_namespaces,
            "prepared_on_host": self.why_not is None and not self.machine.data_of_gpu,
            "seconds": round(time.monotonic() - self._began, 1),
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
            "rehearsal_rss_bytes": usage.ru_maxrss << 10,
        }
        Path(self._order.result_path).write_text(json.dumps(result))


def _tried() -> str | None:
    from zerokit.rehearsal.process import native

    try:
        native.self_test()
    except native.UnknownLayout as error:
        return str(error)
    return None


def in_fork(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a process of its own, which leaves nothing in this one: threads, tensors.
    Raises RuntimeError: it returned nothing that is JSON."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            with os.fdopen(writing, "w") as pipe:
                json.dump(work(), pipe)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise RuntimeError(f"a process ended with code {code}")
    return json.loads(said)


_WORTH_SAYING = 1.02
"""A range of reserved memory, the highest over the lowest."""
_PACKAGE = str(Path(__file__).resolve().parents[2])
_LOOK_SECONDS = 5.0


def _importing(frame: FrameType | None) -> str | None:
    """The module whose import, the outermost, a thread's frame is in; None: in none."""
    module = None
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>":
            module = str(frame.f_locals.get("name"))
        frame = frame.f_back
    return module


def _adapt(context: Context, adapter: Callable[[Context, ModuleType], None], module: ModuleType) -> None:
    """A library of another version than an adapter knows is run as it is, and that is said."""
    try:
        adapter(context, module)
    except Exception as error:
        context.machine.warn(f"{module.__name__} runs as it is: {type(error).__name__}: {error}")


_LONGEST_REASON = 500


def _stopped(error: BaseException, reason: str) -> dict[str, str]:
    """Where the script was, by its own innermost line, and what ended it."""
    from zerokit.rehearsal.process.guesses import is_library, short

    entries = traceback.extract_tb(error.__traceback__)
    outside = [entry for entry in entries if not entry.filename.startswith(_PACKAGE)]
    script_entries = [entry for entry in outside if not is_library(entry.filename)] or outside
    location = f"{short(script_entries[-1].filename)}:{script_entries[-1].lineno}" if script_entries else ""
    first = reason.split("\n\n")[0]  # PyTorch's messages list every backend there is
    if len(first) > _LONGEST_REASON:
        first = first[:_LONGEST_REASON].rsplit(" ", 1)[0] + " …"
    return {"location": location, "operator": "", "reason": first}


def _operator_of(error: BaseException) -> str:
    """The operator that has neither a shape rule nor a stand-in; empty where it was something else."""
    from torch._subclasses.fake_tensor import UnsupportedOperatorException

    if isinstance(error, UnsupportedOperatorException):
        name: str = error.func._schema.name
        return name
    named = re.search(r"Could not run '([\w:.]+)'", str(error))
    return named.group(1) if named is not None and isinstance(error, NotImplementedError) else ""


def _versions() -> dict[str, str]:
    """Of the packages that decide what is allocated, as imported or installed."""
    from importlib import metadata

    from zerokit.machine.versions import DECIDING

    versions = {"python": sys.version.split()[0]}
    for name in DECIDING:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
