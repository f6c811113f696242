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
# A node that says made-up facts.
SAYS = """
echo '{{"versions": {{}}, "addresses": [], "port": 1, "problem": "", "product": {product}}}'; read -r places
echo '{{"links": {{}}, "nameless": [], "sent": {sent}, "time": '$(date +%s.%N)'}}'; read -r end
"""
# Its work is six times as much; its kernel sends slowly, and receives by four KiB (SO_MAX_PACING_RATE, SO_RCVBUF).
WORKS = "real = preflight._seconds; preflight._seconds = lambda work: real(lambda: [work() for _ in range(6)])"
NETWORK = (
    "preflight._Receiver.setup = lambda self: self.request.setsockopt(1, 8, 4096); send = preflight._send; "
    "preflight._send = lambda link: (link.setsockopt(1, 47, 20_000_000), send(link))"
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
        (CHANGED.format("preflight._product = lambda: time.sleep(60)"), "no answer in 15 s while multiplying matrices"),
    ],
)
def test_a_broken_node_is_named_with_the_reason(checked, monkeypatch, script, reason):
    if reason.startswith("no answer in 15 s"):  # the others wait as long as ever for a busy machine
        monkeypatch.setattr(preflight, "_START_SECONDS", 15.0)
    broken, _ = checked(script)
    assert broken.keys() == {BAD} and reason in broken[BAD]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (WORKS, "a product of matrices takes "),
        (NETWORK, "a message of 64 MiB to the next node takes "),
        ("now = time.time; time.time = lambda: now() + 3600", "its clock is +3,600.0 s off: run NTP"),
    ],
)
def test_a_slow_node_is_doubtful(checked, change, reason):
    broken, doubtful = checked(CHANGED.format(change))
    assert not broken and reason in doubtful.get(BAD, "")


@pytest.mark.parametrize(
    ("products", "sent", "named"),
    [
        ([0.18, 0.28, 0.2, 0.2], [0.05] * 4, {}),  # 1.4 times the median is noise
        ([0.18, 0.31, 0.2, 0.2], [0.05] * 4, {1: "a product of matrices takes 0.310 s, on the median node 0.200 s"}),
        ([0.2] * 4, [0.014, 0.014, 0.005, 0.005], {}),  # 2.8 times
        (
            [0.2] * 4,
            [0.016, 0.016, 0.005, 0.005],  # the first and the second node send slowly, so the second receives slowly
            {1: "a message of 64 MiB to the next node takes 0.016 s, on the median node 0.005 s"},
        ),
        ([0.2] * 4, [0.016, 0.005, 0.005, 0.005], {}),  # one link may be either node's, so it names none
        ([0.2] * 5, [0.0, 0.0, 0.05, 0.05, 0.0], {}),  # what could not be sent is no time
        ([0.2, 0.9], [0.01, 0.9], {}),  # of two nodes neither is the median
    ],
)
def test_how_slow_a_doubtful_node_is(tmp_path, products, sent, named):
    facts = dict(zip(map(str, range(len(sent))), zip(products, sent, strict=True), strict=True))
    says = lambda node: ["sh", "-c", SAYS.format(product=facts[node][0], sent=facts[node][1])]  # noqa: E731
    assert check(says, [*facts], tmp_path) == ({}, {str(place): reason for place, reason in named.items()})


def test_a_name_without_an_address(tmp_path):
    nodes = [*NODES, "node9.invalid"]
    broken, doubtful = check(lambda node: [sys.executable], nodes, tmp_path)
    assert not broken  # it is found by its address
    assert "it finds no address for the name node9.invalid (DNS or /etc/hosts)" in doubtful.values()


def test_a_fault_of_most_nodes_is_none_of_a_node(tmp_path):
    start = lambda node: ["/nowhere/python" if node in NODES[1:] else sys.executable]  # noqa: E731
    broken, doubtful = check(start, NODES, tmp_path)
    assert not broken and doubtful.keys() == {*NODES[1:]}
