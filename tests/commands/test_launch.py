"""hvdgan launch and the scripts of launch/: their commands are shown by fake launchers, and some runs are real.
Modules: launching.starters"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys

import psutil
import pytest

from jobs import last_step
from launching import EACH_CONTROLLER, ROOT, SECONDS, run, started, wait_until
from machine import Machine
from messages import refused
from saved import latest

LAUNCH = [sys.executable, "-m", "hvdgan.launch"]
SCRIPTS = {"single_node.sh": [], "multi_node.sh": [], "mpirun.sh": ["--mpi"], "elastic.sh": ["--elastic"]}
TRAIN = [sys.executable, "-m", "hvdgan.train"]
# Keeps what a launcher is called with; then it does what a test asks for.
PRETENDED = 'note "$0" "$@"; env -0 >"$HVDGAN_NOTES.variables"; eval "$HVDGAN_ACTS"'
HOROVODRUN = "import os, sys\nos.execvp('pretended', ['pretended', *sys.argv[1:]])\n"
VERSIONS = {
    "Open MPI 4.1.4": "echo 'mpirun (Open MPI) 4.1.4'; echo; echo 'Report bugs to http://www.open-mpi.org'",
    "Open MPI 5.0.11": "echo 'mpirun (Open MPI) 5.0.11'",
    "MPICH 4.2.0": "echo 'HYDRA build details:'; echo '    Version:                                 4.2.0'",
    "Intel MPI 2021.1": "echo 'Intel(R) MPI Library for Linux* OS, Version 2021.1 Build 2020'",
    "broken": "echo 'mpirun: error while loading shared libraries' >&2; exit 127",
}
BUILDS = {"both": b"N4gloo libmpi.so.40", "gloo": b"N4gloo", "mpi": b"libmpi.so.40"}
AWKWARD = ["--run-dir", "a folder/it's", "--recipe", "x:Y", "--note", "", "*", "$HOME"]


class Launchers(Machine):
    """Pretended launchers in front of the real tools, and a pretended Horovod."""

    def __init__(self, folder):
        super().__init__(folder)
        self.horovod = folder / "fake" / "horovod"
        for path in (self.horovod / "runner", self.horovod / "tensorflow"):
            path.mkdir(parents=True)
        for path in (self.horovod / "__init__.py", self.horovod / "runner" / "__init__.py"):
            path.touch()
        (self.horovod / "runner" / "launch.py").write_text(HOROVODRUN)
        self.has(**{"pretended": PRETENDED, "nvidia-smi": "exit 9"})
        self.mpi("Open MPI 4.1.4")
        self.built("both")

    def built(self, build):
        (self.horovod / "tensorflow" / "mpi_lib.so").write_bytes(BUILDS[build])

    def mpi(self, flavour):
        self.has(mpirun=f'if [ "$*" = --version ]; then {VERSIONS[flavour]}; exit; fi\n{PRETENDED}')

    def environment(self, **more):
        env = super().environment(**{"HVDGAN_ACTS": "", "VIRTUAL_ENV": "/one", **more})
        return {**env, "PYTHONPATH": os.pathsep.join([str(self.horovod.parent), env["PYTHONPATH"]])}

    def launch(self, *words, **more):
        return self.run(*LAUNCH, *words, **more)

    def started(self, *words, **more):
        """The words and the environment with which the launcher is called."""
        done = self.launch(*words, **more)
        assert done.returncode == 0, done.stderr
        ((_, *found),) = self.called()
        # What it says is what it did.
        assert done.stderr.startswith("+ ") and shlex.split(done.stderr)[-len(found) :] == found
        pairs = (line.partition("=") for line in (self.folder / "notes.variables").read_text().split("\0")[:-1])
        return found, {name: value for name, _, value in pairs}

    def printed(self, *words, **more):
        """What --print prints, as words."""
        done = self.launch("--print", *words, **more)
        assert done.returncode == 0 and not self.called(), done.stderr
        found = shlex.split(done.stdout)
        return ["horovodrun", *found[3:]] if found[:3] == [sys.executable, "-m", "horovod.runner.launch"] else found

    def refused(self, *words, **more):
        """The one line of a command that starts nothing."""
        done = self.launch(*words, **more)
        assert done.returncode == 2 and not self.called() and not done.stdout, done.stderr
        assert done.stderr.startswith("hvdgan: ") and done.stderr.count("\n") == 1
        return done.stderr


@pytest.fixture
def machine(tmp_path):
    return Launchers(tmp_path)


def test_the_scripts_hand_over(machine):
    for script, flags in SCRIPTS.items():
        words = ["-np", "2", *(["-H", "a:1,b:1"] if script != "single_node.sh" else []), "--print", *AWKWARD]
        done = machine.run(ROOT / "launch" / script, *words)
        assert done.returncode == 0, done.stderr
        expected = machine.launch(*flags, *words).stdout
        assert shlex.split(done.stdout)[-len(AWKWARD) :] == AWKWARD
        assert done.stdout.replace("/python3 ", "/python ") == expected.replace("/python3 ", "/python ")
    machine.has(python=PRETENDED)
    done = machine.run(ROOT / "launch" / "local.sh", *AWKWARD)  # one process needs no launcher
    assert done.returncode == 0, done.stderr
    assert [words[1:] for words in machine.called()] == [["-m", "hvdgan.train", *AWKWARD]]


@pytest.mark.parametrize("way", ["--gloo", "--mpi"])
def test_a_command_gets_its_arguments_as_they_are(machine, way):
    assert machine.started(way, "-np", "3", *AWKWARD)[0][-11:] == [*TRAIN, *AWKWARD]
    assert machine.started(way, "-np", "3", "train", *AWKWARD)[0][-11:] == [*TRAIN, *AWKWARD]
    # Even words that would be the launcher's own.
    for words in (["doctor", "-np", "7", "--help"], ["-m", "hvdgan.doctor", "--", "-np", "7", "--help"]):
        assert machine.started(way, "-np", "3", *words)[0][-4:] == ["hvdgan.doctor", "-np", "7", "--help"]


def test_a_rank_for_each_gpu_or_core(machine):
    cores = str(len(os.sched_getaffinity(0)))
    assert machine.printed("--gloo")[:4] == ["horovodrun", "--gloo", "-np", cores]
    assert machine.printed("--gloo", OMP_NUM_THREADS="1")[3] == cores
    machine.has(**{"nvidia-smi": "for gpu in 0 1 2; do echo H100; done"})
    assert machine.printed("--gloo")[3] == "3"
    assert machine.printed("--gloo", CUDA_VISIBLE_DEVICES="0,2")[3] == "2"
    assert machine.printed("--gloo", CUDA_VISIBLE_DEVICES="")[3] == cores
    assert machine.printed("--mpi")[2:5] == ["3", "-H", "localhost:3"]


@pytest.mark.long
def test_ranks_meet_over_mpi_where_horovod_and_an_mpirun_are_made_for_it(machine):
    for build, flavour, chosen in (
        ("both", "Open MPI 4.1.4", "mpirun"),
        ("both", "MPICH 4.2.0", "mpirun"),
        ("both", "broken", "horovodrun"),
        ("both", "Intel MPI 2021.1", "horovodrun"),
        ("gloo", "Open MPI 4.1.4", "horovodrun"),
        ("mpi", "Open MPI 5.0.11", "mpirun"),
    ):
        machine.built(build)
        machine.mpi(flavour)
        assert machine.printed("-np", "2")[0] == machine.printed("-H", "a:2")[0] == chosen, (build, flavour)
        if build != "mpi":
            assert machine.printed("-H", "a:2", "--interface", "ib0")[0] == "horovodrun"


@pytest.mark.parametrize(
    ("words", "hosts", "ranks"),
    [
        (["-H", "node1:4,node2:3"], "node1:4,node2:3", "7"),
        (["--hosts=10.0.0.1,node-2.x", "--slots", "4"], "10.0.0.1:4,node-2.x:4", "8"),
        (["--hostfile", "hosts", "--slots", "3", "-np", "6"], "a:4,b:2,c:3", "6"),
    ],
)
def test_lists_of_hosts(machine, words, hosts, ranks):
    (machine.folder / "hosts").write_text("\ufeff# ours\r\n a slots=4\r\n\nb:2   # the old one\nc\n")
    expected = ["horovodrun", "--gloo", "-np", ranks, "-H", hosts, "--disable-cache"]
    assert machine.printed("--gloo", *words)[:7] == expected
    assert machine.printed("--mpi", *words)[1:5] == ["-np", ranks, "-H", hosts]
    if "-np" not in words:
        assert machine.launch(*words, "--list-hosts").stdout.split() == hosts.split(",")


def test_the_hosts_of_the_allocation(machine):
    machine.has(scontrol='[ "$*" = "show hostnames n[1-2,7]" ] && printf "n1\\nn2\\nn7\\n"')
    allocation = {"SLURM_JOB_NODELIST": "n[1-2,7]", "SLURM_JOB_ID": "5"}
    for tasks, hosts in {"4(x2),3": "n1:4,n2:4,n7:3", "1,2,3": "n1:1,n2:2,n7:3", "1": "n1:1,n2:1,n7:1"}.items():
        allocation["SLURM_TASKS_PER_NODE"] = tasks
        assert machine.printed("--gloo", **allocation)[4:6] == ["-H", hosts]
    # What the user names comes first; an elastic run leaves out hosts that Slurm reports as down or silent.
    assert machine.printed("--gloo", "-H", "other:2", **allocation)[4:6] == ["-H", "other:2"]
    machine.has(sinfo="printf 'n1 alloc\\nn2 down\\nn7 alloc*\\n'")
    assert machine.launch("--list-hosts", **allocation).stdout == "n1:1\n"
    words = ["-H", "a:1", "--interface", "ib0,eth0", "--ssh-port", "2222", "--ssh-identity", "/my key", "--gloo"]
    expected = ["--network-interfaces", "ib0,eth0", "--ssh-port", "2222", "--ssh-identity-file", "/my key"]
    assert machine.printed(*words)[7 : 7 + len(expected)] == expected


@pytest.mark.parametrize("way", ["--gloo", "--mpi"])
def test_ranks_on_other_hosts_get_what_they_need_and_no_secret(machine, way):
    """horovodrun puts all that it has on ssh's command line, and mpirun what -x names into the other host."""
    more = {"HOROVOD_X": "1", "NCCL_X": "a b", "SECRET_TOKEN": "x"}
    words, found = machine.started(way, "-H", "a:2,b:2", **more)
    names = {words[place + 1] for place, word in enumerate(words) if word == "-x"} if way == "--mpi" else set(found)
    assert {"PATH", "PYTHONPATH", "HOROVOD_X", "NCCL_X", "NCCL_DEBUG"} <= names and "SECRET_TOKEN" not in names
    _, found = machine.started(way, "-np", "2", **more)
    assert found["SECRET_TOKEN"] == "x"  # on this machine a rank has all that its user has


def test_an_elastic_run(machine):
    (machine.folder / "hosts").write_text("a:2\nb slots=2\n")
    words = ["--elastic", "--hostfile", "hosts", "--min-np", "2", "--max-np", "3"]
    found, variables = machine.started(*words, "--cooldown", "5,60", "--elastic-timeout", "9", "--recipe", "dcgan")
    assert found[:8] == ["--gloo", "-np", "3", "--min-np", "2", "--max-np", "3", "--blacklist-cooldown-range"]
    assert found[8:11] == ["5", "60", "--host-discovery-script"] and "--elastic-timeout 9" in " ".join(found)
    assert machine.run("sh", "-c", found[11], cwd=machine.bin).stdout == "a:2\nb:2\n"
    assert variables["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "120"
    assert variables["PATH"].split(os.pathsep)[0].rpartition("/")[2].startswith("hvdgan-launch-")  # its own ssh


def test_flags_of_open_mpi_5_and_mpich(machine):
    machine.mpi("Open MPI 5.0.11")
    words, _ = machine.started("--mpi", "-H", "a:2,b:2")
    assert words[:8] == ["-np", "4", "-H", "a:2,b:2", "--map-by", "slot", "--bind-to", "none"]
    assert words[words.index("--output") + 1] == "tag" and "--tag-output" not in words
    machine.mpi("MPICH 4.2.0")
    words, _ = machine.started("--mpi", "-H", "a:2,b:2", SECRET_TOKEN="x")
    assert words[:7] == ["-n", "4", "-hosts", "a:2,b:2", "-bind-to", "none", "-genvlist"]
    assert "PATH" in words[7].split(",") and "SECRET_TOKEN" not in words[7]


@pytest.mark.parametrize("words", refused("launch"))
def test_mistakes(machine, messages, words):
    messages.refuses("launch", lambda given: (2, machine.refused(*given)), words)


def test_what_this_horovod_or_mpi_cannot_do(machine):
    for build, flavour, way, complaint in (
        ("both", "broken", "--mpi", "mpirun is missing or does not run; --gloo needs no MPI"),
        ("gloo", "Open MPI 4.1.4", "--mpi", "this Horovod was built without MPI; take --gloo"),
        ("mpi", "Open MPI 4.1.4", "--gloo", "this Horovod was built without Gloo; take --mpi"),
    ):
        machine.built(build)
        machine.mpi(flavour)
        assert complaint in machine.refused(way)


def test_the_exit_code_is_that_of_the_first_rank_that_failed(machine):
    """horovodrun makes 1 of any exit code, and srun kills its last task."""
    for said, own, code in (
        ("", 3, 3),
        ("Process 0 exit with status code 75.\\nProcess name: 0\\nExit code: 75\\n", 1, 75),
        ("Process name: 1\\nExit code: -9\\n", 1, 137),
        ("srun: error: n1: task 0: Exited with exit code 75\\n", 137, 75),
        ("Exit code: 75\\n", 0, 0),
    ):
        done = machine.launch("-np", "1", HVDGAN_ACTS=f"printf '{said}' >&2; exit {own}")
        assert done.returncode == code, (said, done.stderr)


@pytest.mark.parametrize(("send", "number"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGUSR2)])
def test_a_signal_before_there_are_ranks_ends_the_launcher(machine, send, number):
    acts = """trap 'printf "[0]<stderr>:saved\\n[1]<stderr>:gone\\n" >&2; exit 75' TERM
    printf '[0]<stderr>:begun\\n' >&2; while :; do sleep 0.1; done"""
    process = subprocess.Popen(
        [*LAUNCH, "--gloo", "-np", "2"],
        env=machine.environment(HVDGAN_ACTS=acts),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert "begun\n" in iter(process.stderr.readline, "")
    send(process.pid, number)
    assert process.stderr.read() == "saved\nrank 1: gone\n" and process.wait(timeout=60) == 75


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR2, 75)])
def test_a_run_that_is_stopped_before_it_has_ranks_is_one_line_and_may_be_requeued(machine, number, code):
    acts = """trap 'exit 143' TERM; printf '[0]<stderr>:begun\n' >&2; while :; do sleep 0.1; done"""
    environment = machine.environment(HVDGAN_ACTS=acts)
    process = subprocess.Popen([*LAUNCH, "--gloo", "-np", "2"], env=environment, stderr=subprocess.PIPE, text=True)
    assert "begun\n" in iter(process.stderr.readline, "")
    process.send_signal(number)
    said = process.stderr.read()
    assert process.wait(timeout=60) == code and said.count("\n") == 1 and number.name in said


TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 4 --log-every 1 --sample-every 0".split()
TINY += ["--steps", "1000000", "--report", "never", "--peer-timeout", "5", "--run-dir", "a run"]


@contextlib.contextmanager
def begun(folder, command):
    """A run that has made some steps; its output is in the file `said`."""
    before = last_step(folder / "a run")
    with started(command, folder) as process:
        is_so = lambda: last_step(folder / "a run") > before + 2 or process.poll() is not None  # noqa: E731
        wait_until(is_so, SECONDS, (folder / "said").read_text)
        yield process


def ranks_of(process):
    """The ranks below a process, by their numbers."""
    found = [each for each in process.children(recursive=True) if each.cmdline()[1:3] == TRAIN[1:]]
    numbers = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")
    return {next(int(each.environ()[name]) for name in numbers if name in each.environ()): each for each in found}


@pytest.mark.long
@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_a_run_that_stops_on_request_resumes_and_ends_when_a_rank_is_killed(tmp_path, controller):
    """Two real ranks: Ctrl-C, as from a terminal, then the same command again."""
    command = [*LAUNCH, "-np", "2", f"--{controller}", "train", *TINY]
    with begun(tmp_path, command) as process:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=SECONDS) == 75, (tmp_path / "said").read_text()
    reached = last_step(tmp_path / "a run")
    assert latest(tmp_path / "a run") == reached
    with begun(tmp_path, command) as process:
        said, name = (tmp_path / "said").read_text(), "mpirun" if controller == "mpi" else "horovodrun"
        assert f"\n2 rank(s) on 1 host(s), launcher {name}" in said, said
        assert ">:" not in said and "rank 1: " not in said, said
        assert f"resuming at step {reached}" in (tmp_path / "a run/log.txt").read_text().replace(",", "")
        ranks = ranks_of(process)
        assert ranks.keys() == {0, 1}
        ranks[1].kill()
        assert process.wait(timeout=SECONDS) == 128 + signal.SIGKILL, (tmp_path / "said").read_text()
        assert not psutil.wait_procs(ranks.values(), timeout=SECONDS)[1]


@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_a_mistake_of_the_trainers_is_printed_once_with_its_exit_code(tmp_path, controller):
    done = run([*LAUNCH, "-np", "2", f"--{controller}", "train", "--image-size", "8"], tmp_path, forked=True)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if "--image-size 8" in line and not line.startswith("+ ")]
    assert len(lines) == 1 and lines[0].startswith("hvdgan: rank "), done.stderr
    assert "Traceback" not in done.stderr and "TensorFlow" not in done.stderr


def test_a_python_without_packages_starts_ranks_in_an_image(machine):
    """As the system's does in the batch script of a job. Without an image the ranks are of this Python."""
    bare = [sys.executable, "-S", "-E", "-m", "hvdgan.launch"]
    found = {}
    for words in (["--help"], ["--image", "x.sif", "--print", "--nonsense"], ["--print", "--recipe", "dcgan"]):
        done = machine.run(*bare, *words, cwd=ROOT, SLURM_JOB_ID="5")
        found[words[0]] = done.returncode, done.stdout, done.stderr
    assert found["--help"][::2] == (0, "") and "--image-python PATH" in found["--help"][1]
    assert found["--image"][::2] == (0, "")
    assert shlex.split(found["--image"][1])[-5:] == ["x.sif", "python", "-m", "hvdgan.train", "--nonsense"]
    code, _, said = found["--print"]
    assert (code, said.count("\n")) == (2, 1) and "is not installed for this Python; pip install" in said


def test_a_flag_that_the_trainer_lacks_is_refused_before_ranks_are_started(machine):
    for words in (["--nonsense", "3"], ["train", "--recipe", "sngan", "--global-batch-size", "many"]):
        done = machine.launch("-np", "2", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and words[-2] in done.stderr
        assert not done.stderr.startswith("+")
