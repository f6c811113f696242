"""Other data than a run was trained on, as --data of hvdgan.sample and hvdgan.evaluate names them."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.data import open_source
from hvdgan.training.building.run import spec_of
from hvdgan.training.inference.inputs import open_data

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained_on(data, **arrays):
    """The settings of a run, and the facts about its data."""
    config = Config(data=data, arrays=ArrayConfig(**{"values": "none", **arrays}))
    return config, spec_of(open_source(config))


def write(name, **others):
    with h5py.File(name, "w") as file:
        for key, array in {"images": RNG.random((5, 4, 6, 2), np.float32), **others}.items():
            file[key] = array


# conditions of a table


@pytest.fixture
def table():
    """A run on five samples with conditions in their order, and five samples of other data."""
    write("mine.h5")
    write("others.h5")
    Path("t.csv").write_text("energy,theta\n" + "".join(f"{number},{10 * number}\n" for number in range(5)))
    return trained_on("mine.h5", condition_table=Path("t.csv"), condition_values="none")


def test_other_data_do_not_get_the_rows_of_a_table_in_order(table):
    with pytest.raises(UserError) as refused:
        open_data(*table, "others.h5")
    said = str(refused.value)
    assert "no array energy in others.h5" in said and "\n" not in said
    assert said.endswith(
        "the rows of --condition-table t.csv are in the order of mine.h5, so other data must hold energy, theta, or "
        "the table a column `file` with their paths"
    )


def test_other_data_may_hold_the_conditions_themselves(table):
    write("with.h5", energy=np.arange(5.0), theta=np.arange(5.0) ** 2)
    assert open_data(*table, "with.h5").conditions.tolist() == [[n, n * n] for n in range(5)]


@pytest.mark.parametrize("name", [None, "mine.h5"])
def test_the_data_of_the_run_keep_the_rows_of_its_table(table, name):
    assert open_data(*table, name).conditions.tolist() == [[n, 10 * n] for n in range(5)]


def test_a_table_by_file_name_holds_for_other_data(folder):
    for name in ("mine", "others"):
        (folder / name).mkdir()
        np.save(folder / name / f"{name}.npy", RNG.random((4, 6), np.float32))
    (folder / "t.csv").write_text("file,energy\nmine.npy,1\nothers.npy,2\n")
    run = trained_on("mine", condition_table=folder / "t.csv", condition_values="none")
    assert open_data(*run, "others").conditions.tolist() == [[2]]
