"""Saving writes nothing: tensors have no values. What would have been written is counted."""

from __future__ import annotations

import contextlib
import copy
import os
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from zerokit.rehearsal.process import sandbox
from zerokit.rehearsal.process.phases import Context
from zerokit.rehearsal.process.twins import tensors_in

_MARK = "saved in a rehearsal "


def safetensors(context: Context, module: ModuleType) -> None:
    """``save_file`` counts, and leaves a file without tensors; ``load_file`` of it gives tensors of the same
    shapes again."""
    saved: dict[str, Any] = {}
    save_file, load_file = module.save_file, module.load_file

    def save(tensors: Any, filename: Any, metadata: Any = None) -> None:
        _count(context, tensors)
        sandbox.about_to_write(filename)
        save_file({}, filename, metadata)
        saved[os.path.realpath(filename)] = _shapes(tensors)

    def load(filename: Any, device: Any = "cpu", **options: Any) -> Any:
        shapes = saved.get(os.path.realpath(filename))
        return load_file(filename, device, **options) if shapes is None else _tensors(shapes, device)

    vars(module).update(save_file=save, load_file=load)


def torch_save(context: Context) -> None:
    """``torch.save`` counts; ``torch.load`` of the same file gives tensors of the same shapes again. A buffer
    gets a mark in place of the content, by which it is known again."""
    saved: dict[str, Any] = {}
    real_load = torch.load

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        _count(context, obj)
        path = _path_of(f)
        if path is not None:
            saved[path] = _shapes(obj)
            with contextlib.suppress(OSError):
                Path(path).touch()
        elif hasattr(f, "write"):
            mark = f"{_MARK}{len(saved):08d}"
            saved[mark] = _shapes(obj)
            f.write(mark.encode())

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        name = _path_of(f) or _mark_of(f)
        if name not in saved:
            return real_load(f, map_location, *args, **kwargs)
        return _tensors(saved[name], map_location)

    torch.save, torch.load = save, load


def sharded(context: Context, module: ModuleType) -> None:
    """``torch.distributed.checkpoint``: rank 0 plans for all ranks what each of them saves or loads. The
    others' shares are not here, so our rank plans its own."""
    cls = module._DistWrapper
    init = cls.__init__

    def alone(self: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:
        init(self, group, False, coordinator_rank)

    cls.__init__ = alone


def sharded_plan(context: Context, module: ModuleType) -> None:
    """A plan without the other ranks' shares is no mistake."""
    validate = module._validate_global_plan

    def accepted(*args: Any) -> Any:
        # errors; in PyTorch 2.11, whether it is valid
        return [] if isinstance(validate(*args), list) else True

    vars(module).update(_validate_global_plan=accepted)


def sharded_files(context: Context, module: ModuleType) -> None:
    """Tensors of a sharded checkpoint are not read: their values are not known, and its files hold none."""
    from torch.distributed.checkpoint.planner import LoadItemType

    read_data = module.FileSystemReader.read_data

    def read(self: Any, plan: Any, planner: Any) -> Any:
        other = []
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                other.append(item)
                continue
            target = planner.resolve_tensor(item).detach()
            target.copy_(torch.zeros(tuple(item.lengths), dtype=target.dtype))
            planner.commit_tensor(item, target)
        return read_data(self, replace(plan, items=other), planner)

    module.FileSystemReader.read_data = read


@dataclass(frozen=True, slots=True)
class _Shape:
    """A tensor that was saved."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def _path_of(file: Any) -> str | None:
    name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    return os.path.realpath(os.fspath(name)) if isinstance(name, str | os.PathLike) else None


def _mark_of(file: Any) -> str | None:
    """What a buffer begins with; None: it cannot be read twice."""
    if not hasattr(file, "read") or not hasattr(file, "seek") or not hasattr(file, "tell"):
        return None
    start = file.tell()
    begins = file.read(len(_MARK) + 8)
    file.seek(start)
    return begins.decode("latin-1") if isinstance(begins, bytes) else None


def _shapes(value: Any) -> Any:
    """What is saved, without keeping its memory; objects other than containers as they are."""
    if isinstance(value, FakeTensor):
        return _Shape(tuple(value.shape), value.dtype, value.fake_device)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _shapes(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_shapes(item) for item in value)
    return value


def _tensors(value: Any, location: Any) -> Any:
    """New tensors where ``map_location`` says, or where they were."""
    if isinstance(value, _Shape | torch.Tensor):
        device = location if isinstance(location, str | int | torch.device) else value.device
        if isinstance(value, torch.Tensor):
            return value.to(device, copy=True)
        return torch.zeros(value.shape, dtype=value.dtype, device=device)
    if isinstance(value, dict):
        return {name: _tensors(item, location) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_tensors(item, location) for item in value)
    return copy.deepcopy(value)


def _count(context: Context, value: Any) -> None:
    """Bytes of all tensors inside of a value."""
    storages = {one.untyped_storage()._cdata: one.untyped_storage() for one in tensors_in(value, [])}
    context.machine.written_bytes += sum(int(storage.nbytes()) for storage in storages.values())
    context.machine.stub("writing of weights and checkpoints")


_UPLOADS = ("create_commit", "upload_file", "upload_folder", "delete_file", "delete_files", "delete_folder")
_OTHERS = (
    "create_branch", "create_tag", "delete_branch", "delete_repo", "delete_tag", "move_repo",
    "preupload_lfs_files", "super_squash_history", "update_repo_settings", "upload_large_folder",
)  # fmt: skip
_NAME = "rehearsal"
"""Who the script is, and whose its repositories are where it names nobody."""


def writing(context: Context, module: ModuleType) -> None:
    """Replace what writes (``huggingface_hub.hf_api``), in the class and its functions by name."""
    description = "what is created, uploaded or deleted on the Hugging Face Hub"

    def create_repo(self: Any, repo_id: str, **kwargs: Any) -> Any:
        context.machine.stub(description)
        full_name = repo_id if "/" in repo_id else f"{_NAME}/{repo_id}"
        return module.RepoUrl(f"{self.endpoint}/{full_name}")

    def upload(self: Any, *args: Any, **kwargs: Any) -> Any:
        context.machine.stub(description)
        done = module.CommitInfo(
            commit_url=f"{self.endpoint}/{_NAME}/{_NAME}/commit/{'0' * 40}", commit_description="",
            commit_message=str(kwargs.get("commit_message") or ""), oid="0" * 40,
        )  # fmt: skip
        if not kwargs.get("run_as_future"):
            return done
        future: Future[Any] = Future()
        future.set_result(done)
        return future

    user = {"type": "user", "name": _NAME, "orgs": [], "auth": {}}
    functions: dict[str, Any] = {
        "create_repo": create_repo,
        "whoami": lambda self, *args, **kwargs: dict(user),
        **dict.fromkeys(_UPLOADS, upload),
        **dict.fromkeys(_OTHERS, lambda self, *args, **kwargs: context.machine.stub(description)),
    }
    for name, function in functions.items():
        if hasattr(module.HfApi, name):
            setattr(module.HfApi, name, function)
        if name in vars(module):  # bound to the module's own object
            setattr(module, name, getattr(module.api, name))
