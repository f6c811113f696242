"""A Slurm of two nodes on this machine, each in namespaces of its own, with ssh between them.

All of it lives in one namespace of processes: when its first process ends, also because the tests were killed, the
kernel ends the rest and takes the bridge, the namespaces and the mounts away. Only a folder in /var/tmp can be left.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from launching import ROOT, SECONDS, Done, environment, wait_until

HEAD = "head"
NODES = ["node1", "node2"]
ADDRESSES = {HEAD: "10.93.0.1", "node1": "10.93.0.11", "node2": "10.93.0.12"}
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL")
"""the states of a job that has ended"""
PYTHONPATH = os.pathsep.join(map(str, [ROOT, ROOT / "tests" / "support"]))
_PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
_PACKAGES |= {"sshd": "openssh-server", "ip": "iproute2"}
_NAMESPACES = ["--net", "--mount", "--uts", "--pid"]
_HOST = Path(__file__).with_name("host.sh")

_SLURM = """\
ClusterName=hvdgan
SlurmctldHost={head}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# How long a job that was requeued waits: until its credential of before has expired.
AuthInfo=socket={shared}/munge/socket,cred_expire=10
StateSaveLocation={shared}/state
SlurmctldPidFile={shared}/slurmctld.pid
SlurmdPidFile={shared}/%n/slurmd.pid
SlurmdSpoolDir={shared}/%n/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
UnkillableStepTimeout=10
MinJobAge=3600
SlurmdParameters=config_overrides
NodeName={nodes} CPUs=2 RealMemory=4000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

_SSHD = """\
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/key.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
"""

_SSH = """\
Host *
    IdentityFile /etc/ssh/key
    IdentitiesOnly yes
    GlobalKnownHostsFile /etc/ssh/known_hosts
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""


def install() -> None:
    """Install what Debian has of it and is missing, without starting any of its services."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [package for program, package in _PACKAGES.items() if not shutil.which(program, path=path)]
    assert os.geteuid() == 0, "the cluster tests need root: they make namespaces"
    if not missing:
        return
    assert shutil.which("apt-get"), f"the cluster tests need Debian, or these programs: {', '.join(_PACKAGES)}"
    # Debian starts what it installs, unless this script says no.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in ("update -qq", f"install -y -qq --no-install-recommends libpmix2 {' '.join(missing)}"):
            subprocess.run(["apt-get", *words.split()], env=quiet, check=True, stdout=subprocess.DEVNULL, timeout=250)
    finally:
        if ours:
            policy.unlink()


class Cluster:
    """Two nodes, a head, a folder that all of them see; after the `with` nothing of it is there."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._first: dict[str, psutil.Process] = {}
        self.shared = Path()
        """the folder; everything of the cluster is in it"""

    def __enter__(self) -> "Cluster":
        install()
        self.shared = Path(tempfile.mkdtemp(prefix="hvdgan-cluster-", dir="/var/tmp"))
        try:
            self._start()
        except BaseException as error:
            logs = {path.name: path.read_text(errors="replace")[-3000:] for path in self.shared.glob("*.log")}
            self.__exit__()
            raise AssertionError("\n".join(f"--- {name}\n{text}" for name, text in logs.items())) from error
        return self

    def __exit__(self, *exception: object) -> None:
        if HEAD in self._first:
            self._first[HEAD].kill()
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()
        shutil.rmtree(self.shared)

    def words(self, host: str, command: Sequence[str | Path], cwd: Path) -> list[str]:
        """The words that start a command on a host."""
        return ["nsenter", f"--target={self._first[host].pid}", *_NAMESPACES, f"--wdns={cwd}", *map(str, command)]

    def environment(self, **more: str) -> dict[str, str]:
        """What a user's shell has on the head."""
        settings = {"SLURM_CONF": str(self.shared / "slurm.conf"), "HOME": str(self.shared / "home"), **more}
        path = f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return environment(**{"PATH": path, "PYTHONPATH": PYTHONPATH, **settings})

    def run(
        self, command: Sequence[str | Path], cwd: Path | None = None, host: str = HEAD, seconds=SECONDS, **env
    ) -> Done:
        """Run a command on a host to its end; at the bound, end it with all that it has started there and fail."""
        process = self.start(command, cwd, host, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **env)
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.kill()
            stdout, stderr = process.communicate()
            raise AssertionError(f"{command} did not end in {seconds} s\n{stdout}\n{stderr}") from None
        finally:
            self._processes.remove(process)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def start(
        self, command: Sequence[str | Path], cwd: Path | None = None, host: str = HEAD, *, text=False, **more: Any
    ) -> subprocess.Popen:
        """Start a command on a host; what is still running at the end is killed."""
        streams = {name: more.pop(name) for name in ("stdout", "stderr") if name in more}
        settings = {"env": self.environment(**more), "stdin": subprocess.DEVNULL, "start_new_session": True, **streams}
        process = subprocess.Popen(self.words(host, command, cwd or self.shared), text=text, **settings)
        self._processes.append(process)
        return process

    def slurm(self, *command: str | Path, cwd: Path | None = None, **env: str) -> str:
        """What a command of Slurm's prints; it must succeed."""
        done = self.run(command, cwd, seconds=60, **env)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says of a job: JobState, Reason, Restarts, ExitCode, …"""
        words = self.slurm("scontrol", "show", "job", "-o", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def ended(self, number: str, seconds: float = SECONDS) -> dict[str, str]:
        """Wait for a job's end."""
        wait_until(lambda: self.job(number)["JobState"] in OVER, seconds, lambda: self.job(number), every=0.5)
        return self.job(number)

    def crash(self, node: str) -> None:
        """End a node as a power cut does: first nobody hears it any more, then it is gone."""
        self.cut_off(node)
        self._first[node].kill()
        # The kernel would take it away with the node's network, some time.
        self._in_network(HEAD, "ip", "link", "delete", f"to-{node}")
        for name in (f"{node}/ready", f"{node}.sshd.log"):
            (self.shared / name).unlink()

    def cut_off(self, node: str, *, ends: bool = False) -> None:
        """Let nobody reach a node, or end that."""
        self._in_network(HEAD, "ip", "link", "set", f"to-{node}", "up" if ends else "down")

    def boot(self, node: str) -> None:
        """Start a node, and with it its slurmd and sshd."""
        self._begin(node, self.words(HEAD, [], self.shared))
        self._plug_in(node)
        self._daemon(node, "sshd", "/usr/sbin/sshd", "-D", "-e")
        said = (self.shared / f"{node}.sshd.log").read_text
        wait_until(lambda: "listening" in said(), 30, said)
        self._daemon(node, "slurmd", "slurmd", "-D", "-N", node)

    def wait_idle(self) -> None:
        """Wait until all nodes can take a job."""
        idle, states = ["idle"] * len(NODES), ("sinfo", "-h", "-N", "-o", "%T")
        wait_until(lambda: self.slurm(*states).split() == idle, 90, lambda: self.slurm("sinfo", "-N", "-l"), every=0.5)

    def _start(self) -> None:
        self._write_settings()
        self._begin(HEAD, [])
        address = f"addr add {ADDRESSES[HEAD]}/24 dev eth0"
        for command in ("link add eth0 type bridge", address, "link set eth0 up"):
            self._in_network(HEAD, "ip", *command.split())
        munge = self.shared / "munge"
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        words = "setpriv --reuid=munge --regid=munge --clear-groups munged --foreground".split()
        self._daemon(HEAD, "munged", *words, *(f"--{flag}={munge / name}" for flag, name in files.items()))
        wait_until((munge / "socket").exists, 30, (self.shared / f"{HEAD}.munged.log").read_text)
        self._daemon(HEAD, "slurmctld", "slurmctld", "-D", "-c")
        for node in NODES:
            self.boot(node)
        wait_until(lambda: self.run(["scontrol", "ping"]).returncode == 0, 60, lambda: "slurmctld does not answer")
        self.wait_idle()

    def _daemon(self, host: str, name: str, *command: str) -> None:
        log = (self.shared / f"{host}.{name}.log").open("ab")
        self.start(command, host=host, stdout=log, stderr=log)

    def _write_settings(self) -> None:
        shared = self.shared
        shared.chmod(0o755)
        for name in ("home", "munge", "ssh", "state", HEAD, *NODES):
            (shared / name).mkdir()
        hosts = {"localhost": "127.0.0.1", **ADDRESSES}
        (shared / "hosts").write_text("".join(f"{address} {host}\n" for host, address in hosts.items()))
        settings = {"head": HEAD, "address": ADDRESSES[HEAD], "shared": shared, "nodes": ",".join(NODES)}
        (shared / "slurm.conf").write_text(_SLURM.format(**settings))
        key = shared / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for path in (key, key.parent):
            shutil.chown(path, "munge", "munge")
        ssh = shared / "ssh"
        for name in ("host_key", "key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", ssh / name]
            subprocess.run(words, check=True, timeout=60)
        (ssh / "known_hosts").write_text(f"* {(ssh / 'host_key.pub').read_text()}")
        (ssh / "ssh_config").write_text(_SSH)
        (ssh / "sshd_config").write_text(_SSHD)

    def _begin(self, host: str, inside: list[str]) -> None:
        """Start the first process of a host; those of the nodes are inside the head's namespace of processes."""
        outermost = ["setpriv", "--pdeathsig", "KILL"] if not inside else []
        namespaces = ["unshare", *_NAMESPACES, "--fork", "--kill-child"]
        log = (self.shared / f"{host}.log").open("ab")
        words = [*inside, *outermost, *namespaces, _HOST, host, self.shared, ROOT, sys.prefix]
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        process = subprocess.Popen(words, env=self.environment(), start_new_session=True, **streams)
        self._processes.append(process)
        wait_until((self.shared / host / "ready").exists, 60, lambda: (self.shared / f"{host}.log").read_text())
        family = psutil.Process(process.pid).children(recursive=True)
        (self._first[host],) = [one for one in family if one.cmdline()[:1] == ["bash"] and _is_first(one)]

    def _plug_in(self, node: str) -> None:
        pid = str(self._first[node].pid)
        wire = ["link", "add", f"to-{node}", "type", "veth", "peer", "name", "eth0", "netns", pid]
        self._in_network(HEAD, "ip", *wire)
        self._in_network(HEAD, "ip", "link", "set", f"to-{node}", "master", "eth0", "up")
        # The same at every boot: the others would look for it under the one before.
        card = f"02:00:00:00:00:{NODES.index(node):02x}"
        self._in_network(node, "ip", "addr", "add", f"{ADDRESSES[node]}/24", "dev", "eth0")
        self._in_network(node, "ip", "link", "set", "eth0", "address", card, "up")

    def _in_network(self, host: str, *command: str) -> None:
        # Of the network alone: ip is to read pids as this process does.
        words = ["nsenter", f"--target={self._first[host].pid}", "--net", *command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stderr}"


def _is_first(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("NSpid")).split()[-1] == "1"
