"""The errors that are meant for users: one exit code each, the documented ones."""

from __future__ import annotations

import importlib
import inspect

from zerokit import errors, fields

DOCUMENTED = {  # docs of the command line; fixed, since scripts rely on them
    "ZerokitError": 1, "InputError": 2, "FileInputError": 2, "NothingFits": 3, "LaunchError": 1,
    "RankFailed": 10, "RunHung": 11, "LauncherLost": 12, "NodeUnusable": 13,
    "ReportNotWritten": 74, "MemoryUnknown": 2,
}  # fmt: skip


def test_exit_codes_are_the_documented_ones() -> None:
    classes = dict(inspect.getmembers(errors, inspect.isclass))
    found = {name: kind.exit_code for name, kind in classes.items() if issubclass(kind, errors.ZerokitError)}
    assert found == DOCUMENTED
    assert {*DOCUMENTED.values(), 0, 9, 14, 15} == {*errors.ExitCode}


def test_an_error_in_a_file_begins_with_its_location() -> None:
    assert str(errors.FileInputError("ds.json", "no stage", 5, 37)) == "ds.json:5:37: no stage"
    assert str(errors.FileInputError("ds.json", "not there")) == "ds.json: not there"
    assert issubclass(errors.FileInputError, errors.InputError)


def test_an_argument_in_a_message_is_its_field_and_shown_without_marks() -> None:
    error = errors.InputError("⟨seq_len⟩ 0: use ⟨seq_len⟩ 4096 with ⟨micro_batch⟩ 1")
    assert error.field == "seq_len"
    assert str(error) == "seq_len 0: use seq_len 4096 with micro_batch 1"
    assert errors.InputError("nothing is marked").field is None


def test_a_switch_and_its_position_are_said_as_where_they_are_given() -> None:
    error = errors.InputError("go on, with ⟨accept_mismatch=True⟩⟪ before the script⟫; or ⟨plan⟩")
    assert error.field == "accept_mismatch" and fields.named(error.marked) == ("accept_mismatch", "plan")
    assert str(error) == "go on, with accept_mismatch=True; or plan"
    assert fields.as_options(error.marked) == "go on, with --accept-mismatch before the script; or --plan"


def test_the_import_that_failed_first_is_the_cause() -> None:
    try:
        try:
            importlib.import_module("nothing_of_this_name")
        except ImportError as error:
            raise ModuleNotFoundError("Could not import module 'VoxtralProcessor'") from error
    except ImportError as error:
        assert str(errors.of_import(error)) == "No module named 'nothing_of_this_name'"
    assert str(errors.of_import(other := ValueError("other"))) == str(other)
