"""A script that pushes to the Hub goes on, and nothing is pushed."""

from __future__ import annotations

import types
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.packages import needs

needs("torch")
hf_api = pytest.importorskip("huggingface_hub.hf_api")

from zerokit.rehearsal.process.adapters import saving  # noqa: E402


def test_what_a_trainer_pushes_is_taken_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a request was sent")

    monkeypatch.setattr(hf_api, "get_session", sent)
    copy = types.ModuleType("huggingface_hub.hf_api")  # the real module stays as it is
    vars(copy).update(vars(hf_api))
    copy.HfApi = type("HfApi", (hf_api.HfApi,), {})  # type: ignore[attr-defined]
    copy.api = copy.HfApi()  # type: ignore[attr-defined]
    stubbed: list[str] = []
    context: Any = SimpleNamespace(machine=SimpleNamespace(stub=stubbed.append))
    saving.writing(context, copy)
    api = copy.HfApi(token="secret")
    assert api.create_repo("me/model", private=True, exist_ok=True).repo_id == "me/model"
    assert copy.create_repo("model").repo_id == "rehearsal/model"
    upload = {"repo_id": "me/model", "folder_path": ".", "commit_message": "End of training"}
    assert api.upload_folder(**upload).commit_message == "End of training"
    assert api.upload_folder(**upload, run_as_future=True).result().oid == "0" * 40
    assert api.delete_repo("me/model") is None
    assert api.whoami()["name"] == "rehearsal"
    assert len(stubbed) == 5
