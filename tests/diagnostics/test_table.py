"""The verdict on several rows."""

from hvdgan.diagnostics.table import Row, worst


def test_the_worst_row_decides():
    rows = [Row("a", "b"), Row("a", "b", "warn"), Row("a", "b", "fail")]
    assert [worst(rows[:count]) for count in range(4)] == ["ok", "ok", "warn", "fail"]
