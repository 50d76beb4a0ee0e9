"""What to say of a script that asks the Hugging Face Hub or another host: a rehearsal reaches none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from zerokit.suggest import folder_alike

_OFFLINE = frozenset({"OfflineModeIsEnabled", "LocalEntryNotFoundError"})
"""What huggingface_hub raises; Transformers and Datasets raise errors of their own from these."""
_CONNECTION = frozenset({"ConnectionError", "ConnectError", "URLError", "gaierror"})
"""What other clients raise: requests, httpx, urllib, sockets."""
_NOT_REACHED = re.compile(r"Couldn't reach '(?P<name>[^']+)' on the Hub")
_REPOSITORY = ("repo_id", "path_or_repo_id")


def unreached(error: BaseException) -> str | None:
    """Why an error ended the script, where that is the missing network; None: it is another error. The
    libraries' own messages ask for the connection to be checked, and seldom say what was looked for."""
    if (no_folder := _folder_that_is_not_here(error)) is not None:
        return no_folder
    kinds = {base.__name__ for one in _chain(error) for base in type(one).__mro__}
    if not kinds & _OFFLINE:
        fix = "a rehearsal has no network by design: download first what the script loads"
        return f"{error}; {fix}" if kinds & _CONNECTION else None
    asked = next((name for one in _chain(error) if (name := _repository(one)) is not None), None)
    if asked is None:
        missing = "what the script loads from the Hugging Face Hub is not in this machine's cache of it"
    else:
        missing = f"no folder {asked} is here, and this machine's cache of the Hugging Face Hub lacks it"
    return f"{missing}; a rehearsal has no network by design: correct the name, or download it first"


def _folder_that_is_not_here(error: BaseException) -> str | None:
    """What to say of a path that Datasets looked for on the Hub (datasets 4.7 to 5.2, load.py), as it is not
    here: a path cannot be downloaded. None: it is no path, nor like a folder that is here."""
    found = _NOT_REACHED.match(str(error))
    if found is None or (path := Path(found["name"])).exists():
        return None
    if (meant := folder_alike(path)) is not None:
        return f"there is no folder {found['name']} here; did you mean {meant}?"
    return f"there is no folder {found['name']} here" if found["name"].startswith((".", "/", "~")) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _repository(error: BaseException) -> str | None:
    """What the outermost call that names a repository was asked for."""
    trace = error.__traceback__
    while trace is not None:
        values = trace.tb_frame.f_locals
        name = next((values[key] for key in _REPOSITORY if isinstance(values.get(key), str)), None)
        if name is not None:
            return str(name)
        trace = trace.tb_next
    return None
