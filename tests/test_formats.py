"""Tables in files: every row is read as it stands, or the file is refused."""

import gzip
import json
import zipfile

import pytest

from espalier.core.errors import DataError, FormatError
from espalier.tasks import formats, lines
from espalier.tasks.formats import format_of, read_table
from espalier.tasks.lines import Lines, count_lines


def test_formats_of_names(tmp_path):
    found = {
        name: format_of(tmp_path / name) for name in ("a.tsv", "b.c.TSV.gz", "tsv", "a.gz", "a.parquet.gz")
    }
    assert list(found.values()) == ["tsv", "tsv", None, None, None]


@pytest.mark.parametrize("separator", ["\t", ","])
@pytest.mark.parametrize("row", ["x{0}1{0}2", "x", "x{0}1{0}"])
def test_a_row_with_another_number_of_fields(tmp_path, separator, row):
    """The first row too: some readers then take the first column for row numbers."""
    path = tmp_path / ("a.tsv" if separator == "\t" else "a.csv")
    good = [f"t{i}{separator}{i % 2}" for i in range(5)]
    for place in (0, 3):
        rows = [f"text{separator}label", *good[:place], row.format(separator), *good[place:]]
        path.write_text("\n".join(rows))
        with pytest.raises(FormatError) as error:
            read_table(path)
        assert error.value.path == path
        assert f"line {place + 2} " in str(error.value)


def test_fields_as_they_stand(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        '\ufeff,text,label\r\n0,"one, ""two""\nthree",nan\r\n\r\n1,null,1_0\r\n', encoding="utf-8"
    )
    assert read_table(path) == {
        "Unnamed: 0": ["0", "1"],
        "text": ['one, "two"\nthree', "null"],
        "label": ["nan", "1_0"],
    }
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\r\n"a\t\r\n b"\x0bc \t1\r\n')
    assert read_table(path) == {"text": ['"a', ' b"\x0bc '], "label": ["", "1"]}


def test_texts_longer_than_the_usual_limit_of_a_field(tmp_path):
    long = "word " * 50_000
    (tmp_path / "a.csv").write_text(f"text,label\n{long},1\n")
    assert read_table(tmp_path / "a.csv")["text"] == [long]


@pytest.mark.parametrize(
    "content",
    [
        {"text": ["a", "b"], "label": [0, 1]},
        {"text": {"0": "a", "1": "b"}, "label": {"0": 0, "1": 1}},
        [{"text": "a", "label": 0}, {"text": "b", "label": 1}],
    ],
)
def test_json_of_every_shape(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    assert read_table(path) == {"text": ["a", "b"], "label": [0, 1]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'text,label\n"never closed,1\nx,0\n'),
        ("a.csv", "text,text\nx,0\n"),
        ("a.json", "[" * 100_000),
        ("a.json", '{"a":' * 100_000),
        ("a.json", '{"text": ["a"], "label": [1, 2]}'),
        ("a.json", "3"),
        ("a.jsonl", '{"text": ' + "[" * 100_000 + "\n"),
        ("a.jsonl", '{"text": "a"}\n[1]\n'),
        ("a.jsonl", '{"text": "a", "label": ' + "9" * 10_000 + "}\n"),
        ("a.tsv", b"\x80\x81\tlabel\n"),
        ("a.txt", b"\xff\xfe\x00"),
        ("a.parquet", b"PAR1 and then nothing"),
    ],
)
def test_damaged_files(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FormatError) as error:
        read_table(path)
    assert error.value.path == path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.txt"])
def test_files_without_rows(tmp_path, name):
    (tmp_path / name).write_text({"a.csv": "text,label\n", "a.tsv": "text\n", "a.json": "[]"}.get(name, ""))
    with pytest.raises(DataError):
        read_table(tmp_path / name)


def test_a_packed_file_that_grows_without_end(tmp_path, monkeypatch):
    """Refused by what it grows to, not after it filled the memory."""
    monkeypatch.setattr(formats, "FREE", 10_000)
    for name, row in (
        ("a.tsv", b"x\t1\n"),
        ("b.csv", b"x,1\n"),
        ("c.jsonl", b'{"a": 1}\n'),
        ("d.json", b"["),
    ):
        with gzip.open(tmp_path / f"{name}.gz", "wb") as file:
            file.write(row * 400_000)
        with pytest.raises(FormatError):
            read_table(tmp_path / f"{name}.gz")


def test_few_bytes_of_parquet_that_stand_for_many_rows(tmp_path, monkeypatch):
    import pyarrow
    from pyarrow import parquet

    rows, long = tmp_path / "rows.parquet", tmp_path / "long.parquet"
    parquet.write_table(pyarrow.table({"text": pyarrow.repeat("a", 10**6)}), rows)
    parquet.write_table(pyarrow.table({"text": pyarrow.repeat("a" * 10_000, 20_000)}), long)
    monkeypatch.setattr(formats, "FREE", 10_000)
    for path in (rows, long):
        assert path.stat().st_size < 50_000
        with pytest.raises(FormatError):
            read_table(path)


def test_objects_of_many_keys(tmp_path, monkeypatch):
    """A column for every key and a value for every row grows with the square of the file."""
    monkeypatch.setattr(formats, "FREE", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"{i}":1}}\n' for i in range(5000)))
    with pytest.raises(FormatError):
        read_table(path)


def test_a_spreadsheet_with_a_far_cell(tmp_path):
    from espalier.io.spreadsheet import read_sheet

    path, bomb = tmp_path / "a.xlsx", tmp_path / "bomb.xlsx"
    import openpyxl

    book = openpyxl.Workbook()
    book.active.append([1, 2])
    book.save(path)
    assert read_sheet(path, "", "") == [(1, 2)]
    book.active["XFD1048576"] = 1
    book.save(bomb)
    with pytest.raises(FormatError) as error:
        read_sheet(bomb, "", "")
    assert error.value.path == bomb
    with zipfile.ZipFile(bomb, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/media/zeros", bytes(2**28))
    with pytest.raises(FormatError):
        read_sheet(bomb, "", "")


def test_lines_are_read_as_a_stream(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\x0cthree\r\nfour")
    found = count_lines(path)
    whole = ["one", "", "two", "three", "four"]
    assert (list(found), len(found), found[2], found[-1]) == (whole, 5, "two", "four")
    assert list(found[1:4]) == list(found[1:4]) == whole[1:4]
    assert found[1:4] == Lines(path, 1, 4) != found[1:3]
    with pytest.raises(IndexError):
        found[5]
    path.write_text("one\n")
    with pytest.raises(FormatError):
        list(found)
    monkeypatch.setattr(lines, "LONGEST", 10)
    path.write_text("a" * 25)
    assert list(map(len, count_lines(path))) == [10, 10, 5]
