"""``zerokit check --lsp``: the findings of ``check`` while a file is written, for editors that speak the
language server protocol. Reads what is typed and the files beside it; runs and writes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from zerokit import __version__
from zerokit.errors import InputError
from zerokit.fields import silent
from zerokit.linter.files import CheckedFile, check_files
from zerokit.linter.finding import Finding, Row
from zerokit.linter.fix import fixed_text
from zerokit.linter.output import token_width, worst
from zerokit.linter.suppress import settings_beside
from zerokit.options import divided
from zerokit.planner.checking import add_plans_and_recipes, context_of, for_versions
from zerokit.planner.options import CheckOptions
from zerokit.strictload import BYTE_ORDER_MARK, Location

try:
    from lsprotocol import types
    from pygls import uris
    from pygls.lsp.server import LanguageServer
    from pygls.workspace import TextDocument
except ImportError:
    raise InputError("⟨lsp⟩ needs pygls, which is not installed: pip install pygls") from None

_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "note": types.DiagnosticSeverity.Information,
}


def serve() -> None:
    """Answer an editor on standard input and output until it ends."""
    # whole texts: pygls places changes by lines that are not the protocol's
    whole = types.TextDocumentSyncKind.Full
    server = LanguageServer("zerokit", __version__, text_document_sync_kind=whole)

    def publish(uri: str) -> None:
        document = server.workspace.get_text_document(uri)
        file = _checked(server, document)
        findings = [] if file is None else worst(file, True)
        diagnostics = [_diagnostic(document, finding.as_typed) for finding in findings]
        server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri=uri, diagnostics=diagnostics, version=document.version)
        )

    def typed(params: types.DidOpenTextDocumentParams | types.DidChangeTextDocumentParams) -> None:
        publish(params.text_document.uri)

    def saved(_params: types.DidSaveTextDocumentParams) -> None:
        for uri in server.workspace.text_documents:  # what names the file, too
            publish(uri)

    def closed(params: types.DidCloseTextDocumentParams) -> None:
        cleared = types.PublishDiagnosticsParams(uri=params.text_document.uri, diagnostics=[])
        server.text_document_publish_diagnostics(cleared)

    def actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        document = server.workspace.get_text_document(params.text_document.uri)
        file = _checked(server, document)
        lines = range(params.range.start.line, params.range.end.line + 1)
        here = [found for found in file.findings if found.location.line - 1 in lines] if file else []
        made = (_action(document, file, finding) for finding in here if file)
        return [action for action in made if action is not None]

    only_fixes = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])
    server.feature(types.TEXT_DOCUMENT_DID_OPEN)(typed)
    server.feature(types.TEXT_DOCUMENT_DID_CHANGE)(typed)
    server.feature(types.TEXT_DOCUMENT_DID_SAVE)(saved)
    server.feature(types.TEXT_DOCUMENT_DID_CLOSE)(closed)
    server.feature(types.TEXT_DOCUMENT_CODE_ACTION, only_fixes)(actions)
    server.start_io()


def _checked(server: LanguageServer, document: TextDocument) -> CheckedFile | None:
    """What ``check`` finds in a folder, with what is typed; None: the file is no configuration."""
    path = uris.to_fs_path(document.uri)
    if path is None:
        return None
    texts = {
        os.path.realpath(own): other.source
        for uri, other in server.workspace.text_documents.items()
        if (own := uris.to_fs_path(uri)) is not None
    }
    path = os.path.realpath(path)
    try:
        settings = settings_beside(Path(path).parent)
        if settings.leaves_out(Path(path)):
            return None
        renamed = {"for": "reader"}
        given = {renamed.get(name, name.replace("-", "_")): value for name, value in settings.options.items()}
        options, _ = divided(CheckOptions, given)
        with for_versions(options["deepspeed_version"], options["accelerate_version"]):
            checked = check_files(
                [path], context_of({}, options, silent), ignore=settings.ignore,
                discovered={path: str(Path(path).parent)}, texts=texts,
            )  # fmt: skip
            add_plans_and_recipes(checked)
    except InputError as error:  # pyproject.toml's
        finding = Row("unreadable", "", "{message}", "").found(path, Location(1, 1), message=error.marked)
        return CheckedFile(path=path, kind="unknown", document=None, findings=[finding])
    return next((file for file in checked if file.path == path), None)


def _lines(document: TextDocument) -> list[str]:
    """The lines as the protocol and ``check`` count them: pygls ends one at U+2028, too."""
    return str(document.source).split("\n")


def _range(document: TextDocument, line: int, column: int, width: int) -> types.Range:
    """In the units of the client, from characters; ``line`` and ``column`` from 0."""
    start, end = types.Position(line, column), types.Position(line, column + width)
    return document.position_codec.range_to_client_units(_lines(document), types.Range(start, end))


def _diagnostic(document: TextDocument, finding: Finding) -> types.Diagnostic:
    lines, line, column = _lines(document), finding.location.line - 1, finding.location.column - 1
    column += line == 0 and document.source.startswith(BYTE_ORDER_MARK)  # ``check`` does not count it
    text = lines[line] if line < len(lines) else ""
    width = min(token_width(text, column + 1), max(0, len(text.rstrip("\r")) - column))
    return types.Diagnostic(
        range=_range(document, line, column, width),
        severity=_SEVERITIES[finding.severity], code=finding.rule, source="zerokit",
        message=f"{finding.message}\nfix: {finding.fix}" if finding.fix else finding.message,
    )  # fmt: skip


def _action(document: TextDocument, file: CheckedFile, finding: Finding) -> types.CodeAction | None:
    """What ``--fix``, or ``--fix --unsafe``, would write of a finding; None: nothing."""
    text, fixed = fixed_text(file, [finding])
    if finding not in fixed:
        return None
    before = document.source
    if before.startswith(BYTE_ORDER_MARK) and finding.rule != "json-byte-order-mark":
        text = BYTE_ORDER_MARK + text
    start = _alike(before, text)
    end = _alike(before[:start:-1], text[:start:-1])
    change = types.TextEdit(_between(document, start, len(before) - end), text[start : len(text) - end])
    unsafe = " (an ignored setting takes effect, or ends)" if finding.fixable == "unsafe" else ""
    return types.CodeAction(
        title=f"zerokit: {finding.done}{unsafe}", kind=types.CodeActionKind.QuickFix,
        diagnostics=[_diagnostic(document, finding.as_typed)], is_preferred=not unsafe,
        edit=types.WorkspaceEdit(changes={document.uri: [change]}),
    )  # fmt: skip


def _alike(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def _between(document: TextDocument, start: int, end: int) -> types.Range:
    positions = []
    for offset in (start, end):
        before = document.source[:offset]
        positions.append(types.Position(before.count("\n"), len(before) - before.rfind("\n") - 1))
    return document.position_codec.range_to_client_units(_lines(document), types.Range(*positions))
