"""Starts hvdgan's commands as forks of processes that have imported TensorFlow, which saves most of a short run's time.

A fork is a process of its own, with the command's arguments, environment, folder, streams and CPU affinity. No server
has run an operation or started a thread when it forks. The commands run as under `python -m`, up to the interpreter's
end. Two servers differ in the order of their sets: adjacent ranks and adjacent commands use different ones.

A command starts as usual where its environment differs from the server's in anything that Python, TensorFlow or the
loader reads at the start. Tests of starting, of dying ranks and of clusters start all processes as usual.
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable

COMMANDS = ("train", "sample", "complete", "translate", "export", "evaluate", "bench", "verify", "doctor")
COMMANDS = (*(f"hvdgan.{name}" for name in COMMANDS), "hvdgan.diagnostics.trial", "hvdgan.inference.exported")
LAUNCHER = "horovodrun"
"""loads TensorFlow too, to ask for what Horovod was built"""
ADDRESS = "HVDGAN_TEST_SERVERS"
"""the variable that names the folder of the servers' sockets; a server that is missing is no error"""
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_UNBUFFERED = "PYTHONUNBUFFERED"
_BEGUN_WITH = dict(os.environ)
_servers: list[subprocess.Popen[bytes]] = []
_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "TF_", "KERAS_", "CUDA_", "OMP_", "MALLOC_")
_LATER = (_UNBUFFERED, "TF_NUM_")


def start_servers(environment: dict[str, str]) -> str:
    """Start two servers, which the kernel ends with this process; return the folder of their sockets."""
    folder = tempfile.mkdtemp(prefix="hvdgan-forks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number in range(2):
        words = ["setpriv", "--pdeathsig", "KILL", sys.executable, __file__, os.path.join(folder, str(number))]
        # The threads of NumPy's BLAS would be the only ones.
        settings = {"stdin": subprocess.DEVNULL, "env": {**environment, "OPENBLAS_NUM_THREADS": "1"}}
        _servers.append(subprocess.Popen(words, **settings))
    return folder


def ask(words: list[str]) -> None:
    """Let a server run this process's command, and end as it ended; return if no server can.

    Args:
        words: the command's module and its arguments, or `hvdgan`, the command's name and its arguments.
    """
    if os.path.basename(words[0]) == "hvdgan" and len(words) > 1:
        words = [f"hvdgan.{words[1]}", *words[2:]]
    if words[0] not in COMMANDS and os.path.basename(words[0]) != LAUNCHER:
        return
    rank = os.environ.get("HOROVOD_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.getpid()
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(os.path.join(os.environ[ADDRESS], str(int(rank) % 2)))
    except OSError:
        return
    cores = sorted(os.sched_getaffinity(0))
    request = {"words": words, "environment": dict(os.environ), "folder": os.getcwd(), "cores": cores}
    socket.send_fds(server, [b" "], [0, 1, 2])
    server.sendall(json.dumps(request).encode() + b"\n")
    with server.makefile("rb") as answers:
        fork = int(answers.readline() or 0)
        if not fork:
            return
        for number in _FORWARDED:
            signal.signal(number, lambda number, _: _kill(os.kill, fork, number))
        code = int(answers.readline() or -signal.SIGKILL)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _kill(kill: Callable[[int, int], None], fork: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended, or has no group of its own yet
        kill(fork, number)


def _at_start(environment: dict[str, str]) -> dict[str, str]:
    """The variables that are read at the start, except the one whose effect _become() has, and the hidden GPUs.

    TensorFlow reads its numbers of threads when it runs the first operation.
    """
    named = environment.items()
    found = {name: value for name, value in named if name.startswith(_AT_START) and not name.startswith(_LATER)}
    return {name: value for name, value in found.items() if (name, value) != ("CUDA_VISIBLE_DEVICES", "")}


def _serve(address: str) -> list[str]:
    """Fork for each request; returns in the forks alone, with the command's words."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the supervisors
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    while True:
        client, _ = listener.accept()
        _, streams, _, _ = socket.recv_fds(client, 1, 3)
        with client.makefile("rb") as lines:
            request = json.loads(lines.readline())
        if _at_start(request["environment"]) != _at_start(_BEGUN_WITH):
            client.sendall(b"0\n")
        elif not os.fork():
            listener.close()
            _supervise(client, streams)
            _become(request, streams)
            return request["words"]
        for stream in streams:
            os.close(stream)
        client.close()


def _supervise(client: socket.socket, streams: list[int]) -> None:
    """Fork once more, and return in the fork; this process tells the client its number and its end.

    A client that ends takes the fork along.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fork = os.fork()
    if not fork:
        client.close()
        return
    for stream in streams:
        os.close(stream)
    client.sendall(b"%d\n" % fork)
    ended = os.pidfd_open(fork)
    if ended not in select.select([ended, client], [], [])[0]:
        for kill in (os.kill, os.killpg):
            _kill(kill, fork, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    with contextlib.suppress(OSError):
        client.sendall(b"%d\n" % code)
    os._exit(0)


def _become(request: dict, streams: list[int]) -> None:
    """Turn this fork into the process that the client would have been."""
    os.setsid()
    threading.main_thread()._set_native_id()  # Python 3.11 keeps the server's, and the heartbeat reads it  # noqa: SLF001
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    by_imports = {name: value for name, value in os.environ.items() if _BEGUN_WITH.get(name) != value}
    os.environ.clear()
    os.environ.update({**request["environment"], **(by_imports if request["words"][0] in COMMANDS else {})})
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    unbuffered = _UNBUFFERED in os.environ
    # The server's objects remember what kind of file their streams were.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=unbuffered)
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)
    sys.stderr.reconfigure(line_buffering=True, write_through=unbuffered)


if __name__ == "__main__":
    from hvdgan.cli import start

    start.begin("__main__")
    for name in (*COMMANDS, "horovod.tensorflow", "horovod.runner.launch"):
        importlib.import_module(name)
    for name in COMMANDS:
        del sys.modules[name]  # each fork runs it again, as __main__
    start.imported()
    words = _serve(sys.argv[1])
    sys.argv[:] = words
    if words[0] in COMMANDS:
        sys.path[0] = os.getcwd()
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(words[0])
        runpy.run_path(words[0], run_name="__main__")
