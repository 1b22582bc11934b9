"""Tables in files: what comes back, and one clear sentence for each kind of damage."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift import data
from fedsift.data.formats import tables
from fedsift.data.formats.tables import read_csv, read_parquet
from fedsift.data.table import MISSING, find_missing, is_words
from fedsift.types import UserError

GOOD = "age,city,y\n30,Rome,no\n50,,yes\n,Oslo,no\n40,Rome,yes\n"


def write(folder: Path, text: str | bytes, name: str = "my.csv") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


# --- what comes back ---


def test_numbers_words_and_missing_cells(tmp_path):
    found = read_csv(write(tmp_path, GOOD))
    assert found.columns["age"].tolist()[:2] == [30, 50]
    assert find_missing(found.columns["age"]).tolist() == [False, False, True, False]
    assert found.columns["city"].tolist() == ["Rome", "", "Oslo", "Rome"]
    assert found.line.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_separators_line_ends_and_a_byte_order_mark(tmp_path, mark):
    text = GOOD.replace(",", mark).replace("\n", "\r\n")
    found = read_csv(write(tmp_path, b"\xef\xbb\xbf" + text.encode()))
    assert list(found.columns) == ["age", "city", "y"]
    assert found.columns["y"].tolist() == ["no", "yes", "no", "yes"]


def test_a_cell_may_have_separators_and_lines(tmp_path):
    found = read_csv(write(tmp_path, 'a,b\n"x, y","two\nlines"\n\n3,4\n'))
    assert found.columns["a"].tolist() == ["x, y", "3"]
    assert found.columns["b"].tolist() == ["two\nlines", "4"]
    assert found.line.tolist() == [2, 5]  # where a row begins; an empty line is none


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NAME = st.text("abcdefgh", min_size=1, max_size=5)


@given(st.data(), st.lists(NAME, min_size=2, max_size=5, unique=True), st.integers(1, 6))
def test_any_table_comes_back_as_it_was_written(tmp_path_factory, d, names, rows):
    cells = [d.draw(st.lists(CELL, min_size=len(names), max_size=len(names))) for _ in range(rows)]
    text = io.StringIO(newline="")
    csv.writer(text).writerows([names, *cells])
    found = read_csv(write(tmp_path_factory.mktemp("csv"), text.getvalue()))
    assert list(found.columns) == names
    for number, name in enumerate(names):
        column = found.columns[name]
        for got, wrote in zip(column.tolist(), (row[number].strip() for row in cells), strict=True):
            if wrote.lower() in MISSING:
                assert got == "" if is_words(column) else np.isnan(got)
            else:
                assert got == wrote if is_words(column) else got == float(wrote)


# --- damage ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "my.csv is empty; its first line must name the columns"),
        ("\n\n", "my.csv is empty; its first line must name the columns"),
        ("a,b\n1,2\n3\n", "my.csv, line 3: 1 cells, but the header has 2"),
        ("a,b\n1,2,3\n", "my.csv, line 2: 3 cells, but the header has 2"),
        ("a,b,a\n1,2,3\n", "my.csv has two columns 'a'; rename one"),
        ("a,,c\n1,2,3\n", "my.csv: column 2 has no name; name it in the first line"),
        ("1,2\n3,4\n", "my.csv has numbers in its first line; it must name the columns"),
        ('a,b\n"1,2\n3,4\n', "my.csv, line 2: unexpected end of data"),
        ("a,b\n" + "x" * 200_000 + ",1\n", "my.csv, line 2: field larger than field limit"),
        (b"a,b\n1,\xe9\n", "my.csv is not UTF-8 (byte 0xe9 at place 6); save it as UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "my.csv is not UTF-8 (byte 0xff at place 0)"),
    ],
)
def test_each_damage_of_a_csv_has_its_sentence(tmp_path, text, said):
    with pytest.raises(UserError) as caught:
        read_csv(write(tmp_path, text))
    assert str(caught.value).startswith(f"{tmp_path}/{said}")


def test_a_file_that_is_not_there_or_not_a_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_csv(str(tmp_path / "nothing.csv"))
    with pytest.raises(UserError, match="cannot read"):
        read_csv(str(tmp_path))
    with pytest.raises(UserError, match="it is not a plain file"):
        read_csv("/dev/zero")


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MOST_BYTES", 10)
    with pytest.raises(UserError, match=r"it has .* bytes; 10 are the most"):
        read_csv(write(tmp_path, GOOD))


def load(folder: Path, text: str = GOOD, **more: object) -> data.Dataset:
    return data.load_dataset(f"csv:{write(folder, text)}", **({"target": "y"} | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"target": "z"}, "has no column 'z' for data.target; it has: age, city, y"),
        ({"client": "z"}, "has no column 'z' for data.client"),
        ({"drop": ["z"]}, "has no column 'z' to drop or take as a category"),
        ({"split": "city"}, "line 2: the split is 'Rome'; it must be train, test or public"),
        ({"classes": ["no", "maybe"]}, "line 3: 'y' is 'yes', which is none of the classes no"),
    ],
)
def test_columns_that_do_not_fit(tmp_path, more, said):
    with pytest.raises(UserError) as caught:
        load(tmp_path, **more)
    assert said in str(caught.value)


def test_a_target_that_is_no_class_is_refused(tmp_path):
    rows = "".join(f"{i},{i * 10**9}\n" for i in range(300))
    with pytest.raises(UserError, match="'y' has 300 different values in 300 rows"):
        load(tmp_path, "a,y\n" + rows)
    with pytest.raises(UserError, match="column 'y' has 1 class; two are the least"):
        load(tmp_path, "a,y\n1,no\n2,no\n")
    with pytest.raises(UserError, match=r"my.csv has no rows"):
        load(tmp_path, "a,y\n")


def test_a_label_of_a_thousand_million_is_a_class_like_any_other(tmp_path):
    found = load(tmp_path, "a,y\n1,1000000000\n2,7\n3,1000000000\n")
    assert (found.names, found.y.tolist(), found.classes) == (("7", "1000000000"), [1, 0, 1], 2)


def test_rows_without_a_class_are_public(tmp_path):
    found = load(tmp_path, "a,y\n1,no\n2,\n3,yes\n4,no\n")
    task = data.split(found)
    assert task.public.rows.tolist() == [1]
    assert sorted([*task.private.samples.rows, *task.held_out.samples.rows]) == [0, 2, 3]


def test_a_training_row_without_a_class_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"line 3: no class, and data.split does not say public"):
        load(tmp_path, "a,y,s\n1,no,train\n2,,train\n3,yes,test\n", split="s")


# --- Parquet ---


def test_parquet_gives_what_csv_gives(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    columns = {
        "age": [30, 50, None, 40],
        "city": ["Rome", None, "Oslo", "Rome"],
        "y": ["no", "yes", "no", "yes"],
        "ok": [True, False, None, True],
    }
    path = str(tmp_path / "my.parquet")
    pyarrow.parquet.write_table(pa.table(columns), path)
    found, same = read_parquet(path), read_csv(write(tmp_path, GOOD))
    for name in same.columns:
        assert [*map(str, found.columns[name])] == [*map(str, same.columns[name])]
    assert [*map(str, found.columns["ok"])] == ["1.0", "0.0", "nan", "1.0"]
    assert data.load_dataset(path, target="y").y.tolist() == [0, 1, 0, 1]


def test_damaged_or_odd_parquet_is_refused(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    with pytest.raises(UserError, match=r"cannot read .*my.parquet as a Parquet file"):
        read_parquet(write(tmp_path, "not parquet at all", "my.parquet"))
    with pytest.raises(UserError, match="no such file"):
        read_parquet(str(tmp_path / "nothing.parquet"))
    path = str(tmp_path / "lists.parquet")
    pyarrow.parquet.write_table(pa.table({"a": [[1], [2, 3]], "b": [1, 2]}), path)
    with pytest.raises(UserError, match="column 'a' holds list"):
        read_parquet(path)
    monkeypatch.setattr(tables, "MOST_BYTES", 10)
    with pytest.raises(UserError, match="unpacks to"):
        read_parquet(path)


def test_a_small_parquet_file_cannot_fill_the_memory(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = str(tmp_path / "long.parquet")
    pyarrow.parquet.write_table(pa.table({"a": ["x" * 10_000] * 5_000}), path)
    assert Path(path).stat().st_size < 20_000  # one word, named again and again
    monkeypatch.setattr(tables, "MOST_BYTES", 15_000_000)
    with pytest.raises(UserError, match="unpacks to more than 15,000,000 bytes"):
        read_parquet(path)
    monkeypatch.setattr(tables, "MOST_CELLS", 4_999)
    with pytest.raises(UserError, match="5,000 rows of 1 columns; 4,999 cells are the most"):
        read_parquet(path)
