"""A dictionary that notes which keys are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class KeysView:
    """The keys of a recorder; asking whether one is there is noted, too."""

    def __init__(self, owner: KeyRecorder) -> None:
        self.owner = owner

    def __contains__(self, key: object) -> bool:
        return key in self.owner

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self.owner)


class KeyRecorder(dict[str, Any]):
    """A configuration that notes which keys are asked for."""

    seen: set[str]

    def get(self, key: str, default: Any = None) -> Any:
        """The value, noting the key."""
        self.seen.add(key)
        return dict.get(self, key, default)

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return dict.__getitem__(self, key)

    def __contains__(self, key: object) -> bool:
        self.seen.add(str(key))
        return dict.__contains__(self, key)

    def keys(self) -> Any:
        """A view that notes the keys that are looked up in it."""
        return KeysView(self)

    def __copy__(self) -> KeyRecorder:
        return self


def recorder(values: dict[str, Any]) -> KeyRecorder:
    """A configuration that has noted nothing yet."""
    recorder = KeyRecorder(values)
    recorder.seen = set()
    return recorder
