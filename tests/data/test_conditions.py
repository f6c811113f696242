"""Conditions: from arrays beside the samples, from tables keyed by file or in order; what does not fit is refused."""

import pathlib

import numpy as np
import pytest
from PIL import Image

from hvdgan.data import open_source
from hvdgan.data.statistics import with_statistics
from hvdgan.errors import UserError
from hvdgan.errors.shared_errors import ALONE
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig

RNG = np.random.default_rng(0)
FIELDS = RNG.uniform(0, 1, (6, 4, 4)).astype(np.float32)
ENERGY = np.array([10.0, 20, 30, 40, 50, 60])


def opened(data, **settings):
    return open_source(Config(data=str(data), arrays=ArrayConfig(**settings)))


def table(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def array(tmp_path):
    np.save(tmp_path / "a.npy", FIELDS)
    return tmp_path / "a.npy"


def test_arrays_beside_the_samples(tmp_path):
    np.savez(tmp_path / "a.npz", x=FIELDS, energy=ENERGY.astype(np.int64), angle=RNG.normal(size=(6, 2)))
    with np.load(tmp_path / "a.npz") as file:
        angle = file["angle"]
    source = opened(tmp_path / "a.npz", conditions=("angle", "energy"))
    assert source.values.conditions.channels == ("angle_0", "angle_1", "energy")
    np.testing.assert_array_equal(source.conditions, np.column_stack([angle, ENERGY]))
    maps = "energy=standard;angle_0=range:0,1;angle_1=none"
    source = opened(tmp_path / "a.npz", conditions=("energy", "angle"), condition_values=maps)
    seen = source.mapped(with_statistics(source, ALONE))
    expected = np.column_stack([(ENERGY - 35) / ENERGY.std(), 2 * angle[:, 0] - 1, angle[:, 1]])
    assert seen.conditions.dtype == np.float32
    np.testing.assert_allclose(seen.conditions, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(seen.values.conditions.inverse(seen.conditions)[:, 0], ENERGY, rtol=1e-6)


def test_a_table_in_the_order_of_the_samples(array, tmp_path):
    path = table(tmp_path / "c.csv", "energy, theta", *(f"{value}, {value / 10}" for value in ENERGY))
    source = opened(array, condition_table=path)
    assert source.values.conditions.channels == ("energy", "theta")
    np.testing.assert_allclose(source.conditions, np.column_stack([ENERGY, ENERGY / 10]))
    np.testing.assert_array_equal(source.fetch(3)["images"], FIELDS[3][..., None])
    one = opened(array, condition_table=path, conditions=("theta",))
    np.testing.assert_allclose(one.conditions[:, 0], ENERGY / 10)
    table(path, "energy, theta", *(f"{value}, {value / 20}" for value in ENERGY))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))  # as spreadsheets write it
    others = (one, opened(array), opened(array, condition_table=path))
    assert len({source.fingerprint, *(each.fingerprint for each in others)}) == 4


def test_a_table_keyed_by_file_in_any_order(tmp_path):
    folder = tmp_path / "images"
    for number, name in enumerate(("b.png", "a/1.png", "a/2.png")):  # in the order a/1, a/2, b
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 20 * number).save(folder / name)
    rows = ["7,b.png", "1,./a/1.png", "9,a/3.png", "2,a/2.png"]  # one of a file that is not there
    path = table(tmp_path / "c.csv", "\ufeffsize,file", *rows)
    source = open_source(Config(data=str(folder), image_size=8, channels=1, arrays=ArrayConfig(condition_table=path)))
    assert source.is_pictures and source.values.conditions.channels == ("size",)
    assert source.conditions[:, 0].tolist() == [1, 2, 7]
    lines = [f"--condition-table {path}: 1 of 4 rows name none of the samples, and are ignored"]
    assert source.remarks == lines and source.mapped(with_statistics(source, ALONE)).remarks == lines
    assert source.fetch(2)["images"].max() == 0 and source.fetch(0)["images"].max() == 20
    for some, problem in (
        (rows[:2], r"no rows for a/2\.png in column file; expected one for each sample"),
        ([*rows, "8,b.png"], r"2 rows for b\.png in column file"),
    ):
        with pytest.raises(UserError, match=problem):
            opened(folder, condition_table=table(tmp_path / "c.csv", "size,file", *some))


TABLES = [
    (("energy", "1", "2"), "2 rows, and the data have 6 samples; expected one row for each, or a column `file`"),
    (("energy", *"12345", "nan"), "energy of sample 5 is nan; expected a finite number for each"),
    (("theta", *"123456"), "no column energy; it has theta"),
]


@pytest.mark.parametrize(("lines", "message"), TABLES)
def test_tables_that_do_not_fit(array, tmp_path, lines, message):
    path = table(tmp_path / "c.csv", *lines)
    with pytest.raises(UserError) as caught:
        opened(array, condition_table=path, conditions=("energy",))
    assert str(caught.value).startswith(f"--condition-table {path}: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def ages(tmp_path):
    """Pictures 0.png to 11.png, as bright as the number of each."""
    (tmp_path / "faces").mkdir()
    for number in range(12):
        Image.new("L", (8, 8), 20 * number).save(tmp_path / "faces" / f"{number}.png")
    return tmp_path / "faces"


def brightness(source):
    return [int(source.fetch(index)["images"].max()) // 20 for index in range(len(source))]


@pytest.mark.parametrize(
    ("column", "written"),
    [
        ("file_name", "{}.png"),
        ("image_id", "{}"),
        ("path", "C:\\photos\\faces\\{}.png"),
        ("", "./{}.png"),
        ("x", "{}.JPG"),
    ],
)
def test_a_column_of_any_name_holds_the_paths(ages, tmp_path, column, written):
    """The rows are in the order of the numbers, and the files in that of their names."""
    rows = [f"someone,{written.format(number)},{number},{number - 1}" for number in range(12)]
    path = table(tmp_path / "c.csv", f"name,{column},age,rank", *rows)
    source = opened(ages, condition_table=path, conditions=("age",))
    assert source.conditions[:, 0].tolist() == brightness(source) != list(range(12))
    assert opened(ages, condition_table=path, conditions=("age",), condition_order="names").conditions is not None


def test_a_column_that_numbers_the_samples_otherwise_than_the_rows_is_no_matter_of_order(array, tmp_path):
    numbers = [3, 1, 2, 6, 5, 4]
    rows = [f"{number},{ENERGY[number - 1]}" for number in numbers]
    for order in (None, "names"):
        with pytest.raises(UserError, match="column id numbers the samples in another order|no column holds"):
            opened(array, condition_table=table(tmp_path / "c.csv", "id,energy", *rows), condition_order=order)
    source = opened(
        array, condition_table=table(tmp_path / "c.csv", "id,energy", *sorted(rows)), conditions=("energy",)
    )
    np.testing.assert_array_equal(source.conditions[:, 0], ENERGY)
    ordered = {"conditions": ("energy",), "condition_order": "rows"}
    source = opened(array, condition_table=table(tmp_path / "c.csv", "id,energy", *rows), **ordered)
    np.testing.assert_array_equal(source.conditions[:, 0], ENERGY[np.array(numbers) - 1])


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_than_commas_are_named(array, tmp_path, separator):
    path = table(tmp_path / "c.csv", *(separator.join(row) for row in (("a", "energy"), ("1", "2"))))
    with pytest.raises(UserError, match="expected commas"):
        opened(array, condition_table=path)
    with pytest.raises(UserError, match="no such file"):
        opened(array, condition_table=pathlib.Path("/dev/zero"))


def test_rows_belong_to_files_in_order_only_if_it_is_said(ages, tmp_path):
    path = table(tmp_path / "c.csv", "age", *(f"{number / 7}" for number in range(12)))
    with pytest.raises(UserError, match="no column holds the paths .* such as 0.png; .*--condition-order rows"):
        opened(ages, condition_table=path)
    source = opened(ages, condition_table=path, condition_order="rows")
    np.testing.assert_allclose(source.conditions[:, 0], np.arange(12) / 7)
    names = [f"{n}.png,{11 - n}.png,{n}" for n in range(12)]
    with pytest.raises(UserError, match="the columns one, other hold the samples' paths; call the right one"):
        opened(ages, condition_table=table(path, "one,other,age", *names), conditions=("age",))
    table(path, "file_name,rank,age", *(f"{n}.png,{11 - n},{n}" for n in range(11)))
    # Without the table's own column the numbers of `rank` would be taken for names without suffix.
    with pytest.raises(UserError, match=r"no rows for 11\.png in column file_name"):
        opened(ages, condition_table=path, conditions=("age",))
    table(path, "file_name,age", *(f"{n}.png,{n}" for n in range(12)))
    with pytest.raises(UserError, match=r"file_name of a row is '0\.png'; expected numbers"):
        opened(ages, condition_table=path, conditions=("file_name",), condition_order="names")
