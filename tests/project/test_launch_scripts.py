"""The launch scripts: their commands are shown by fake launchers, and one run is real."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from launching import BIN, ROOT, SECONDS, environment, run

SCRIPTS = ["local.sh", "single_node.sh", "multi_node.sh", "mpirun.sh"]
# What a launcher would be called with, and the variables that count.
PRETENDED = """#!/bin/sh
printf '%s\\0' "$0" "$@" >"$NOTES/words"
env -0 >"$NOTES/environment"
"""
VERSIONS = {
    "Open MPI 4.1.4": "echo 'mpirun (Open MPI) 4.1.4'; echo; echo 'Report bugs to http://www.open-mpi.org'",
    "Open MPI 5.0.11": "echo 'mpirun (Open MPI) 5.0.11'",
    "MPICH 4.2.0": "echo 'HYDRA build details:'; echo '    Version:                                 4.2.0'",
    "Intel MPI 2021.1": "echo 'Intel(R) MPI Library for Linux* OS, Version 2021.1 Build 2020'",
    "something else": "echo 'Other 1.2.3'",
    "broken": "echo 'mpirun: error while loading shared libraries' >&2; exit 127",
}
AWKWARD = ["--run-dir", "a folder/it's", "--recipe", "x:Y", "--note", "", "*", "$HOME"]


class Machine:
    """A PATH with pretended launchers in front of the real tools."""

    def __init__(self, folder):
        self.bin, self.notes = folder / "bin", folder / "notes"
        self.bin.mkdir()
        self.notes.mkdir()
        self.has("horovodrun", PRETENDED)
        self.has("nvidia-smi", "#!/bin/sh\nexit 9\n")
        self.mpi("Open MPI 4.1.4")

    def has(self, name, script):
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def mpi(self, flavour):
        version = f'if [ "$*" = --version ]; then {VERSIONS[flavour]}; exit; fi'
        self.has("mpirun", PRETENDED.replace("#!/bin/sh\n", f"#!/bin/sh\n{version}\n"))

    def run(self, script, *words, **more):
        env = environment(NOTES=str(self.notes), VIRTUAL_ENV="/one", **more)
        env["PATH"] = os.pathsep.join([str(self.bin), env["PATH"]])
        kept = {name: value for name, value in env.items() if name != "CUDA_VISIBLE_DEVICES" or name in more}
        command = [ROOT / "launch" / script, *words]
        return subprocess.run(command, env=kept, cwd=self.notes, capture_output=True, text=True, timeout=60)

    def started(self, script, *words, **more):
        """The words and the environment with which a script calls its launcher."""
        done = self.run(script, *words, **more)
        assert done.returncode == 0, done.stderr
        found = (self.notes / "words").read_text().split("\0")[:-1]
        # What it says is what it did.
        assert done.stderr.startswith("+ ") and shlex.split(done.stderr)[2:] == found[1:]
        pairs = (line.partition("=") for line in (self.notes / "environment").read_text().split("\0")[:-1])
        return found[1:], {name: value for name, _, value in pairs}

    def printed(self, script, *words, **more):
        """What --print prints, as words."""
        done = self.run(script, "--print", *words, **more)
        assert done.returncode == 0 and not list(self.notes.iterdir()), done.stderr
        return shlex.split(done.stdout)

    def refused(self, script, *words, **more):
        """The one line of a script that starts nothing."""
        done = self.run(script, *words, **more)
        assert done.returncode == 2 and not list(self.notes.iterdir()) and not done.stdout, done.stderr
        assert done.stderr.startswith(f"launch/{script}: ") and done.stderr.count("\n") == 1
        return done.stderr


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(machine, script):
    done = machine.run(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: launch/{script} ")
    assert all(f"\n  {option}" in done.stdout for option in ("--help", "--print", "-m MODULE"))
    # The whole of the comment and no more, and every option there is.
    text = (ROOT / "launch" / script).read_text()
    assert "set -euo" not in done.stdout and done.stdout.count("\n") == text[: text.index("\nset -")].count("\n")
    for word in text[text.index("\nset -") :].split():
        assert not (word.startswith("--") and word.endswith(")")) or word.rstrip(")") in done.stdout


def test_the_trainer_gets_its_arguments_as_they_are(machine):
    # With -IS it copies what the ranks say.
    real = f'[ "$1" != -IS ] || exec {sys.executable} "$@"'
    machine.has("python", PRETENDED.replace("#!/bin/sh\n", f"#!/bin/sh\n{real}\n"))
    assert machine.started("local.sh", *AWKWARD)[0] == ["-m", "hvdgan.train", *AWKWARD]
    python = str(machine.bin / "python")
    trainer = [python, "-m", "hvdgan.train", *AWKWARD]
    for script, words in {"single_node.sh": ["-np", "3"], "multi_node.sh": ["-H", "a:1"], "mpirun.sh": []}.items():
        assert machine.started(script, *words, *AWKWARD)[0][-len(trainer) :] == trainer
    # After -- even words that would be the script's own.
    trainer = [python, "-m", "hvdgan.doctor", "--help", "-np", "7"]
    for script in ("single_node.sh", "mpirun.sh"):
        assert machine.started(script, "-m", "hvdgan.doctor", "--", "--help", "-np", "7")[0][-6:] == trainer


def test_print_is_a_command_that_can_be_typed(machine):
    words = machine.printed("local.sh", *AWKWARD)
    assert words == [str(BIN / "python"), "-m", "hvdgan.train", *AWKWARD]


def test_a_process_for_each_gpu_or_core(machine):
    cores = str(len(os.sched_getaffinity(0)))
    assert machine.printed("single_node.sh")[:3] == ["horovodrun", "-np", cores]
    assert machine.printed("single_node.sh", OMP_NUM_THREADS="1")[2] == cores
    machine.has("nvidia-smi", '#!/bin/sh\nfor gpu in 0 1 2; do echo "GPU $gpu: H100"; done\n')
    assert machine.printed("single_node.sh")[2] == "3"
    assert machine.printed("single_node.sh", CUDA_VISIBLE_DEVICES="0,2")[2] == "2"
    for hidden in ("", "-1", "NoDevFiles", "-1,0"):
        assert machine.printed("single_node.sh", CUDA_VISIBLE_DEVICES=hidden)[2] == cores
    assert machine.printed("single_node.sh", CUDA_VISIBLE_DEVICES="0,2,-1,3")[2] == "2"  # CUDA stops at -1
    assert machine.printed("mpirun.sh")[2:5] == ["3", "-H", "localhost:3"]


def test_horovodrun_is_not_sent_to_an_mpi_it_cannot_drive(machine):
    for flavour, chosen in (
        ("Open MPI 4.1.4", []),
        ("MPICH 4.2.0", []),
        ("broken", []),
        ("Open MPI 5.0.11", ["--gloo"]),
    ):
        machine.mpi(flavour)
        for script, words in (("single_node.sh", ["-np", "2"]), ("multi_node.sh", ["-H", "a:2"])):
            assert machine.printed(script, *words)[: 2 + len(chosen)] == ["horovodrun", *chosen, "-np"]
            assert machine.printed(script, "--gloo", *words)[1] == "--gloo"
    assert "horovodrun cannot drive Open MPI 5.0.11; take --gloo" in machine.refused("single_node.sh", "--mpi")
    machine.mpi("broken")
    assert "there is no mpirun on the PATH; take --gloo" in machine.refused("multi_node.sh", "-H", "a", "--mpi")


def test_what_is_set_already_stays(machine):
    _, found = machine.started("single_node.sh", "-np", "1", SLURM_CPUS_PER_TASK="6")
    expected = {"PYTHONUNBUFFERED": "1", "HOROVOD_GLOO_TIMEOUT_SECONDS": "300", "HOROVOD_START_TIMEOUT": "300"}
    expected |= {"NCCL_DEBUG": "WARN", "SRUN_CPUS_PER_TASK": "6", "OMPI_MCA_btl": "^openib"}
    assert expected.items() <= found.items()
    own = dict.fromkeys(expected, "mine") | {"TF_CPP_MIN_LOG_LEVEL": "0", "PYTHONUNBUFFERED": ""}
    _, found = machine.started("single_node.sh", "-np", "1", **own)
    assert own.items() <= found.items()


@pytest.mark.parametrize(
    ("words", "hosts", "processes"),
    [
        (["-H", "node1:4,node2:3"], "node1:4,node2:3", "7"),
        (["-H", "node1:4, node2"], "node1:4,node2:1", "5"),
        (["--hosts", "10.0.0.1,node-2.x", "--slots", "4"], "10.0.0.1:4,node-2.x:4", "8"),
        (["--hostfile", "hosts"], "a:4,b:2,c:1", "7"),
        (["--hostfile", "hosts", "--slots", "3", "-np", "6"], "a:4,b:2,c:3", "6"),
    ],
)
def test_lists_of_hosts(machine, words, hosts, processes):
    machine.has("hosts", "# ours\n a slots=4\n\nb:2   # the old one\nc\n")
    words = [str(machine.bin / word) if word == "hosts" else word for word in words]
    command = machine.printed("multi_node.sh", *words)
    assert command[:6] == ["horovodrun", "-np", processes, "-H", hosts, "--disable-cache"]
    command = machine.printed("mpirun.sh", *words)
    assert command[1:5] == ["-np", processes, "-H", hosts]


@pytest.mark.parametrize(
    ("tasks", "hosts"),
    [("4(x2),3", "n1:4,n2:4,n7:3"), ("2(x3)", "n1:2,n2:2,n7:2"), ("1,2,3", "n1:1,n2:2,n7:3"), ("1", "n1:1,n2:1,n7:1")],
)
def test_the_hosts_of_the_allocation(machine, tasks, hosts):
    machine.has("scontrol", '#!/bin/sh\n[ "$*" = "show hostnames n[1-2,7]" ] && printf "n1\\nn2\\nn7\\n"\n')
    allocation = {"SLURM_JOB_NODELIST": "n[1-2,7]", "SLURM_TASKS_PER_NODE": tasks, "SLURM_JOB_ID": "5"}
    for script in ("multi_node.sh", "mpirun.sh"):
        assert machine.printed(script, **allocation)[3:5] == ["-H", hosts]
        # What the user names comes first.
        assert machine.printed(script, "-H", "other:2", **allocation)[3:5] == ["-H", "other:2"]


def test_ssh_and_networks(machine):
    words = ["-H", "a:1", "--interface", "ib0,eth0", "--ssh-port", "2222", "--ssh-identity", "/my key", "--gloo"]
    command = machine.printed("multi_node.sh", *words)
    assert command[1] == "--gloo"
    expected = ["--network-interfaces", "ib0,eth0", "--ssh-port", "2222", "--ssh-identity-file", "/my key"]
    assert command[7 : 7 + len(expected)] == expected


def test_flags_of_each_mpi(machine):
    """Those of Open MPI are the same for 4 and 5: two dashes, which both know."""
    more = {"HOROVOD_X": "1", "NCCL_X": "a b", "SECRET_TOKEN": "x"}
    for flavour in ("Open MPI 4.1.4", "Open MPI 5.0.11"):
        machine.mpi(flavour)
        words, found = machine.started("mpirun.sh", "-H", "a:2,b:2", **more)
        assert words[:7] == ["-np", "4", "-H", "a:2,b:2", "--map-by", "slot", "--bind-to"] and words[7] == "none"
        passed = [words[place + 1] for place, word in enumerate(words) if word == "-x"]
        assert {"PATH", "PYTHONPATH", "HOROVOD_X", "NCCL_X", "NCCL_DEBUG"} <= set(passed)
        assert not {"SECRET_TOKEN", "HOME", "SLURM_JOB_ID"} & set(passed)
        assert not [word for word in words if word.startswith("-") and len(word) > 3 and not word.startswith("--")]
        assert found["OMPI_MCA_mpi_yield_when_idle"] == "1"
        (tags,) = (place for place, word in enumerate(words) if word in ("--tag-output", "--output"))
        expected = ["--tag-output"] if flavour.startswith("Open MPI 4") else ["--output", "tag"]
        assert words[tags : words.index("-m") - 1] == expected
    machine.mpi("MPICH 4.2.0")
    words, found = machine.started("mpirun.sh", "-H", "a:2,b:2", **more)
    assert words[:6] == ["-n", "4", "-hosts", "a:2,b:2", "-bind-to", "none"] and words[6] == "-genvlist"
    assert {"PATH", "HOROVOD_X", "NCCL_X"} <= set(words[7].split(",")) and "SECRET_TOKEN" not in words[7]
    assert words[8:10] == ["-prepend-pattern", "[%r]<stdout>:"]
    assert found["MPIR_CVAR_POLLS_BEFORE_YIELD"] == "1"


def test_an_mpirun_of_the_users_choice(machine):
    machine.mpi("broken")
    machine.has("other", f"#!/bin/sh\n{VERSIONS['Open MPI 5.0.11']}\n")
    other = str(machine.bin / "other")
    assert machine.printed("mpirun.sh", "-np", "2", MPIRUN=other)[:5] == [other, "-np", "2", "-H", "localhost:2"]


@pytest.mark.parametrize(
    ("script", "words", "complaint"),
    [
        ("local.sh", ["-np", "2"], "-np: unknown option"),
        ("single_node.sh", ["-np", "0"], "-np 0: expected a whole number of at least 1"),
        ("single_node.sh", ["-np", "two"], "-np two: expected a whole number"),
        ("single_node.sh", ["-np"], "-np : expected a whole number"),
        ("single_node.sh", ["-m", "--", "x"], "-m needs a value"),
        ("single_node.sh", ["recipe"], "recipe: unknown option; the trainer's options begin with two dashes"),
        ("multi_node.sh", [], "no hosts: give -H or --hostfile"),
        ("multi_node.sh", ["-H", "a:x"], "-H: a:x is not HOST or HOST:SLOTS"),
        ("multi_node.sh", ["-H", "a;b"], "-H: a;b is not HOST"),
        ("multi_node.sh", ["-H"], "-H needs a value"),
        ("multi_node.sh", ["-H", ","], "-H: names no host"),
        ("multi_node.sh", ["-H", "a:2", "-np", "3"], "-np 3: -H has 2 slots"),
        ("multi_node.sh", ["--hostfile", "/nowhere"], "--hostfile /nowhere: cannot be read"),
        ("multi_node.sh", ["-H", "a", "--ssh-port", "ssh"], "--ssh-port ssh: expected a whole number"),
        ("mpirun.sh", ["--hostfile", "/dev/null"], "--hostfile: names no host"),
    ],
)
def test_mistakes(machine, script, words, complaint):
    line = machine.refused(script, *words)
    assert complaint in line and line.endswith("; see --help\n")


@pytest.mark.parametrize(
    ("flavour", "complaint"),
    [
        ("broken", "mpirun is missing or does not run; launch/single_node.sh and launch/multi_node.sh need no MPI"),
        ("something else", "mpirun says it is Other 1.2.3; expected Open MPI 4, Open MPI 5 or MPICH"),
        ("Intel MPI 2021.1", "mpirun says it is Intel MPI 2021.1; expected Open MPI 4, Open MPI 5 or MPICH"),
    ],
)
def test_an_mpi_that_is_not_known(machine, flavour, complaint):
    machine.mpi(flavour)
    assert complaint in machine.refused("mpirun.sh")


def test_the_exit_code_is_the_launchers(machine):
    machine.has("horovodrun", "#!/bin/sh\nexit 3\n")
    assert machine.run("single_node.sh", "-np", "1").returncode == 3
    # horovodrun makes 1 of the 75 of ranks that have saved and stopped.
    machine.has(
        "horovodrun", "#!/bin/sh\necho 'Process 0 exit with status code 75.'; echo 'Exit code: 75' >&2; exit 1\n"
    )
    assert machine.run("single_node.sh", "-np", "1").returncode == 75


@pytest.mark.parametrize("script", ["single_node.sh", "multi_node.sh", "elastic.sh"])
def test_the_ranks_lines_are_shown_without_tags(machine, script):
    machine.has(
        "horovodrun",
        """#!/bin/sh
        printf '[0]<stdout>:drawn\\n[1,1]<stdout>:drawn too\\n'
        printf '[0]<stderr>:\\303\\251tape 1\\n[1]<stderr>:lost\\nof horovodrun\\n[0]<stderr>:its last words' >&2
        exit 3
        """,
    )
    hosts = {"single_node.sh": ["-np", "2"], "multi_node.sh": ["-H", "a:2"]}
    done = machine.run(script, *hosts.get(script, ["-H", "a:2", "--interface", "lo"]))
    assert (done.returncode, done.stdout) == (3, "drawn\nrank 1: drawn too\n")
    command, said = done.stderr.split("\n", 1)
    assert command.startswith("+ ") and said == "étape 1\nrank 1: lost\nof horovodrun\nits last words"


def test_mpiruns_lines_are_shown_without_tags(machine):
    """As each MPI tags them; that of Open MPI 5 ends with a space."""
    for flavour, tag, other in (
        ("Open MPI 4.1.4", "[1,0]<stderr>:", "[1,1]<stderr>:"),
        ("Open MPI 5.0.11", "[1,0]<stderr>: ", "[1,1]<stderr>: "),
        ("MPICH 4.2.0", "[0]<stdout>:", "[1]<stdout>:"),
    ):
        version = f'if [ "$*" = --version ]; then {VERSIONS[flavour]}; exit; fi'
        machine.has("mpirun", f"#!/bin/sh\n{version}\nprintf '{tag}step 1\\n{other} lost\\nof mpirun\\n' >&2\n")
        done = machine.run("mpirun.sh", "-np", "2")
        assert done.returncode == 0 and done.stderr.split("\n", 1)[1] == "step 1\nrank 1:  lost\nof mpirun\n", flavour


@pytest.mark.parametrize(
    ("send", "number"), [(os.killpg, signal.SIGINT), (os.killpg, signal.SIGTERM), (os.kill, signal.SIGUSR2)]
)
def test_a_signal_does_not_end_what_copies_the_ranks_lines(machine, send, number):
    machine.has(
        "horovodrun",
        """#!/bin/bash
        trap 'printf "[0]<stderr>:saved\\n[1]<stderr>:gone\\n" >&2; exit 75' TERM
        printf '[0]<stderr>:begun\\n' >&2
        while :; do sleep 0.1; done
        """,
    )
    env = environment(VIRTUAL_ENV="/one")
    env["PATH"] = os.pathsep.join([str(machine.bin), env["PATH"]])
    command = [ROOT / "launch" / "single_node.sh", "-np", "2"]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert "begun\n" in iter(process.stderr.readline, "")
    send(process.pid, number)
    assert process.stderr.read() == "saved\nrank 1: gone\n" and process.wait(timeout=60) == 75


@pytest.mark.parametrize(
    ("moment", "said", "code"),
    [
        ('mkfifo() { command mkfifo "$@"; kill -TERM $$; }', "", 128 + signal.SIGTERM),
        # The first thing that a launcher does, which may be before the script knows its number.
        ("own() { trap 'exit 75' USR2; kill -TERM $$; while :; do sleep 0.1; done; }", "told TERM\n75\n", 0),
    ],
)
def test_a_signal_while_the_launcher_starts_leaves_nothing_running(tmp_path, moment, said, code):
    text = f"""
        source launch/common.sh
        own() {{ echo started; }}
        {moment}
        on_signal() {{ echo "told $1"; kill -USR2 "$launcher"; }}
        run_launcher own
        echo "$code"
    """
    done = run(["bash", "-euo", "pipefail", "-c", text], ROOT, seconds=60, TMPDIR=str(tmp_path))
    assert (done.stdout, done.returncode) == (said, code), done.stderr
    assert not list(tmp_path.iterdir())


def test_a_run_that_stops_on_request_and_resumes(tmp_path):
    """Two real ranks: SIGTERM to the script, as from a scheduler, then the same command again."""
    script = [ROOT / "launch" / "single_node.sh", "-np", "2", "--gloo"]
    trainer = "--recipe tiny:Tiny --image-size 8 --global-batch-size 4 --log-every 1 --sample-every 0".split()
    trainer += ["--run-dir", "a run"]
    metrics = tmp_path / "a run" / "metrics.jsonl"
    env = environment(VIRTUAL_ENV="/one")
    with (tmp_path / "said").open("w") as said:
        command = [*script, *trainer, "--steps", "1000000"]
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=said, stderr=said, start_new_session=True)
    try:
        end = time.monotonic() + SECONDS
        while not (metrics.exists() and metrics.read_text().count("\n") > 2):
            assert process.poll() is None and time.monotonic() < end, (tmp_path / "said").read_text()
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    assert code == 75, (tmp_path / "said").read_text()
    reached = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert (tmp_path / "a run/checkpoints/latest").read_text().strip() == f"step-{reached:08d}"

    done = run([*script, *trainer, "--steps", "1000000", "--max-steps", str(reached + 2)], tmp_path, VIRTUAL_ENV="/one")
    assert done.returncode == 0, done.stderr
    assert "\n2 rank(s) on 1 host(s), launcher horovodrun" in done.stderr and ">:" not in done.stdout + done.stderr
    assert "\ndone: " in done.stderr and "rank 1: " not in done.stderr
    assert f"resuming at step {reached}" in (tmp_path / "a run/log.txt").read_text().replace(",", "")
