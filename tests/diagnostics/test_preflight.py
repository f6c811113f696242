"""The check of a job's nodes: real processes, each at an address of this host, of which one is broken or slow."""

import shlex
import sys

import pytest

from hvdgan.diagnostics import preflight
from hvdgan.diagnostics.preflight import check

NODES = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
BAD = NODES[1]
PYTHON = shlex.quote(sys.executable)
MAIN = f"exec {PYTHON} -m hvdgan.diagnostics.preflight"
# A node whose module is changed before it runs.
CHANGED = (
    f"exec {PYTHON} -c 'import sys, time; from hvdgan.diagnostics import preflight; {{}}; "
    'preflight.main(*sys.argv[3:])\' "$@"'
)
SHOWS_3 = "for n in 0 1 2; do echo GPU $n: H100; done"


@pytest.fixture
def checked(tmp_path):
    """Check three nodes, of which the second runs a shell script; nothing may be left in the run folder."""

    def run(script):
        (tmp_path / "node.sh").write_text(script)
        (tmp_path / "runs").mkdir()
        bad = ["sh", tmp_path / "node.sh"]
        found = check(lambda node: bad if node == BAD else [sys.executable], NODES, tmp_path / "runs" / "run")
        assert list((tmp_path / "runs").iterdir()) == []
        return found

    return run


def test_healthy_nodes(checked):
    assert not checked(f'exec {PYTHON} "$@"')[0]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('exec /nowhere/bin/python "$@"', "/nowhere/bin/python: not found"),
        (f'cd / && exec {PYTHON} -P -c "import no_such_package"', "No module named 'no_such_package'"),
        (f"{MAIN} /nowhere/.preflight-x", "it does not see /nowhere as the first node does: is a file system not"),
        (f"{MAIN} /proc/self", "it cannot write into /proc: "),
        (
            f'mkdir "$0.d" "$0.d/keras-2.0.dist-info" && echo "Version: 2.0" >"$0.d/keras-2.0.dist-info/METADATA" && '
            f'PYTHONPATH="$0.d:$PYTHONPATH" exec {PYTHON} "$@"',
            "it has keras 2.0, the others have ",
        ),
        (
            f'mkdir "$0.d" && printf "#!/bin/sh\\n{SHOWS_3}" >"$0.d/nvidia-smi" && chmod +x "$0.d/nvidia-smi" && '
            f'SLURM_GPUS_ON_NODE=4 PATH="$0.d:$PATH" exec {PYTHON} "$@"',
            "nvidia-smi shows 3 of its 4 GPUs",
        ),
        (CHANGED.format("preflight._product = lambda: time.sleep(60)"), "no answer in 8 s while multiplying matrices"),
    ],
)
def test_a_broken_node_is_named_with_the_reason(checked, monkeypatch, script, reason):
    monkeypatch.setattr(preflight, "_START_SECONDS", 8.0)
    broken, _ = checked(script)
    assert broken.keys() == {BAD} and reason in broken[BAD]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("preflight._product = lambda: 9.0", "a product of matrices takes 9.000 s, on the median node 0."),
        ("now = time.time; time.time = lambda: now() + 3600", "its clock is +3,600.0 s off: run NTP"),
        ("preflight._send = lambda link: time.sleep(0.5)", ""),  # its next node is fast, so one of the two links is
    ],
)
def test_a_slow_node_is_doubtful(checked, change, reason):
    broken, doubtful = checked(CHANGED.format(change))
    assert not broken and reason in doubtful.get(BAD, "")


def test_a_name_without_an_address(tmp_path):
    nodes = [*NODES, "node9.invalid"]
    broken, doubtful = check(lambda node: [sys.executable], nodes, tmp_path)
    assert not broken  # it is found by its address
    assert "it finds no address for the name node9.invalid (DNS or /etc/hosts)" in doubtful.values()


def test_a_fault_of_most_nodes_is_none_of_a_node(tmp_path):
    start = lambda node: ["/nowhere/python" if node in NODES[1:] else sys.executable]  # noqa: E731
    broken, doubtful = check(start, NODES, tmp_path)
    assert not broken and doubtful.keys() == {*NODES[1:]}
