"""The child process: reads its order, puts everything in place, runs the script, writes what it saw."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zerokit.rehearsal.order import PHASE, Order, reads_log
from zerokit.rehearsal.process import sandbox
from zerokit.rehearsal.process.reads import Reads

if TYPE_CHECKING:
    from zerokit.rehearsal.process.phases import Context


def main(order_path: str) -> int:
    """Run the order; the exit code is 0 wherever a result was written."""
    order = Order.from_dict(json.loads(Path(order_path).read_text()))
    sandbox.end_with_parent()
    if os.getppid() != order.parent_pid:
        return 1
    folders = (order.folder, order.messages_folder, order.writable)
    shared = [Path(path) for path in folders if path is not None]
    try:
        code = sandbox.enter(shared)
    except sandbox.NoSandbox as error:
        if not order.unconfined:
            Path(order.result_path).write_text(json.dumps({"no_namespaces": str(error)}))
            return 0
        rehearsed = Rehearsed(order, str(error))
        rehearsed.say(f"no namespaces here ({error}): what native code writes remains")
        sandbox.refuse_writes(shared)
        return rehearsed.run()
    return Rehearsed(order).run() if code is None else code


class Rehearsed:
    """One run of the script on the fake machine."""

    def __init__(self, order: Order, no_namespaces: str | None = None) -> None:
        self._order = order
        self._no_namespaces = no_namespaces
        self._began = time.monotonic()
        self._lacks_rounds = False

    def run(self) -> int:
        """The script from its first to its last line, or as far as it goes."""
        if self._order.messages_folder is not None:
            reads, messages = Reads(), self._order.messages_folder
            reads.log_to(reads_log(messages, self._order.rank), [self._order.folder, messages])
            reads.install()
        why_not = self._why_not()
        if why_not is not None:
            self._write({"complete": False, "stopped": {"location": "", "operator": "", "reason": why_not}})
            return 0
        from zerokit.rehearsal.process import flash_attention, native, stand_ins
        from zerokit.rehearsal.process.endings import NeedsSenders

        self._forget_self_test()
        if (note := native.version_note()) is not None:
            self.machine.warn(note)
        flash_attention.MACHINES.append(self.machine)
        sys.meta_path.append(stand_ins.Missing(self.machine.warn, self._stand_in_late))
        for made_up in stand_ins.offer(self._order):
            self.machine.stub(made_up)
        with contextlib.suppress(AttributeError, ValueError):
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # in order with errors
        try:
            stopped = self._run_script()
        except NeedsSenders as error:
            self._write({"needs": error.ranks})
            return 0
        if self.phases.recorder is not None:
            self.phases.recorder.stop()
        self.machine.messages.write(self.phases.enough_after)
        result = self._result(stopped)
        self._write_operators(result)
        self._write(result)
        return 0

    def _stand_in_late(self) -> Path:
        """A library imports flash-attn and would end without it: what was asked before is asked again."""
        from zerokit.rehearsal.process import stand_ins

        folder = Path(self._order.folder, "stand-ins")
        self.machine.stub(stand_ins.stand_in(folder))
        self.machine.warnings.pop(stand_ins.missing(stand_ins.NOT_STOOD_IN["flash_attn"]), None)
        for question in list(vars(sys.modules.get("transformers.utils.import_utils", sys)).values()):
            with contextlib.suppress(AttributeError):
                question.cache_clear()
        return folder

    # ---------------------------------------------------------------- before

    def _why_not(self) -> str | None:
        """Put everything in place and try it; says why nothing can be rehearsed here, before the script
        starts."""
        try:
            from zerokit.rehearsal.process import native
        except ImportError as error:
            return f"PyTorch cannot be imported here ({error}): rehearse in the environment of the run"
        try:
            native.install()
            self._put_in_place()
            native.self_test()
        except native.UnknownLayout as error:
            return str(error)
        except Exception as error:
            traceback.print_exc()
            return f"{native.tried_versions()}: {type(error).__name__}: {error}"
        return None

    def _put_in_place(self) -> None:
        import torch.distributed  # noqa: F401  (before the mode: its import makes tensors)

        from zerokit.instrument import phases
        from zerokit.instrument.post_import import PostImport, merged
        from zerokit.instrument.training_facts import TrainingFacts
        from zerokit.rehearsal.process import collectives, device, loops, tensors
        from zerokit.rehearsal.process.adapters import ADAPTERS, compiled, data_loaders, distributed, saving
        from zerokit.rehearsal.process.allocator import AllocatorSettings
        from zerokit.rehearsal.process.machine import Machine
        from zerokit.rehearsal.process.messages import Messages
        from zerokit.rehearsal.process.mode import FakeCuda
        from zerokit.rehearsal.process.phases import Context, Phases
        from zerokit.rehearsal.process.recorder import Recorder

        order = self._order
        settings = AllocatorSettings.parse(
            os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        )
        messages = Messages(
            Path(order.messages_folder) if order.messages_folder is not None else None,
            order.rank,
            order.unknown_senders,
        )
        self.machine = Machine(
            order.gpu, rank=order.rank, world_size=order.world_size, allocator=settings, messages=messages
        )
        for part in settings.unknown:
            self.machine.warn(f"the allocator's {part} is not modelled")
        self.phases = messages.course = Phases(self.machine, order.most_steps)
        self.phases.see_at_least(order.fewest_steps)
        self.machine.ledger.origin = self.phases.origin
        self.phases.on_step = self._step_done
        if order.operators_path is not None:
            self.phases.recorder = Recorder(self.machine)
        context = Context(self.machine, self.phases)
        hooks: dict[str, Any] = {
            name: functools.partial(_adapt, context, adapter) for name, adapter in ADAPTERS.items()
        }
        PostImport(hooks).install()
        device.install(self.machine)
        collectives.install(self.machine)
        distributed.data_parallel(context)
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

    def _forget_self_test(self) -> None:
        """Its tensors are gone; its cuBLAS workspaces belong to the script's first product."""
        from zerokit.rehearsal.process.guesses import Guesses
        from zerokit.rehearsal.process.ledger import GpuMemory, Workspaces

        gc.collect()
        machine = self.machine
        empty = GpuMemory(machine.ledger.allocator.settings)
        machine.ledger.__dict__.update(empty.__dict__)
        machine.ledger.origin = self.phases.origin
        machine.workspaces = Workspaces(machine.ledger, machine.gpu.capability)
        machine.guesses = Guesses()
        self.phases.feed.batches = 0
        self.phases.on_phase = lambda phase: self.say(f"{PHASE}{phase}")

    def _step_done(self, number: int) -> None:
        self.machine.unwaited.step_done()
        peak = self.machine.ledger.peak.allocated_bytes / 2**30
        self.say(f"optimizer step {number}: peak allocated so far {peak:.2f} GiB")

    def say(self, text: str) -> None:
        """A line about the progress."""
        with contextlib.suppress(OSError):
            os.write(self._order.progress_fd, f"{text}\n".encode())

    # ---------------------------------------------------------------- the script

    def _run_script(self) -> dict[str, str] | None:
        """Why it stopped early; None where it did not."""
        from zerokit.launcher.rank.process import Program, run_target
        from zerokit.rehearsal.process import loops, offline
        from zerokit.rehearsal.process.endings import (
            OF_FEW_ROUNDS,
            NeedsSenders,
            NotRehearsed,
            StopRehearsal,
            cause_of,
            of_import,
        )
        from zerokit.rehearsal.process.stand_ins import explain

        order = self._order
        target = Program(name=order.target, is_module=order.is_module, arguments=list(order.arguments))
        try:
            run_target(target)
        except StopRehearsal:
            return None
        except NeedsSenders:
            raise
        except SystemExit as error:
            if error.code in (None, 0) or self.phases.was_enough:
                return None
            return {
                **_stopped(error, self._why_ended(error.code)),
                "cause": cause_of(error, has_guessed=False),
            }
        except NotRehearsed as error:
            return {**_stopped(error, error.reason), "operator": error.operator}
        except BaseException as error:
            traceback.print_exc()
            self._lacks_rounds = loops.STUB in self.machine.stubbed and isinstance(error, OF_FEW_ROUNDS)
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
                else cause_of(error, has_guessed=bool(self.machine.guesses.values)),
            }
        return None

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
        if new_lengths is not None:
            self.machine.warn(new_lengths)
        if (unwaited := self.machine.unwaited.note()) is not None:
            self.machine.warn(unwaited)
        if (lacking := native.note(self.machine.idle_packages)) is not None:
            self.machine.warn(lacking)
        reserved = self._peak_reserved_bytes()
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
        if not ledger.history.other_streams or recorder is None or not recorder.events:
            return ledger.peak_reserved_bytes
        usual = of_slowest_usually(order.host_factor or USUAL, order.world_size)
        peaks = [
            peak_reserved_bytes(
                ledger.history,
                ledger.allocator.settings,
                recorder.events,
                recorder.clocks,
                prices(gpus.load(order.gpu_name), order.world_size, factor),
            )
            for factor in ((usual,) if order.host_factor else (usual, FASTEST, SLOWEST))
        ]
        peaks = [max(peak, ledger.peak_reserved_bytes) for peak in peaks]
        low, high = min(peaks), max(peaks)
        if high > _WORTH_SAYING * low:
            self.machine.warn(
                "reserved memory depends on how far the host is ahead of the GPU: "
                f"{low / 2**30:.2f} to {high / 2**30:.2f} GiB on hosts that were measured"
            )
        return peaks[0]

    def _write_operators(self, result: dict[str, Any]) -> None:
        path, recorder = self._order.operators_path, self.phases.recorder
        if path is None or recorder is None:
            return
        result["step_too_long"] = recorder.too_long
        Path(path).write_text(json.dumps(recorder.events))

    def _write(self, result: dict[str, Any]) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        result = {
            **result,
            "versions": _versions(),
            "unconfined": self._no_namespaces,
            "seconds": round(time.monotonic() - self._began, 1),
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
            "rehearsal_rss_bytes": usage.ru_maxrss << 10,
        }
        Path(self._order.result_path).write_text(json.dumps(result))


_WORTH_SAYING = 1.02
"""A range of reserved memory, the highest over the lowest."""
_PACKAGE = str(Path(__file__).resolve().parents[2])


def _adapt(context: Context, adapter: Callable[[Context, ModuleType], None], module: ModuleType) -> None:
    """A library of another version than an adapter knows is run as it is, and that is said."""
    try:
        adapter(context, module)
    except Exception as error:
        context.machine.warn(f"{module.__name__} runs as it is: {type(error).__name__}: {error}")


def _stopped(error: BaseException, reason: str) -> dict[str, str]:
    """Where the script was, by its own innermost line, and what ended it."""
    from zerokit.rehearsal.process.guesses import is_library, short

    entries = traceback.extract_tb(error.__traceback__)
    outside = [entry for entry in entries if not entry.filename.startswith(_PACKAGE)]
    script_entries = [entry for entry in outside if not is_library(entry.filename)] or outside
    location = f"{short(script_entries[-1].filename)}:{script_entries[-1].lineno}" if script_entries else ""
    return {"location": location, "operator": "", "reason": _first_sentences(reason)}


def _operator_of(error: BaseException) -> str:
    """The operator that has neither a shape rule nor a stand-in; empty where it was something else."""
    from torch._subclasses.fake_tensor import UnsupportedOperatorException

    if isinstance(error, UnsupportedOperatorException):
        name: str = error.func._schema.name
        return name
    named = re.search(r"Could not run '([\w:.]+)'", str(error))
    return named.group(1) if named is not None and isinstance(error, NotImplementedError) else ""


def _first_sentences(text: str, most: int = 500) -> str:
    """PyTorch's messages list every backend there is."""
    text = text.split("\n\n")[0]
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " …"


def _versions() -> dict[str, str]:
    """Of the packages that decide what is allocated, as imported or installed."""
    from importlib import metadata

    from zerokit.machine.versions import DECIDING

    versions = {"python": sys.version.split()[0]}
    for name in DECIDING:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
