"""Checks the nodes of a job before its ranks start, and names those that are broken or slow, in a few seconds.

hvdgan.launch calls check(), which runs this module once on every node. TensorFlow and Horovod are not imported: they
take long, and wait for a broken node. An all-reduce would take as long on every rank, so each node sends to the next
one instead, which shows whose network is slow.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import queue
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from hvdgan import __version__
from hvdgan.cli.errors import in_one_line
from hvdgan.cli.hosts import address_of, addresses, name_without_address
from hvdgan.cli.programs import output_of

_START_SECONDS = 60.0  # Python may load slowly from a shared disk
_CONNECT_SECONDS, _LINK_SECONDS = 5.0, 20.0
_LINKS = 16  # nodes that each node connects to; with more nodes there are not all pairs
_BYTES = 4 * 2**20  # sent to the next node
_WIDTH = 512  # of the matrices
_TIMES = 3  # of which the fastest counts
_SKEW_SECONDS = 1.0
_SLOW_PRODUCT, _SLOW_LINK = 1.5, 3.0  # times as long as on the median node
_LEAST_SECONDS = 0.02  # differences below are noise
_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "horovod", "numpy")
_NO_REASON = re.compile(
    r"srun: (error: .*Exited with exit code|launch|Terminating|Job step aborted)|slurmstepd: error: \*"
)


class Nodes(NamedTuple):
    """Faults of nodes by name: on `broken` ones a run would fail; on `doubtful` ones it may be slow, or fail."""

    broken: dict[str, str]
    doubtful: dict[str, str]


def check(
    words_of: Callable[[str], Sequence[str]], nodes: Sequence[str], run_dir: Path, *, interfaces: str = ""
) -> Nodes:
    """Run this module on every node, and compare what the nodes find.

    Args:
        words_of: the words that start Python on a node.
        nodes: names of the nodes, by which they should find each other.
        run_dir: run folder, which need not exist.
        interfaces: network interfaces that Gloo is to use, comma-separated; empty: any.
    """
    existing = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.is_dir())
    faults: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".preflight-", dir=existing))
        except OSError:
            folder = ""  # the ranks will say that they cannot write there
        module = ["-m", __name__, folder, interfaces]
        answers = stack.enter_context(_Answers({node: [*words_of(node), *module] for node in nodes}))
        answers.wait_for("port", _START_SECONDS)
        for node, facts in answers.facts.items():
            if "port" not in facts:
                faults[node] = (
                    facts.get("said") or f"no answer in {_START_SECONDS:g} s while {facts.get('doing', 'starting')}"
                )
            elif facts["problem"]:
                faults[node] = facts["problem"]
        faults = {**_other_versions(answers.facts), **faults}
        healthy = {node: facts for node, facts in answers.facts.items() if node not in faults}
        sent = answers.send([(node, facts["addresses"], facts["port"]) for node, facts in healthy.items()])
        answers.wait_for("links", _LINK_SECONDS, healthy)
    faults |= {node: f"no answer in {_LINK_SECONDS:g} s" for node, facts in healthy.items() if "links" not in facts}
    doubtful = _slow(healthy)
    for node, facts in healthy.items():
        doubt = abs(facts.get("heard", sent) - sent) / 2
        ahead = facts.get("time", sent) - sent - doubt
        if abs(ahead) - doubt > _SKEW_SECONDS:
            doubtful[node] = f"its clock is {ahead:+,.1f} s off: run NTP, because logs and munge depend on it"
    faults.update(_unconnected(healthy, doubtful))
    if 2 * len(faults) > len(nodes):  # this is no fault of a node, and the ranks may manage
        return Nodes({}, doubtful | faults)
    return Nodes(faults, doubtful)


class _Answers:
    """The processes on the nodes, and the facts that each has said so far."""

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        self.facts: dict[str, dict[str, Any]] = {node: {} for node in commands}
        self._commands = commands
        self._lines: queue.Queue[tuple[str, str, float]] = queue.Queue()
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> "_Answers":
        for node, command in self._commands.items():
            try:
                self._processes[node] = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                )
            except OSError as error:
                self.facts[node]["said"] = f"{command[0]}: {error.strerror}"
            else:
                threading.Thread(target=self._read, args=(node,), daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()  # the end for its process
        end = time.monotonic() + 2.0
        for process in self._processes.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # srun ends what it has started

    def _read(self, node: str) -> None:
        stdout = self._processes[node].stdout
        assert stdout is not None
        for line in stdout:
            self._lines.put((node, line, time.time()))
        self._lines.put((node, "", 0.0))

    def send(self, places: Sequence[tuple[str, list[str], int]]) -> float:
        """Send to each of these nodes its own name and all places; returns the time."""
        for node, *_ in places:
            with contextlib.suppress(OSError):
                print(json.dumps([node, places]), file=self._processes[node].stdin, flush=True)
        return time.time()

    def wait_for(self, fact: str, seconds: float, nodes: Collection[str] | None = None) -> None:
        """Wait until every node has said a fact, or has ended."""
        end, waiting = time.monotonic() + seconds, {*(self._processes if nodes is None else nodes)}
        while waiting:
            try:
                node, line, heard = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return
            if not line:
                waiting.discard(node)
            elif line.startswith('{"'):
                said = json.loads(line)
                self.facts[node] |= said | ({"heard": heard} if "time" in said else {})
                if fact in said:
                    waiting.discard(node)
            elif line.strip() and not _NO_REASON.match(line):
                self.facts[node]["said"] = line.strip()[:240]


def _other_versions(everyones: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The nodes that have another Python or other packages than most."""
    versions = {node: facts["versions"] for node, facts in everyones.items() if "versions" in facts}
    found: dict[str, str] = {}
    for name in next(iter(versions.values()), {}):
        usual, times = Counter(each[name] for each in versions.values()).most_common(1)[0]
        if 2 * times > len(versions):
            others = {node: each[name] for node, each in versions.items() if each[name] != usual}
            found |= {node: f"it has {name} {version}, the others have {usual}" for node, version in others.items()}
    return found


def _slow(everyones: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The nodes that are slower than the median node; with two nodes there is none."""
    names = [node for node, facts in everyones.items() if "links" in facts]
    found: dict[str, str] = {}
    if len(names) < 3:
        return found
    # A slow node delays what it sends and what it receives, its neighbours one of the two.
    sent = [everyones[node]["sent"] or float("inf") for node in names]
    links = [min(sent[place], sent[place - 1]) for place in range(len(names))]
    products = [everyones[node]["product"] for node in names]
    for what, seconds, factor in (
        (f"to send {_BYTES >> 20} MiB", links, _SLOW_LINK),
        ("a product of matrices", products, _SLOW_PRODUCT),
    ):
        usual = statistics.median(seconds)
        for node, mine in zip(names, seconds, strict=True):
            if mine > factor * usual and mine - usual > _LEAST_SECONDS:
                found[node] = f"{what} takes {mine:.3f} s, on the median node {usual:.3f} s"
    return found


def _unconnected(everyones: Mapping[str, Mapping[str, Any]], doubtful: dict[str, str]) -> dict[str, str]:
    """The nodes that most others cannot reach; adds to `doubtful` those that some cannot reach, or know by name."""
    pairs: dict[frozenset[str], str] = {}  # with the problem of each; empty: there is none
    for node, facts in everyones.items():
        for other, problem in facts.get("links", {}).items():
            pairs[frozenset((node, other))] = problem or pairs.get(frozenset((node, other)), "")
        for other in facts.get("nameless", ()):
            doubtful[node] = f"it finds no address for the name {other} (DNS or /etc/hosts)"
    found: dict[str, str] = {}
    while bad := {pair for pair, problem in pairs.items() if problem}:
        worst = max(reversed([*everyones]), key=lambda node: sum(node in pair for pair in bad))
        mine = [pair for pair in pairs if worst in pair]
        times = sum(pair in bad for pair in mine)
        first = next(pair for pair in mine if pair in bad)
        reason = f"no connection between {' and '.join(sorted(first))}: {pairs[first]}; does a firewall block it?"
        (found if times > 1 and 2 * times > len(mine) else doubtful)[worst] = reason
        pairs = {pair: problem for pair, problem in pairs.items() if worst not in pair}
    return found


def main(folder: str, interfaces: str) -> None:
    """Check this node; every line of the output is a JSON object with facts, and stdin brings the other nodes."""
    with socket.create_server(("", 0), backlog=1024) as server:
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        named = [address for name in filter(None, interfaces.split(",")) if (address := address_of(name))]
        _say(doing=f"writing into {folder}")
        problem = _problem_of_folder(folder) or _problem_of_gpus()
        if interfaces and not named:
            problem = f"it has no network interface {interfaces} with an address"
        if name := name_without_address():
            problem = f"its own name has no address: {name}; add it to /etc/hosts"
        _say(doing="multiplying matrices", versions=_versions())
        product = _product()
        _say(port=server.getsockname()[1], addresses=named or addresses(), problem=problem, product=product)
        if line := sys.stdin.readline():  # none comes where this node is not needed
            _say(time=time.time())
            _say(**_links(*json.loads(line), by_name=not named))
            sys.stdin.read()


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _versions() -> dict[str, str | None]:
    found = {"Python": platform.python_version(), "hvdgan": __version__}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return {name: found.get(name) for name in ("Python", "hvdgan", *_PACKAGES)}


def _problem_of_folder(folder: str) -> str:
    if folder and not os.path.isdir(folder):
        return f"it does not see {os.path.dirname(folder)} as the first node does: is a file system not mounted?"
    try:
        with tempfile.TemporaryFile(dir=folder or None) as file:
            file.write(os.urandom(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"it cannot write into {os.path.dirname(folder)}: {error.strerror}"
    return ""


def _problem_of_gpus() -> str:
    allotted = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if not allotted.isdecimal() or shutil.which("nvidia-smi") is None:
        return ""
    shown = len(re.findall(r"^(?:GPU|\s+MIG) ", output_of(["nvidia-smi", "-L"]), re.M))
    return f"nvidia-smi shows {shown} of its {allotted} GPUs" if shown < int(allotted) else ""


def _product() -> float:
    """Seconds of a product of matrices, on the cores of this process."""
    import numpy as np

    values = np.ones((_WIDTH, _WIDTH), np.float32)
    return min(_seconds(lambda: values @ values) for _ in range(_TIMES))


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _serve(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_receive, args=(connection,), daemon=True).start()


def _receive(connection: socket.socket) -> None:
    """Confirm each _BYTES that arrive."""
    left = _BYTES
    with contextlib.suppress(OSError), connection:
        while some := connection.recv(min(left, 2**18)):
            left -= len(some)
            if not left:
                connection.sendall(b"+")
                left = _BYTES


def _links(me: str, others: Sequence[tuple[str, list[str], int]], *, by_name: bool) -> dict[str, Any]:
    """Connect to the nodes that follow this one, and send to the next."""
    place = [name for name, _, _ in others].index(me)
    following = [*others[place + 1 :], *others[:place]][:_LINKS]
    with ThreadPoolExecutor(_LINKS) as pool:
        found = [*pool.map(lambda other: _connected(*other, by_name=by_name), following)]
    sockets = [each if isinstance(each, socket.socket) else None for each, _ in found]
    links = {
        name: "" if link else str(each) for (name, *_), (each, _), link in zip(following, found, sockets, strict=True)
    }
    nameless = [name for (name, *_), (_, is_nameless) in zip(following, found, strict=True) if is_nameless]
    sent = None
    if sockets and (link := sockets[0]):
        with contextlib.suppress(OSError):
            sent = min(_seconds(lambda: _send(link)) for _ in range(_TIMES))
    return {"links": links, "nameless": nameless, "sent": sent}


def _connected(name: str, known: list[str], port: int, *, by_name: bool) -> tuple[socket.socket | str, bool]:
    """A connection to a node, or why there is none; and whether its name has no address here."""
    is_nameless, candidates = False, known
    if by_name:
        try:
            socket.getaddrinfo(name, port)
            candidates = [name]
        except OSError:
            is_nameless = True
    problem = "it has no address"
    for candidate in candidates:
        try:
            return socket.create_connection((candidate, port), _CONNECT_SECONDS), is_nameless
        except OSError as error:
            problem = f"{candidate}: {in_one_line(error)}"
    return problem, is_nameless


def _send(link: socket.socket) -> None:
    link.sendall(bytes(_BYTES))
    link.recv(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
