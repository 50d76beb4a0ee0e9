"""``zerokit check --lsp`` as an editor meets it: a real client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.command import call, move_elsewhere
from tests.support.packages import needs

needs("pygls")
from lsprotocol import types  # noqa: E402
from pygls.lsp.client import LanguageClient  # noqa: E402


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


class Editor:
    """A client with the diagnostics that it was sent, by file name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told, self.changed = folder, dict[str, list[types.Diagnostic]](), asyncio.Event()
        self.client = LanguageClient("editor", "1")

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def told(params: types.PublishDiagnosticsParams) -> None:
            self.told[params.uri.rpartition("/")[2]] = list(params.diagnostics)
            self.changed.set()

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    async def answer(self) -> None:
        await asyncio.wait_for(self.changed.wait(), 30)
        self.changed.clear()

    async def open(self, name: str, text: str) -> list[types.Diagnostic]:
        item = types.TextDocumentItem(uri=self.uri(name), language_id="json", version=1, text=text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        await self.answer()
        return self.told[name]

    async def type(self, name: str, text: str) -> list[types.Diagnostic]:
        change = types.TextDocumentContentChangeWholeDocument(text)
        named = types.VersionedTextDocumentIdentifier(uri=self.uri(name), version=2)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(named, [change]))
        await self.answer()
        return self.told[name]

    async def actions(self, name: str, at: types.Range) -> list[types.CodeAction]:
        params = types.CodeActionParams(
            types.TextDocumentIdentifier(self.uri(name)), at, types.CodeActionContext(diagnostics=[])
        )
        found = await self.client.text_document_code_action_async(params)
        return [action for action in found or [] if isinstance(action, types.CodeAction)]


def with_editor(folder: Path, script: Callable[[Editor], Awaitable[None]]) -> None:
    """Run what an editor does, against ``zerokit check --lsp``."""

    async def run() -> None:
        editor = Editor(folder)
        await editor.client.start_io(sys.executable, "-m", "zerokit", "check", "--lsp")
        started = types.InitializeParams(types.ClientCapabilities(), root_uri=folder.as_uri())
        await editor.client.initialize_async(started)
        editor.client.initialized(types.InitializedParams())
        await script(editor)
        await editor.client.shutdown_async(None)
        editor.client.exit(None)
        await editor.client.stop()

    with ThreadPoolExecutor(1) as thread:  # in this one a browser's tests leave a loop running
        thread.submit(asyncio.run, run()).result()


MISSPELT = '{\n  "é": "😀", "train_batch_size": 8, "gradient_cliping": 1.0\n}\n'


def applied(text: str, edit: types.TextEdit) -> str:
    """A text of one edit, in the client's UTF-16 units."""
    lines = [f"{line}\n" for line in text.split("\n")]

    def offset(at: types.Position) -> int:
        before = lines[at.line].encode("utf-16-le")[: 2 * at.character] if at.line < len(lines) else b""
        return sum(map(len, lines[: at.line])) + len(before.decode("utf-16-le"))

    return text[: offset(edit.range.start)] + edit.new_text + text[offset(edit.range.end) :]


def test_what_is_typed_is_checked_and_fixed_without_being_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(editor: Editor) -> None:
        told = await editor.open("ds_config.json", MISSPELT)
        (wrong,) = (each for each in told if "gradient_cliping" in each.message)
        assert (wrong.code, wrong.severity, wrong.source) == (
            "unknown-key", types.DiagnosticSeverity.Error, "zerokit",
        )  # fmt: skip
        assert wrong.message.endswith("fix: did you mean 'gradient_clipping'?")
        start, end = wrong.range.start, wrong.range.end
        assert (start.line, end.line) == (1, 1)
        inside = MISSPELT.split("\n")[1].encode("utf-16-le")[2 * start.character : 2 * end.character]
        assert inside.decode("utf-16-le") == '"gradient_cliping"'
        titles = {action.title: action for action in await editor.actions("ds_config.json", wrong.range)}
        (title,) = (title for title in titles if "gradient_clipping" in title)
        assert "an ignored setting takes effect" in title
        edit = titles[title].edit
        assert edit is not None and edit.changes is not None
        (change,) = edit.changes[editor.uri("ds_config.json")]
        fixed = applied(MISSPELT, change)
        assert fixed == MISSPELT.replace("cliping", "clipping")
        again = await editor.type("ds_config.json", fixed)
        assert not any("clip" in each.message for each in again)
        (tmp_path / "shown.json").write_text(MISSPELT)
        _, out, _ = call(capsys, "check", "--json", "shown.json")
        assert {each["rule"] for each in json.loads(out)["findings"]} == {each.code for each in told}

    with_editor(tmp_path, script)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["shown.json"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ds.jsonc", "// with comments\n" + MISSPELT),
        ("ds.json", "\ufeff" + MISSPELT),
        ("ds.json", "\ufeff" + MISSPELT.replace("\n", " ")),
        ("ds.json", MISSPELT.replace("é", "\u2028\x85")),
    ],
)
def test_a_fix_is_where_the_key_is_and_leaves_the_rest(tmp_path: Path, name: str, text: str) -> None:
    async def script(editor: Editor) -> None:
        await editor.open(name, "{}")
        told = await editor.type(name, text)
        (wrong,) = (each for each in told if "gradient_cliping" in each.message)
        assert applied(text, types.TextEdit(wrong.range, "X")) == text.replace('"gradient_cliping"', "X")
        (action,) = (one for one in await editor.actions(name, wrong.range) if "gradient_cl" in one.title)
        assert action.edit is not None and action.edit.changes is not None
        (change,) = action.edit.changes[editor.uri(name)]
        assert applied(text, change) == text.replace("cliping", "clipping")

    with_editor(tmp_path, script)


def test_files_that_belong_together_are_and_what_is_none_of_ours_is_left_alone(tmp_path: Path) -> None:
    accelerate = "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stagee: 2\n"
    named = (
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n  zero_stage: 3\n"
    )
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}')

    async def script(editor: Editor) -> None:
        told = await editor.open("accelerate.yaml", accelerate)
        assert [each.range.start.line for each in told if "zero_stagee" in each.message] == [3]
        assert [each for each in await editor.open("named.yaml", named) if each.range.start.line == 3] != []
        assert await editor.open("package.json", '{"scripts": {}, "dependencies": {}}') == []
        assert await editor.open("compose.yaml", "services:\n  web: {image: x}\n") == []
        axolotl = "base_model: x\nval_set_size: 0\nsequence_len: 2048\nlora_rr: 8\nadapter: lora\n"
        assert any("lora_rr" in each.message for each in await editor.open("axolotl.yml", axolotl))
        plan = await editor.open("plan.yaml", "schema: zerokit.planfile/1\nchosen: {}\n")
        assert [each.code for each in plan] == ["plan-invalid"]
        assert await editor.open("broken.json", '{"train_batch_size": 8, ') != []
        editor.client.text_document_did_close(
            types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(editor.uri("broken.json")))
        )
        await editor.answer()
        assert editor.told["broken.json"] == []

    with_editor(tmp_path, script)


def test_what_pyproject_says_holds_and_what_is_wrong_with_it_is_marked(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"

    async def script(editor: Editor) -> None:
        project.write_text('[tool.zerokit.check]\nignore = ["unknown-key"]\nexclude = ["old*"]\n')
        assert "unknown-key" not in {each.code for each in await editor.open("ds_config.json", MISSPELT)}
        assert await editor.open("old.json", '{"train_batch_size": 8, ') == []
        project.write_text("[tool.zerokit.check]\nworld-size = true\n")
        (wrong,) = await editor.type("ds_config.json", MISSPELT)
        assert "world-size" in wrong.message and wrong.severity == types.DiagnosticSeverity.Error
        assert await editor.actions("ds_config.json", wrong.range) == []
        project.write_text("[tool.zerokit.check\n")
        (wrong,) = await editor.type("ds_config.json", MISSPELT)
        assert "pyproject.toml" in wrong.message

    with_editor(tmp_path, script)


def test_without_pygls_the_line_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "zerokit.planner.language_server", raising=False)
    monkeypatch.setitem(sys.modules, "lsprotocol", None)
    code, out, err = call(capsys, "check", "--lsp")
    assert (code, out) == (2, "") and err.endswith(
        "--lsp needs pygls, which is not installed: pip install pygls\n"
    )
