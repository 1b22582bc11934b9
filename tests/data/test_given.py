"""Clients that the data name: a column, an array, or one file each."""

from pathlib import Path

import numpy as np
import pytest

import fedsift
from fedsift import config, data
from fedsift.types import UserError

ROWS = ["1,no", "2,yes", "3,no", "4,yes", "5,no", "6,yes", "7,no", "8,yes"]
QUICK = fedsift.Recipe(epochs=1)


def files(folder: Path, **content: list[str]) -> str:
    for name, rows in content.items():
        text = "\n".join(["a,y", *rows]) + "\n"
        (folder / f"{name.replace('_', '-')}.csv").write_text(text)
    return str(folder / "hospital-*.csv")


def values(labelled) -> list[int]:
    samples = labelled.samples
    return samples.store.values[samples.rows][:, 0].int().tolist()


# --- a column or an array ---


def test_a_column_names_the_clients(tmp_path):
    owners = ["b", "b", "", "a", "", "10", "2", ""]
    text = "\n".join(["a,y,who", *(f"{row},{w}" for row, w in zip(ROWS, owners, strict=True))])
    (tmp_path / "my.csv").write_text(text + "\n")
    found = data.load_dataset(tmp_path / "my.csv", target="y", client="who")
    assert found.owners is not None
    assert found.owners.names == ("2", "10", "a", "b")  # numbers by their size, then words
    task = data.split(found)
    # Rows of nobody are public and for the test; the others are all private, in their order.
    assert values(task.private) == [1, 2, 4, 6, 7]
    assert sorted([*task.public.rows, *task.held_out.samples.rows]) == [2, 4, 7]
    assert task.given is not None
    clients = fedsift.make_clients(task.private, 4, task.given, model="mlp")
    assert [values(client.data) for client in clients] == [[7], [6], [4], [1, 2]]
    assert clients.name_of(3) == "client 3 (b)"


def test_names_of_clients_and_classes_stay_as_they_are_written(tmp_path):
    rows = ["1,x,007", "2,y,7", "3,x,7.0", "4,y,08", "5,x,7", "6,y,007"]
    (tmp_path / "my.csv").write_text("\n".join(["a,y,who", *rows]) + "\n")
    found = data.load_dataset(tmp_path / "my.csv", target="y", client="who")
    assert found.owners is not None and set(found.owners.names) == {"007", "7", "08"}
    whose = [found.owners.names[number] for number in found.owners.numbers]
    assert whose == ["007", "7", "7", "08", "7", "007"]  # 7.0 is 7: a table with gaps has it so
    classes = data.load_dataset(tmp_path / "my.csv", target="who")
    assert classes.names is not None and set(classes.names) == {"007", "7", "08"}


def test_an_array_names_the_clients(tmp_path):
    client = np.array([3, 3, 1, 1, 1, 7])
    x, y = np.arange(12).reshape(6, 2), np.arange(6) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, client=client, x_public=x, x_val=x, note=1)
    found = data.load_dataset(tmp_path / "a.npz")
    assert found.owners is not None
    assert found.owners.names == ("1", "3", "7")
    assert "not used: x_val, note (known: x, y," in found.notes[0]
    task = data.split(found, test=1)
    parts = task.given.parts  # type: ignore[union-attr]
    whose = client[task.private.samples.rows]
    assert [whose[part].tolist() for part in parts] == [
        [1] * (whose == 1).sum(),
        [3] * (whose == 3).sum(),
        [7] * (whose == 7).sum(),
    ]


def test_a_wrong_number_of_clients_names_them(tmp_path):
    task = data.split(data.load_dataset("clinics"))
    with pytest.raises(UserError, match=r"the data have 6 clients \(east, .*\), not 4; set cl"):
        fedsift.make_clients(task.private, 4, task.given, model="mlp")
    with pytest.raises(UserError, match="partition given needs data that name the client"):
        fedsift.make_clients(task.private, 4, "given", model="mlp")


@pytest.mark.parametrize("client", [np.zeros((4, 1)), [1, 2], [0.5] * 4])
def test_owners_that_make_no_sense_are_refused(client):
    with pytest.raises(UserError, match="client must name the client of each of the 4 samples"):
        data.make_dataset(np.eye(4), [0, 1, 0, 1], client=client)


# --- one file per client ---


def test_one_file_per_client_beside_a_public_file(tmp_path):
    pattern = files(tmp_path, hospital_2=ROWS[:3], hospital_10=ROWS[3:6])
    (tmp_path / "public.csv").write_text("a\n70\n80\n")
    found = data.load_dataset(tmp_path / "public.csv", target="y", clients=pattern)
    task = data.split(found, test=1)
    assert task.given is not None
    assert task.given.names == ("hospital-2", "hospital-10")
    assert task.public.tensor().shape == (2, 1)  # rows without a class are public
    assert task.public.rows.tolist() == [6, 7]
    assert len(task.private) == 5
    assert len(task.held_out) == 1
    assert any("has no column 'y'" in note for note in task.notes)


def test_the_public_file_orders_the_columns_and_not_a_private_one(tmp_path):
    (tmp_path / "site-1.csv").write_text("b,a,y\n1,2,u\n3,4,v\n")
    (tmp_path / "public.csv").write_text("a,b\n5,6\n7,8\n")
    made = data.load_dataset(
        f"csv:{tmp_path}/public.csv", target="y", clients=str(tmp_path / "site-*.csv")
    )
    assert made.table is not None and list(made.table.columns) == ["a", "b"]


def test_a_table_without_a_target_is_answered_with_the_key(tmp_path):
    (tmp_path / "my.csv").write_text("age,kind\n30,a\n40,b\n")
    with pytest.raises(UserError, match="no sample has a class; name the column of the classes: d"):
        data.split(data.load_dataset(f"csv:{tmp_path}/my.csv"))


def test_rows_without_a_class_are_counted_aloud(tmp_path):
    (tmp_path / "t.csv").write_text("a,grade\n1,none\n2,mild\n3,severe\n4,none\n5,mild\n")
    made = data.load_dataset(f"csv:{tmp_path}/t.csv", target="grade")
    assert made.names == ("mild", "severe")
    told = "2 rows have no 'grade' and can only be public: an empty cell, NA, N/A, nan, null, none"
    assert any(told in note for note in made.notes)


def test_a_column_missing_at_one_client_is_filled_in_and_said(tmp_path):
    (tmp_path / "hospital-a.csv").write_text("a,b,y\n" + "1,5,no\n2,6,yes\n" * 4)
    (tmp_path / "hospital-b.csv").write_text("a,y\n" + "3,no\n4,yes\n" * 4)
    pattern = str(tmp_path / "hospital-*.csv")
    task = data.split(data.load_dataset("none", target="y", clients=pattern), public=6, test=2)
    assert any("hospital-b.csv has no column 'b': its values count as missing" in note
               for note in task.notes)  # fmt: skip
    assert np.isfinite(task.private.samples.tensor().numpy()).all()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"hospital_a": ROWS, "hospital_b": ["1,"]}, "a row of client hospital-b has no class"),
        ({"hospital_a": ROWS, "hospital_b": ["1,no", "2"]}, "hospital-b.csv, line 3: 1 cells"),
    ],
)
def test_a_bad_file_of_a_client_is_named(tmp_path, content, said):
    with pytest.raises(UserError) as caught:
        data.load_dataset("none", target="y", clients=files(tmp_path, **content))
    assert said in str(caught.value)


def test_files_that_cannot_be_clients(tmp_path):
    with pytest.raises(UserError, match="no file is called"):
        data.load_dataset("none", target="y", clients=str(tmp_path / "x-*.csv"))
    pattern = files(tmp_path, hospital_a=ROWS)
    (tmp_path / "hospital-b.csv").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match="is a link, and none is followed"):
        data.load_dataset("none", target="y", clients=pattern)
    (tmp_path / "hospital-b.csv").unlink()
    (tmp_path / "hospital-b.csv").write_text("a\n1\n")
    with pytest.raises(UserError, match=r"hospital-b.csv has no column 'y' for data.target"):
        data.load_dataset("none", target="y", clients=pattern)
    with pytest.raises(UserError, match=r"so data.name must be csv:FILE"):
        data.load_dataset("digits", target="y", clients=pattern)


# --- in an experiment ---


def test_a_client_column_makes_the_partition_given_and_counts_the_clients(tmp_path):
    pattern = files(tmp_path, hospital_a=ROWS, hospital_b=ROWS, hospital_c=ROWS)
    e = config.read_experiment("table-fas", [f"data.clients={pattern}", "data.target=y"])
    assert (e.partition.kind, e.clients.count) == ("given", 3)  # the preset has six for its own
    values, axes = config.read_values("digits-fas", [f"data.clients={pattern}", "data.target=y"])
    e = config.check_experiment(values)
    assert (e.data.name, e.partition.kind, e.data.private) == ("none", "given", None)
    assert (e.clients.count, e.clients.cohort, axes) == (3, 3, {})
    kept = config.check_experiment(e.model_dump())
    assert kept == e


# --- clients with nothing, or with one sample ---


def test_the_clients_of_the_data_win_over_the_number_of_a_preset(tmp_path):
    rows = [f"{i},{'no' if i % 2 else 'yes'},{'abc'[i % 3]}" for i in range(60)]
    (tmp_path / "my.csv").write_text("\n".join(["a,y,who", *rows]) + "\n")
    named = [f"data.name=csv:{tmp_path}/my.csv", "data.target=y", "data.client=who"]
    clients = config.read_experiment("table-fas", named).clients  # the preset has six
    assert (clients.count, clients.cohort) == (3, 3)
    clients = config.read_experiment("table-fas", [*named, "cohort=2"]).clients
    assert (clients.count, clients.cohort) == (3, 2)
    assert config.read_experiment("table-fas", []).clients.count == 6
    with pytest.raises(UserError, match=r"3 clients"):
        config.build_federation(
            config.read_experiment("table-fas", [*named, "clients=5", "cohort=3"])
        )


def test_a_client_without_samples_is_missing_and_named(tmp_path):
    pattern = files(tmp_path, hospital_a=ROWS * 3, hospital_b=[], hospital_c=ROWS * 3)
    task = data.split(data.load_dataset("none", target="y", clients=pattern), public=10, test=4)
    clients = fedsift.make_clients(task.private, 3, task.given, model="mlp")
    algorithm = fedsift.fas(5, local=QUICK, distill=QUICK)
    with pytest.warns(UserWarning, match=r"client 1 \(hospital-b\) has no private samples"):
        (record,) = fedsift.federate(algorithm, clients, task, rounds=1, cohort=3)
    assert set(record.bytes.up) == {0, 2}
    assert record.bytes.missing == {
        1: "client 1 (hospital-b) has no private samples, so it does not take part"
    }
    with pytest.raises(UserError, match=r"client 1 \(hospital-b\) has no private samples"):
        list(fedsift.federate(fedsift.gossip(5, local=QUICK), clients, task, rounds=1, cohort=3))


def test_a_round_of_clients_without_samples_says_so(tmp_path):
    pattern = files(tmp_path, hospital_a=ROWS * 3, hospital_b=[])
    task = data.split(data.load_dataset("none", target="y", clients=pattern), public=10, test=4)
    clients = fedsift.make_clients(task.private, 2, task.given, model="mlp")
    algorithm = fedsift.fas(5, local=QUICK, distill=QUICK)
    with pytest.raises(UserError, match="has no private samples"):
        for seed in range(9):  # one of the cohorts of one is the empty client
            list(fedsift.federate(algorithm, clients, task, rounds=1, cohort=1, seed=seed))


def test_a_client_with_one_sample_and_batch_norm_is_not_trained():
    from torch import nn

    def net(shape, classes):
        return nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.Linear(4, classes))

    rng = np.random.default_rng(0)
    owner = [0] + [1] * 29
    x, y, public = rng.normal(size=(30, 3)), np.arange(30) % 2, rng.normal(size=(8, 3))
    task = data.split(
        data.make_dataset(x, y, client=owner, public=public, test=(np.eye(3), [0, 1, 0]))
    )
    clients = fedsift.make_clients(task.private, 2, task.given, model=net)
    algorithm = fedsift.fas(4, local=QUICK, distill=QUICK)
    with pytest.warns(UserWarning, match="client 0 has one sample, and batch norm needs two"):
        (record,) = fedsift.federate(algorithm, clients, task, rounds=1, cohort=2)
    assert record.steps[0] == 0 < record.steps[1]
    assert set(record.bytes.up) == {0, 1}
