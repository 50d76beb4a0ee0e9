"""Records one optimizer step as a stream of operators, with the Python between them.

Only the last complete step is kept, from the third on: DeepSpeed's ZeRO-3 records its trace in the second.
"""

from __future__ import annotations

import functools
import threading
from array import array
from typing import Any

import torch

from zerokit.rehearsal.process import operator_facts, operators
from zerokit.rehearsal.process.calls import counter
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.operator_facts import dtype_of, gpu_tensors, memory_bytes, on_gpu, total
from zerokit.rehearsal.process.twins import tensors_in
from zerokit.timing import operators as kinds
from zerokit.timing.operators import IssuedOperator

FIRST_RECORDED_STEP = 3
MOST_EVENTS = 600_000
"""Of one step; a longer one is not recorded (some 150 MB)."""


class Recorder:
    """An observer of the machine, from the second step's end on. ``events``: of the last complete step;
    ``clocks``: the ledger's, when each was issued. ``too_long``: whether a step had more than
    :data:`MOST_EVENTS`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._calls = counter()
        self._threads: dict[int, int] = {}
        self._current: list[IssuedOperator] = []
        self._current_clocks = array("q")
        self._recording = False
        self.events: list[IssuedOperator] = []
        self.clocks = array("q")
        self.too_long = False

    # ---------------------------------------------------------------- steps

    def step_done(self, steps: int, *, is_enough: bool) -> None:
        """An optimizer step ended; ``is_enough``: what follows is not the script's usual course."""
        self._calls.end()
        if self._recording:
            if self.too_long:
                self.events, self.clocks = [], array("q")
            else:
                self.events, self.clocks = self._current, self._current_clocks
        self._forget_current()
        shall_record = steps >= FIRST_RECORDED_STEP - 1 and not is_enough and not self.too_long
        if shall_record and not self._recording:
            self._machine.observers.append(self)
        elif self._recording and not shall_record:
            self._machine.observers.remove(self)
        self._recording = shall_record
        if shall_record:
            self._number()
            self._calls.begin()

    def stop(self) -> None:
        """The script ended."""
        self._calls.end()
        if self._recording:
            self._recording = False
            self._machine.observers.remove(self)
        self._forget_current()

    def _forget_current(self) -> None:
        self._current, self._current_clocks = [], array("q")

    # ---------------------------------------------------------------- threads

    def enter(self) -> None:
        """The dispatch mode begins."""
        self._calls.enter()

    def leave(self) -> None:
        """The dispatch mode ends."""
        self._calls.leave()

    def _number(self) -> int:
        return self._threads.setdefault(threading.get_ident(), len(self._threads))

    # ---------------------------------------------------------------- events

    def _add(self, kind: str, name: str, **more: Any) -> None:
        if not self._recording or self._machine.unseen:
            return
        if len(self._current) >= MOST_EVENTS:
            self.too_long = True
            return
        python_calls, c_calls = self._calls.take()
        self._current_clocks.append(self._machine.ledger.clock)
        self._current.append(
            IssuedOperator(
                kind, name, thread=self._number(), stream=self._machine.ledger.stream,
                python_calls=python_calls, c_calls=c_calls, with_grad=torch.is_grad_enabled(),
                phase=self._machine.ledger.phase, **more,
            )
        )  # fmt: skip

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """An operator with fake tensors."""
        known = operators.facts(func)
        name, row = known.name, known.row
        if known.unseen:
            return
        if func.namespace == "c10d":
            self._collective(func, name, args)
            return
        inputs = tensors_in([args, kwargs], [])
        outputs = tensors_in(result, [])
        write_only = known.row.write_only
        if known.row.empty:
            self._add(kinds.EMPTY, name)
        elif known.views:
            self._add(kinds.VIEW, name)
        elif not any(on_gpu(tensor) for tensor in (*inputs, *outputs)):
            read, written = operator_facts.host_bytes(func, args, kwargs, result, write_only=write_only)
            self._add(kinds.HOST, name, bytes_read=read, bytes_written=written)
        elif name in ("_to_copy", "copy_") and self._crosses(name, args, kwargs, outputs):
            return
        else:
            work = row.work or functools.partial(
                operator_facts.facts, moves=row.moves, waits=row.waits, write_only=write_only
            )
            self._add(kinds.KERNEL, name, **work(func, name, args, kwargs, result))

    def _crosses(self, name: str, args: Any, kwargs: Any, outputs: list[Any]) -> bool:
        """Whether a copy goes between host and GPU; it is an event of its own then.

        One that casts, too, casts on the host into pageable memory where it blocks, else on the GPU
        (``aten/src/ATen/native/cuda/Copy.cu``, ``copy_kernel_cuda``, PyTorch 2.11).
        """
        source = args[0] if name == "_to_copy" else args[1]
        target = args[0] if name == "copy_" else outputs[0]
        if not isinstance(source, torch.Tensor) or on_gpu(source) == on_gpu(target):
            return False
        is_asynchronous = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
        host_side = source if on_gpu(target) else target
        pinned = self._machine.is_pinned(host_side) if host_side.device.type == "cpu" else False
        casts = source.dtype != target.dtype
        casts_first = casts and on_gpu(source) == bool(is_asynchronous)
        if casts_first:
            self._cast(source, target, on_device=bool(is_asynchronous), into_temporary=True)
        pinned = pinned and (bool(is_asynchronous) or not casts)
        moved = target if casts_first else source
        self._add(
            kinds.TO_DEVICE if on_gpu(target) else kinds.TO_HOST, name, shapes=(tuple(moved.shape),),
            dtype=dtype_of(moved), layout="" if pinned else kinds.PAGEABLE, bytes_read=memory_bytes(moved),
            # CUDA waits for copies to pageable memory whatever was asked for; non_blocking gives the
            # right to read too early only where the memory is pinned
            synchronizes=not (is_asynchronous and (on_gpu(target) or pinned)), launches=1,
        )  # fmt: skip
        if casts and not casts_first:
            self._cast(source, target, on_device=bool(is_asynchronous))
        return True

    def _cast(
        self, source: torch.Tensor, target: torch.Tensor, *, on_device: bool, into_temporary: bool = False
    ) -> None:
        """The cast of a copy between host and GPU."""
        read, written = memory_bytes(source), memory_bytes(target)
        if not on_device:
            layout = kinds.TEMPORARY if into_temporary else ""
            self._add(kinds.HOST, "copy_", layout=layout, bytes_read=read, bytes_written=written)
            return
        self._add(
            kinds.KERNEL, "copy_", shapes=(tuple(source.shape), tuple(target.shape)),
            dtype=dtype_of(source), layout=kinds.CAST, bytes_read=read,
            bytes_written=written, launches=1,
        )  # fmt: skip

    def _collective(self, func: Any, name: str, args: tuple[Any, ...]) -> None:
        arguments = {
            argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)
        }
        is_message = name in kinds.POINT_TO_POINT
        group = arguments.get("process_group")
        size = 1 if group is None else torch.distributed.ProcessGroup.unbox(group).size()
        ranks = 2 if is_message else size
        every = tensors_in(list(args), [])
        tensors = [tensor for tensor in every if on_gpu(tensor)]
        on_host = not tensors
        if on_host and not (is_message and every):
            return
        message_bytes = max(total(tensors_in(argument, [])) for argument in args if tensors_in(argument, []))
        waits = on_host or not bool(arguments.get("asyncOp", arguments.get("async_op", True)))
        self._machine.collectives += 1
        self._add(
            kinds.COLLECTIVE, name, dtype=dtype_of((tensors or every)[0]), bytes_read=message_bytes,
            launches=1, group_size=ranks, handle=0 if waits else self._machine.collectives,
            synchronizes=on_host and name == "recv_", ranks=self._ranks(name, args, arguments),
        )  # fmt: skip

    def _ranks(self, name: str, args: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[int, ...]:
        """A message's source and destination; a group, where this rank waits for others through messages."""
        if name in kinds.POINT_TO_POINT:
            _, group, other, _ = args
            pair = self._machine.rank, _members(group)[other]
            return pair if name == "send" else pair[::-1]
        group = arguments.get("process_group")
        return _members(group) if group is not None and self._machine.messages.exchanged else ()

    def reduction(self, tensor: torch.Tensor, ranks: int) -> None:
        """An all-reduce of a bucket by DDP; backward's end waits for the last one."""
        self._machine.collectives += 1
        self._add(
            kinds.COLLECTIVE, "allreduce_", dtype=dtype_of(tensor), bytes_read=memory_bytes(tensor),
            launches=1, group_size=ranks, handle=self._machine.collectives,
        )  # fmt: skip

    def host_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """An operator that ran on the host."""
        known = operators.facts(func)
        name = known.name
        if known.unseen:
            return
        if known.views or known.row.empty:
            self._add(kinds.VIEW, name)
            return
        read, written = operator_facts.host_bytes(func, args, kwargs, result, write_only=known.row.write_only)
        self._add(kinds.HOST, name, bytes_read=read, bytes_written=written)

    def kernel(self, name: str, tensors: Any, outputs: Any = (), launches: int = 1) -> None:
        """A compiled kernel that was stood in for: it reads ``tensors`` and writes ``outputs``."""
        on, changed = gpu_tensors(tensors), gpu_tensors(outputs)
        self._add(
            kinds.KERNEL, name, shapes=tuple(tuple(tensor.shape) for tensor in on[:3]),
            dtype=dtype_of(on[0]) if on else "", bytes_read=total(on), bytes_written=total(changed),
            launches=launches,
        )  # fmt: skip

    def runtime(
        self, kind: str, name: str, *, handle: int = 0, waits: bool = False, elements: int = 0
    ) -> None:
        """A call of the CUDA runtime, a wait, or an optimizer on the host with ``elements`` weights."""
        self._add(kind, name, handle=handle, synchronizes=waits, bytes_read=elements)


def _members(group: Any) -> tuple[int, ...]:
    return tuple(torch.distributed.get_process_group_ranks(torch.distributed.ProcessGroup.unbox(group)))
