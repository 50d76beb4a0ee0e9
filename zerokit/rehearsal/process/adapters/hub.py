"""The Hugging Face Hub: what a script would create, upload or delete there is taken as done."""

from __future__ import annotations

from concurrent.futures import Future
from types import ModuleType
from typing import Any

from zerokit.rehearsal.process.context import Context

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
            commit_url=f"{self.endpoint}/{_NAME}/{_NAME}/commit/{'0' * 40}",
            commit_message=str(kwargs.get("commit_message") or ""),
            commit_description="",
            oid="0" * 40,
        )
        if not kwargs.get("run_as_future"):
            return done
        future: Future[Any] = Future()
        future.set_result(done)
        return future

    def other(self: Any, *args: Any, **kwargs: Any) -> None:
        context.machine.stub(description)

    def whoami(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"type": "user", "name": _NAME, "orgs": [], "auth": {}}

    functions = {
        "create_repo": create_repo,
        "whoami": whoami,
        **dict.fromkeys(_UPLOADS, upload),
        **dict.fromkeys(_OTHERS, other),
    }
    for name, function in functions.items():
        if hasattr(module.HfApi, name):
            setattr(module.HfApi, name, function)
        if name in vars(module):  # bound to the module's own object
            setattr(module, name, getattr(module.api, name))
