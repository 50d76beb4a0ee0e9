"""From words to a request: which GPU is rehearsed, what the script is given, and the run's versions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.domain.hardware import Gpu
from zerokit.errors import InputError, about
from zerokit.machine.versions import DECIDING
from zerokit.rehearsal.baseline import DEFAULT_GROWTH, Baseline
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.options import RehearsalArguments
from zerokit.rehearsal.result import Rehearsal
from zerokit.rehearsal.script import PlanUse
from zerokit.script.entry_points import Target
from zerokit.strictload import read_text
from zerokit.timing.host_speed import HostSpeed

if TYPE_CHECKING:
    from zerokit.fields import Say

_PINNED = re.compile(
    r"^[ \t]*([A-Za-z0-9][\w.-]*)[ \t]*(?:\[[^\]\n]*\][ \t]*)?===?[ \t]*([^\s;,#\\*]+)[ \t]*(?:$|[;#\\])",
    re.MULTILINE,
)
_BLOCK = re.compile(r"^\[\[packages?\]\][ \t]*$", re.MULTILINE)
_NAME = re.compile(r"^name\s*=\s*\"([^\"]+)\"", re.MULTILINE)
_VERSION = re.compile(r"^version\s*=\s*\"([^\"]+)\"", re.MULTILINE)


def read_versions(path: Path) -> dict[str, str]:
    """Versions by package, of those that decide what is allocated.

    ``zerokit doctor --json``, ``pip list --format json``, ``pip freeze`` or requirements with exact versions,
    and the lock files of uv, Poetry and PEP 751.

    Raises:
        InputError: it cannot be read, or names no version of such a package.
    """
    with about("versions"):
        text = read_text(path)
    if text.lstrip().startswith(("{", "[{")):
        pairs = _of_json(path, text)
    elif _BLOCK.search(text):
        pairs = _of_lock(text)
    else:
        pairs = dict(_PINNED.findall(text))
    names = {_key(name): name for name in DECIDING}
    versions = {names[_key(name)]: version for name, version in pairs.items() if _key(name) in names}
    if not versions:
        raise InputError(
            f"⟨versions⟩ {path}: no exact version of {', '.join(DECIDING[:4])} or the like: give a lock "
            "file, requirements with ==, or what `zerokit doctor --json` printed on the machine of the run"
        )
    return versions


def version_differences(local: Mapping[str, str], remote: Mapping[str, str], source: str) -> tuple[str, ...]:
    """One sentence for each package whose version differs, or that only the run has. Builds of one version
    (``2.11.0+cu130``) are alike."""
    lines = []
    for name, version in remote.items():
        local_version = local.get(name)
        if local_version is None:
            lines.append(
                f"{name} {version} ({source}) is not installed here: libraries choose their code by what is "
                "installed, so the run may allocate otherwise"
            )
        elif local_version.partition("+")[0] != version.partition("+")[0]:
            lines.append(
                f"{name} is {local_version} here and {version} in {source}: the run may allocate otherwise"
            )
    return tuple(lines)


def _of_json(path: Path, text: str) -> dict[str, str]:
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise InputError(f"⟨versions⟩ {path}: not JSON: {error}") from None
    if isinstance(document, dict):
        packages = document.get("packages")
        if isinstance(packages, dict):
            return {str(name): str(version) for name, version in packages.items() if version}
        document = packages if isinstance(packages, list) else []
    return {
        str(package["name"]): str(package["version"])
        for package in document
        if isinstance(package, dict) and package.get("name") and package.get("version")
    }


def _of_lock(text: str) -> dict[str, str]:
    versions = {}
    for block in _BLOCK.split(text)[1:]:
        name, version = _NAME.search(block), _VERSION.search(block)
        if name is not None and version is not None:
            versions[name[1]] = version[1]
    return versions


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def rehearse(target: Target, asked: RehearsalArguments) -> Rehearsal:
    """Rehearse what was asked for, of this script. Raises InputError: as :func:`request_of`; a script or
    ranks that are not there; versions or a baseline that cannot be read."""
    from zerokit.launcher.plan_agreement import of_missing_model
    from zerokit.rehearsal import ranks as several
    from zerokit.script.argument_warnings import without_defaults
    from zerokit.script.reader import read_target

    facts = read_target(target)  # before anything is said of a run
    for warning in of_missing_model(without_defaults(facts, target.arguments)):
        asked.say(warning)
    remote_versions = read_versions(Path(asked.versions)) if asked.versions is not None else {}
    chosen = several.parse(asked.ranks) if isinstance(asked.ranks, str) else tuple(asked.ranks or ())
    if asked.max_growth is not None and asked.baseline is None:
        raise InputError("⟨max_growth⟩ is over a baseline: name its file with ⟨baseline⟩")
    baseline = None
    if asked.baseline is not None:
        baseline = Baseline.read(Path(asked.baseline), asked.max_growth or DEFAULT_GROWTH)
    request = request_of(target, asked)
    done = (
        several.rehearse_ranks(request, chosen, asked.say) if chosen else several.rehearse(request, asked.say)
    )
    unlike_versions = version_differences(done.versions, remote_versions, str(asked.versions))
    unlike = _unlike_plan(done, os.fspath(asked.plan)) if asked.plan else ()
    warnings = (*unlike, *done.warnings, *unlike_versions, *done.unlike_ranks)
    done = replace(done, unlike_plan=unlike, warnings=warnings)
    if baseline is None or not done.complete or done.untrained:
        return done
    return replace(done, baseline=baseline.compare(done))


def _unlike_plan(done: Rehearsal, path: str) -> tuple[str, ...]:
    """Where what was rehearsed is not what the plan was made for."""
    from zerokit.launcher.given_plan import read_plan
    from zerokit.report.what_ran import of_engine

    plan, _ = read_plan(path)
    if done.engine is None:
        return ()
    request = plan.request if isinstance(plan.request, dict) else None
    return tuple(f"not as planned: {one.text}" for one in of_engine(plan.chosen, done.engine, request))


def divided_otherwise(done: Rehearsal, folder: str) -> str:
    """How FSDP2 divided the model otherwise than the plan in the folder has it, as where the script's code
    makes a plugin, which goes before the plan's file; empty: it did not."""
    from zerokit.launcher.given_plan import read_plan
    from zerokit.report.what_ran import no_engine, of_engine

    if not done.steps:
        return ""
    plan, _ = read_plan(folder)
    nothing = no_engine([{"engine": done.engine}], plan.engine)
    found = of_engine({**plan.chosen, "rehearsed": {}}, done.engine or {})
    return nothing or "; ".join(one.text for one in found)


def request_of(target: Target, asked: RehearsalArguments) -> RehearsalRequest:
    """What to rehearse; ``asked.say`` hears what was assumed. Raises InputError: an unknown GPU, a size or a
    plan that cannot be read, a folder that cannot be made."""
    plan = os.fspath(asked.plan) if asked.plan is not None else None
    if plan is not None and asked.accelerate is not None:
        raise InputError("⟨plan⟩ and ⟨accelerate⟩ both decide the strategy; leave one out")
    card, memory_named = _gpu(asked.gpu, asked.vram, plan, asked.say)
    folder = Path(asked.out) if asked.out is not None else None
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"⟨out⟩ {folder}: cannot be made: {error.strerror or error}") from None
    return RehearsalRequest(
        target=target, gpu=card, gpus=asked.gpus, rank=asked.rank, steps=asked.steps, launcher=asked.launcher,
        plan=PlanUse(
            folder=plan, accelerate=None if asked.accelerate is None else os.fspath(asked.accelerate),
            no_arguments=asked.no_arguments, accept_mismatch=asked.accept_mismatch,
        ),
        memory_named=memory_named,
        unconfined=asked.unconfined,
        no_cache=asked.no_cache,
        whole=asked.whole,
        host=HostSpeed(factor=asked.host_speed, source="⟨host_speed⟩") if asked.host_speed else None,
        output=folder / "output.txt" if folder is not None else None,
    )  # fmt: skip


def _gpu(name: str | None, vram: str | int | None, plan: str | None, say: Say) -> tuple[Gpu, bool]:
    """The GPU that was named, else the plan's, else this machine's; and whether its memory is known."""
    from zerokit.catalog import gpus
    from zerokit.launcher.given_plan import read_plan
    from zerokit.planner.hardware import DEFAULT_GPU, gpu_of_plan, gpu_of_this_machine
    from zerokit.units import parse_bytes

    size = parse_bytes(vram, "⟨vram⟩") if vram else None
    if name:
        gpu = gpus.lookup(name)
        return (gpu.with_total_memory(size) if size else gpu), True
    if size:
        gpu, reason = gpus.for_vram(size)
        say(reason)
        return gpu.with_total_memory(size), True
    if plan:
        file, _ = read_plan(plan)
        planned = gpu_of_plan(file.cluster, file.request) if isinstance(file.cluster, dict) else None
        if planned is not None:
            return planned, True
    here, reason, _ = gpu_of_this_machine()
    if here is not None:
        say(reason)
        return here, True
    gpu = gpus.load(DEFAULT_GPU)
    say(f"assumed {gpu.title}: none was named, none was found here ({reason})")
    return gpu, False
