"""Trace what one estimate needs of a user's model, and keep it in the cache."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile, tokens_of_a_rank, variants_of
from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError
from zerokit.notes import warning
from zerokit.trace import store


def cached(
    hf_config: Mapping[str, Any], head: str | None, say: Callable[[str], None] = lambda text: None
) -> ModelProfile | None:
    """What the cache holds of a model, if anything; ``say`` hears of a damaged file, which is removed."""
    path = store.cache_path(hf_config, head)
    try:
        return store.read(path)
    except store.DamagedProfile as error:
        say(warning("damaged-profile", f"{path}: {error}: the model is traced again"))
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def complete(
    profile: ModelProfile | None,
    hf_config: Mapping[str, Any],
    job: Job,
    strategy: Strategy,
    *,
    name: str,
    head: str | None,
) -> ModelProfile:
    """The profile with the variant that ``job`` and ``strategy`` need added; written to the cache. Raises
    InputError: the installed Transformers cannot build or run the model. Raises TraceMismatch: its sizes are
    not polynomials in batch and sequence."""
    path = store.cache_path(hf_config, head)
    profiles = [p for p in (profile, cached(hf_config, head)) if p is not None]
    merged = store.merged(profiles) if profiles else None
    if merged is not None and merged.has_all(job, strategy):
        return merged
    added = _traced(hf_config, job, strategy, name, head)
    result = store.merged([*([merged] if merged is not None else []), added])
    try:
        store.keep(result, path)
    except OSError as error:  # a read-only home costs a second trace, not the answer
        logging.getLogger(__name__).debug("profile not cached: %s", error)
    return result


def _traced(
    hf_config: Mapping[str, Any], job: Job, strategy: Strategy, name: str, head: str | None
) -> ModelProfile:
    variants = variants_of(job, strategy, head)
    config = copy.deepcopy(dict(hf_config))
    read_at_imports = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    with _set_where_unset(read_at_imports), warnings.catch_warnings(), _without_tracebacks():
        from zerokit.trace.profile import profile_from_config

        warnings.simplefilter("ignore")
        try:
            return profile_from_config(
                config, variants, name=name, head=head, seq_len=tokens_of_a_rank(job, strategy)
            )
        except (RuntimeError, TypeError, AttributeError, ValueError, LookupError) as error:
            line = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"{name} could not be traced ({variants[0].key}): {line}") from error


@contextlib.contextmanager
def _set_where_unset(variables: Mapping[str, str]) -> Iterator[None]:
    """In this block environment variables are set that nobody has set."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _without_tracebacks() -> Iterator[None]:
    """PyTorch logs the traceback of an operator whose shapes do not fit, before it raises the error."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
