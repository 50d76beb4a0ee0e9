"""The cache of profiles that were traced for a user's configuration."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerokit.domain.activations import ActivationTrace
from zerokit.domain.profile import ModelProfile
from zerokit.domain.profile_json import FORMAT, check, from_json, to_json
from zerokit.files import cache_folder, read_regular, write_whole
from zerokit.machine.versions import installed

_CACHE_FORMAT = b"zerokit.profile-cache/1"
_LARGEST_BYTES = 1 << 30
_RECORDED = "leaves, one length, sums over rows, own pass below ZeRO-3, LoraModel, autocast in place"
"""Changed when traces begin to record what cached profiles of the same format lack."""


class DamagedProfile(Exception):
    """A file of the cache that is not what was written there; says why, for people."""


def keep(profile: ModelProfile, path: Path) -> None:
    """Write a profile into the cache, with a checksum of its bytes and of the file's name."""
    text = json.dumps(to_json(profile), separators=(",", ":"))
    data = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _header(data, path) + data)


def _header(data: bytes, path: Path) -> bytes:
    digest = hashlib.sha256(path.name.encode() + b"\0" + data).hexdigest()
    return b"%s %s\n" % (_CACHE_FORMAT, digest.encode())


def cache_path(hf_config: Mapping[str, Any], head: str | None) -> Path:
    """The cache file of a config: named by what decides the trace."""
    facts = [FORMAT, _RECORDED, dict(hf_config), head, installed("torch"), installed("transformers")]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return cache_folder() / "profiles" / f"{digest[:32]}.profile"


def read(path: Path) -> ModelProfile | None:
    """A profile of the cache; ``None`` where there is none. Raises DamagedProfile: there is a file, and it is
    not what :func:`keep` wrote."""
    try:
        content = read_regular(path, _LARGEST_BYTES, path.parent)
        header, _, data = content.partition(b"\n")
        if header + b"\n" != _header(data, path):
            raise DamagedProfile("its checksum does not match")
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        text = unpacker.decompress(data, _LARGEST_BYTES)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise DamagedProfile("it is truncated or too large")
        return from_json(check(json.loads(text)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedProfile(error.strerror or str(error)) from None
    except (ValueError, RecursionError, zlib.error) as error:
        raise DamagedProfile(str(error)) from None


def merged(profiles: Sequence[ModelProfile]) -> ModelProfile:
    """One profile with the traces of all; of the same model."""
    first = profiles[0]
    # traces of each variant: the last profile's; but those that hold for one length stand side by side
    by_key: dict[str, dict[tuple[int, int | None, bool], ActivationTrace]] = {}
    for profile in profiles:
        for key in profile.traces:
            traces = {
                (one.min_seq_len, one.max_seq_len, one.of_one_sequence): one for one in profile.traces[key]
            }
            keep = by_key.get(key, {}) if all(start for start, *_ in traces) else {}
            by_key[key] = {**keep, **traces}
    return replace(
        first,
        traces={key: tuple(traces.values()) for key, traces in by_key.items()},
        ties={k: v for p in profiles for k, v in p.ties.items()},
        parameter_sets={k: v for p in profiles for k, v in p.parameter_sets.items()},
    )
