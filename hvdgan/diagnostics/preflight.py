"""Checks the nodes of a job before its ranks start, and names those that are broken or slow, in a few seconds.

hvdgan.launch calls check(), which runs this module once on every node. TensorFlow and Horovod are not imported: they
take long, and wait for a broken node. An all-reduce would take as long on every rank, so each node sends to the next
one instead, which shows whose network is slow.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import socketserver
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from hvdgan import __version__
from hvdgan.errors import in_one_line
from hvdgan.launching.hosts import addresses, name_without_address
from hvdgan.launching.programs import output_of

_START_SECONDS = 60.0  # Python may load slowly from a shared disk
_CONNECT_SECONDS, _LINK_SECONDS = 5.0, 20.0
_SEND_SECONDS = 2.0  # a slower message is given up, and counts as if it took that long
_LINKS = 16  # nodes that each node connects to; with more nodes there are not all pairs
_BYTES = 64 * 2**20  # sent to the next node
_SKEW_SECONDS = 1.0
_SLOW = {"product of matrices": 1.5, "message of 64 MiB to the next node": 3.0}  # times the median's
_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "horovod", "numpy")
_NO_REASON = re.compile(
    r"srun: (error: .*Exited with exit code|launch|Terminating|Job step)|slurmstepd: error: \*|\s*$"
)
Facts = Mapping[str, dict[str, Any]]
"""what each node has said of itself"""


class Nodes(NamedTuple):
    """Faults of nodes by name: on `broken` ones a run would fail; on `doubtful` ones it may be slow, or fail."""

    broken: dict[str, str]
    doubtful: dict[str, str]


def check(words_of: Callable[[str], Sequence[str]], nodes: Sequence[str], run_dir: Path) -> Nodes:
    """Run this module on every node, by the words that start Python there, and compare what the nodes find."""
    existing = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.is_dir())
    with contextlib.ExitStack() as stack:
        folder = ""
        with contextlib.suppress(OSError):  # the ranks will say that they cannot write there
            files = tempfile.TemporaryDirectory(prefix=".preflight-", dir=existing, ignore_cleanup_errors=True)
            folder = stack.enter_context(files)
        asked = [_Node(node, [*words_of(node), "-m", __name__, folder]) for node in nodes]
        broken = asyncio.run(_ask(asked))
    healthy = {each.name: each.facts for each in asked if each.name not in broken}
    doubtful = _slow(healthy)
    for node, facts in healthy.items():
        if abs(ahead := facts["ahead"]) > _SKEW_SECONDS:
            doubtful[node] = f"its clock is {ahead:+,.1f} s off: run NTP, because logs and munge depend on it"
    broken |= _unconnected(healthy, doubtful)
    if 2 * len(broken) > len(nodes):  # this is no fault of a node, and the ranks may manage
        return Nodes({}, doubtful | broken)
    return Nodes(broken, doubtful)


class _Node:
    """A node, and the facts that its process has said so far."""

    def __init__(self, name: str, words: list[str]) -> None:
        self.name, self._words, self.facts = name, words, dict[str, Any]()

    async def start(self) -> None:
        """Start its process, and wait until it has checked itself."""
        pipe, out = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        words = ["sh", "-c", 'exec "$@"', "sh", *self._words]  # the shell says what cannot be started
        self._process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=out)
        await self._wait_for("port", _START_SECONDS)

    async def connect(self, places: Sequence[tuple[str, list[str], int]]) -> None:
        """Tell it the places of all nodes, and wait until it has connected to others."""
        assert self._process.stdin is not None
        sent = time.time()
        self._process.stdin.write(f"{json.dumps([self.name, places])}\n".encode())
        await self._wait_for("time", _LINK_SECONDS)
        # An answer that takes long is no clock that is off.
        waited = (time.time() - sent) / 2
        ahead = self.facts.get("time", sent) - sent - waited
        self.facts["ahead"] = 0.0 if abs(ahead) < waited else ahead
        await self._wait_for("links", _LINK_SECONDS)

    async def end(self) -> None:
        """End its process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 2.0)
        except TimeoutError:
            self._process.kill()  # srun ends what it has started
            await self._process.wait()

    async def _wait_for(self, fact: str, seconds: float) -> None:
        """Read until it has said a fact, has ended, or does not answer."""
        assert self._process.stdout is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while fact not in self.facts and (read := await self._process.stdout.readline()):
                    line = read.decode(errors="replace")
                    if line.startswith('{"'):
                        self.facts |= json.loads(line)
                    elif not _NO_REASON.match(line):
                        self.facts["said"] = line.strip()[:240]


async def _ask(nodes: Sequence[_Node]) -> dict[str, str]:
    """Let all nodes check themselves, then each other; returns what is wrong with single ones."""
    broken = {}
    await asyncio.gather(*(node.start() for node in nodes))
    for node in nodes:
        silent = f"no answer in {_START_SECONDS:g} s while {node.facts.get('doing', 'starting')}"
        if problem := node.facts["problem"] if "port" in node.facts else node.facts.get("said", silent):
            broken[node.name] = problem
    broken = _other_versions({node.name: node.facts for node in nodes}) | broken
    healthy = [node for node in nodes if node.name not in broken]
    places = [(node.name, node.facts["addresses"], node.facts["port"]) for node in healthy]
    await asyncio.gather(*(node.connect(places) for node in healthy))
    await asyncio.gather(*(node.end() for node in nodes))
    return broken | {node.name: f"no answer in {_LINK_SECONDS:g} s" for node in healthy if "links" not in node.facts}


def _other_versions(everyones: Facts) -> dict[str, str]:
    """The nodes that have another Python or other packages than most."""
    versions = {node: facts["versions"] for node, facts in everyones.items() if "versions" in facts}
    found: dict[str, str] = {}
    for name in next(iter(versions.values()), {}):
        usual, times = Counter(each[name] for each in versions.values()).most_common(1)[0]
        for node, each in versions.items():
            if each[name] != usual and 2 * times > len(versions):
                found[node] = f"it has {name} {each[name]}, the others have {usual}"
    return found


def _slow(everyones: Facts) -> dict[str, str]:
    """The nodes that are slower than the median node; with two nodes there is none."""
    found: dict[str, str] = {}
    sent = [facts["sent"] for facts in everyones.values()]
    # A slow node delays what it sends and what it receives, its neighbours one of the two.
    links = [min(sent[place], sent[place - 1]) for place in range(len(sent))]
    products = [facts["product"] for facts in everyones.values()]
    for (what, factor), seconds in zip(_SLOW.items(), (products, links), strict=True):
        usual = statistics.median([each for each in seconds if each] or [0.0])  # 0: it could not be sent
        for node, mine in zip(everyones, seconds, strict=True):
            if len(everyones) > 2 and mine > factor * usual:
                found.setdefault(node, f"a {what} takes {mine:.3f} s, on the median node {usual:.3f} s")
    return found


def _unconnected(everyones: Facts, doubtful: dict[str, str]) -> dict[str, str]:
    """The nodes that most others cannot reach; adds to `doubtful` those that some cannot reach, or know by name."""
    pairs: dict[frozenset[str], str] = {}  # with the problem of each; empty: there is none
    for node, facts in everyones.items():
        for other, problem in facts["links"].items():
            pairs[frozenset((node, other))] = problem or pairs.get(frozenset((node, other)), "")
        for other in facts["nameless"]:
            doubtful[node] = f"it finds no address for the name {other} (DNS or /etc/hosts)"
    found: dict[str, str] = {}
    while bad := [pair for pair, problem in pairs.items() if problem]:
        worst = max(reversed([*everyones]), key=lambda node: sum(node in pair for pair in bad))
        mine = [pair for pair in bad if worst in pair]
        reason = f"no connection between {' and '.join(sorted(mine[0]))}: {pairs[mine[0]]}; does a firewall block it?"
        is_cut_off = len(mine) > 1 and 2 * len(mine) > sum(worst in pair for pair in pairs)
        (found if is_cut_off else doubtful)[worst] = reason
        pairs = {pair: problem for pair, problem in pairs.items() if worst not in pair}
    return found


def main(folder: str) -> None:
    """Check this node; every line of the output is a JSON object with facts, and stdin brings the other nodes."""
    _say(doing=f"writing into {folder}")
    problem = _problem(folder)
    _say(doing="multiplying matrices", versions=_versions())
    product = _product()
    with socketserver.ThreadingTCPServer(("", 0), _Receiver) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _say(port=server.server_address[1], addresses=addresses(), problem=problem, product=product)
        if line := sys.stdin.readline():  # none comes where this node is not needed
            _say(time=time.time())
            _say(**_links(*json.loads(line)))
            sys.stdin.read()
        os._exit(0)


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"Python": platform.python_version(), "hvdgan": __version__}
    for name in _PACKAGES:
        found[name] = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _problem(folder: str) -> str:
    """What is wrong with this node; empty: nothing is."""
    if name := name_without_address():
        return f"its own name has no address: {name}; add it to /etc/hosts"
    if folder and not os.path.isdir(folder):
        return f"it does not see {os.path.dirname(folder)} as the first node does: is a file system not mounted?"
    try:
        with tempfile.TemporaryFile(dir=folder or None) as file:
            file.write(os.urandom(4096))
            os.fsync(file.fileno())
    except OSError as error:
        return f"it cannot write into {os.path.dirname(folder)}: {error.strerror}"
    allotted = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if allotted.isdecimal() and shutil.which("nvidia-smi"):
        shown = len(re.findall(r"^(?:GPU|\s+MIG) ", output_of(["nvidia-smi", "-L"]), re.M))
        return f"nvidia-smi shows {shown} of its {allotted} GPUs" if shown < int(allotted) else ""
    return ""


def _product() -> float:
    """Seconds of a product of matrices on one core: threads on several would wait for the one that is disturbed."""
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    import numpy as np

    values = np.ones((2048, 2048), np.float32)
    return _seconds(lambda: values @ values)


def _seconds(work: Callable[[], object]) -> float:
    """The shortest of three times, or of those that begin within a second."""
    times = list[float]()
    while len(times) < 3 and sum(times) < 1.0:
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


class _Receiver(socketserver.BaseRequestHandler):
    """Confirms each _BYTES that arrive."""

    def handle(self) -> None:
        left, some = _BYTES, bytearray(2**20)
        while count := self.request.recv_into(some, min(left, len(some))):
            left = left - count or _BYTES
            if left == _BYTES:
                self.request.sendall(b"+")


def _links(me: str, others: Sequence[tuple[str, list[str], int]]) -> dict[str, Any]:
    """Connect to the nodes that follow this one, and send to the next."""
    place = [name for name, *_ in others].index(me)
    following = [*others[place + 1 :], *others[:place]][:_LINKS]
    nameless: list[str] = []

    def connected(other: tuple[str, list[str], int]) -> socket.socket | str:
        """A connection to a node, or why there is none."""
        name, known, port = other
        try:
            socket.getaddrinfo(name, port)
            known = [name]
        except OSError:
            nameless.append(name)
        problem = "it has no address"
        for address in known:
            try:
                return socket.create_connection((address, port), _CONNECT_SECONDS)
            except OSError as error:
                problem = f"{address}: {in_one_line(error)}"
        return problem

    with ThreadPoolExecutor(_LINKS) as pool:
        found = [*pool.map(connected, following)]
    sent, link = 0.0, next(iter(found), "")
    if isinstance(link, socket.socket):
        with contextlib.suppress(OSError):
            sent = _seconds(lambda: _send(link))
    links = {name: each if isinstance(each, str) else "" for (name, *_), each in zip(following, found, strict=True)}
    return {"links": links, "nameless": nameless, "sent": sent}


def _send(link: socket.socket) -> None:
    link.settimeout(_SEND_SECONDS)
    with contextlib.suppress(TimeoutError):
        link.sendall(bytes(_BYTES))
        link.recv(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
