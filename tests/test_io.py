"""Files: rows and locks, JSON, plugin files, digests and names."""

import json
import os
import sys

import pytest
import torch

from espalier.core.errors import DependencyError, FolderError, FormatError
from espalier.io import plugin
from espalier.io.files import (
    fingerprint_weights,
    leftovers,
    read_json,
    temporary_sibling,
    write_file,
    write_json,
)
from espalier.io.paths import LOCK, file_safe
from espalier.io.rows import Rows, exclusive, read_rows
from espalier.io.spreadsheet import plain_cell, read_sheet, write_book


def test_rows_are_appended_and_an_incomplete_line_is_dropped(tmp_path):
    path = tmp_path / "rows"
    rows = Rows(path)
    rows.add({"a": 1})
    rows.add({"b": [1.5, "ü"]})
    with path.open("ab") as file:
        file.write(b'{"c": ')
    assert read_rows(path) == [{"a": 1}, {"b": [1.5, "ü"]}]
    reader = Rows(path, write=False)
    reader.add({"d": 2})  # only in memory
    assert path.read_bytes().endswith(b'{"c": ')
    Rows(path).add({"c": 3})
    assert read_rows(path) == [{"a": 1}, {"b": [1.5, "ü"]}, {"c": 3}]
    assert list(reader) == [{"a": 1}, {"b": [1.5, "ü"]}, {"d": 2}]
    assert read_rows(tmp_path / "none") == []


@pytest.mark.parametrize("line", ["[1]", "{", "5"])
def test_damaged_rows_are_refused(tmp_path, line):
    path = tmp_path / "rows"
    path.write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(FormatError) as error:
        read_rows(path)
    assert error.value.path == path


def test_rows_that_cannot_be_written(tmp_path, monkeypatch):
    rows = Rows(tmp_path / "rows")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(FolderError):
        rows.add({"a": 1})
    assert list(rows) == []
    with pytest.raises(ValueError, match="JSON"):
        rows.add({"a": float("nan")})


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fcntl")
@pytest.mark.parametrize("file", [LOCK, None])
def test_a_folder_has_one_writer(tmp_path, file):
    folder = tmp_path / "run"
    with exclusive(folder, file=file):
        with pytest.raises(FolderError) as error, exclusive(folder, file=file):
            pass
        assert error.value.path == folder
    with exclusive(folder, file=file):  # the lock is free again
        assert [p.name for p in folder.iterdir()] == ([file] if file else [])


def test_json_files(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"ü": [1, None]})
    assert read_json(path) == {"ü": [1, None]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("inf")})
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    for text in ("{", json.dumps([1])):
        path.write_text(text)
        with pytest.raises(FormatError):
            read_json(path)
    for wrong in (lambda p: read_json(p), lambda p: write_json(p, {})):
        with pytest.raises(FolderError):
            wrong(tmp_path / "none" / "a.json")


def test_a_file_is_replaced_when_it_is_complete(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), write_file(path) as place:
        place.write_text("half" * (1 // 0))
    assert path.read_text() == "old"
    assert leftovers(path) == []
    with write_file(path) as place:
        place.write_text("new")
    assert path.read_text() == "new"
    temporary_sibling(path, "old.").write_text("left")
    assert len(leftovers(path)) == 1


def test_plugin_files(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("VALUE = 3\n")
    assert plugin.load(path).VALUE == 3
    path.write_text("1 / 0\n")
    with pytest.raises(FormatError):
        plugin.load(path)
    with pytest.raises(FolderError):
        plugin.load(tmp_path / "none.py")


def test_the_fingerprint_sees_names_and_values():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4)
    first = fingerprint_weights(model)
    assert fingerprint_weights(model) == first != fingerprint_weights(torch.nn.Sequential(model))
    with torch.no_grad():
        model.bias[0] += 1
    assert fingerprint_weights(model) != first


def test_names_become_file_names():
    assert file_safe("XLM_ROBERTA") == "XLM_ROBERTA"
    assert file_safe("a/b\\c:d") == "a%2Fb%5Cc%3Ad"
    assert file_safe("") == "model"


def test_spreadsheets(tmp_path, monkeypatch):
    path = tmp_path / "a.xlsx"
    write_book(path, {"one": [["x", "y"], [1.5, "=1+1"]]})
    first = path.read_bytes()
    assert read_sheet(path, "one", "") == read_sheet(path, "none", "") == [("x", "y"), (1.5, "=1+1")]
    write_book(path, {"one": [["x", "y"], [1.5, "=1+1"]]})
    assert path.read_bytes() == first
    assert [plain_cell(v) for v in ("=1", "a\nb", None, 2)] == ["'=1", "a b", "", 2]
    path.write_bytes(b"no workbook")
    with pytest.raises(FormatError):
        read_sheet(path, "one", "")
    with pytest.raises(FolderError):
        read_sheet(tmp_path / "none.xlsx", "one", "")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DependencyError) as error:
        write_book(path, {})
    assert error.value.extra == "report"
