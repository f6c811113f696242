"""A fake machine for launch/setup.sh: real bash and tools; a fake Python records the calls of venv and pip."""

import io
import shlex
import shutil
import subprocess
import sys
import tarfile

from launching import ROOT

TOOLS = """bash cat chmod cp cut dirname env flock grep head ldd ln mkdir mktemp nproc readlink rm sed sh
sha256sum sleep tac tail tee timeout touch tr uname""".split()
COMPILER = {"g++": "", "make": ""}
OPEN_MPI_4 = {"mpirun": "echo 'mpirun (Open MPI) 4.1.4'", "mpicxx": ""}
OPEN_MPI_5 = {"mpirun": "echo 'mpirun (Open MPI) 5.0.3'", "mpicxx": ""}
MPICH = {"mpirun": "echo 'HYDRA build details:'; echo '    Version: 4.0.2  Options: MPICHLIB_CFLAGS='", "mpicxx": ""}
GPU = {"nvidia-smi": "echo 'NVIDIA H100'; echo 'NVIDIA H100'"}
# What nvcc 13.0 answers to --list-gpu-arch.
NVCC_13 = "for each in 75 80 86 87 88 89 90 100 110 103 120 121; do echo compute_$each; done"

# What it is asked goes to $CALLS. The call that $CALLS.fail names fails; the one that $CALLS.kill names ends setup.sh.
PYTHON = f"""
note() {{
    echo "$*" >>"$CALLS"
    if [ -e "$CALLS.kill" ] && echo "$*" | grep -q "$(cat "$CALLS.kill")"; then
        rm "$CALLS.kill"; kill -9 $PPID; exit 1
    fi
    if [ -e "$CALLS.fail" ] && echo "$*" | grep -q "$(cat "$CALLS.fail")"; then
        rm "$CALLS.fail"; echo 'x.cc:1: error: no such thing'; echo 'make: error: 1'; exit 1
    fi
}}
case "$*" in
    "-m venv "*) note venv; mkdir -p "$3/bin" "$3/lib/python3.11/site-packages"; ln -s "$0" "$3/bin/python" ;;
    "-m pip download "*)
        note "$*"
        while [ "$1" != --dest ]; do shift; done
        cp "$SOURCE" "$2" ;;
    "-m pip wheel "*)
        for folder in "$@"; do :; done
        note "$*" "$(env | grep ^HOROVOD_ | tr '\\n' ' ')" "nvcc=$(command -v nvcc)" "CXXFLAGS=$CXXFLAGS" \\
            "$(tr '\\n' ' ' <"$folder/ranks.cc")"
        echo '[ 50%] Building CXX object'
        while [ "$1" != --wheel-dir ]; do shift; done
        touch "$2/horovod-0.28.1-any.whl" ;;
    "-m pip "*) note "$*" ;;
    "- Gloo"* | "- MPI"*) note "verify ${{*#- }}" ;;
    *) exec '{sys.executable}' "$@" ;;
esac
"""


# What stands for Horovod's source, and a patch of it.
RANKS = "zero\none\ntwo\nranks.reserve();\nfour\n"
PATCH = """Why it is needed.

--- a/ranks.cc
+++ b/ranks.cc
@@ -3,3 +3,3 @@
 two
-ranks.reserve();
+ranks.resize();
 four
"""


def pack(archive, content, name="ranks.cc"):
    """Write an archive of source, as PyPI has it, with one file in its folder."""
    with tarfile.open(archive, "w:gz") as opened:
        found = tarfile.TarInfo(f"{archive.name.removesuffix('.tar.gz')}/{name}")
        found.size = len(content)
        opened.addfile(found, io.BytesIO(content.encode()))


class Machine:
    """A checkout, and a PATH that holds nothing but what a test put there."""

    def __init__(self, folder):
        self.checkout = folder / "a checkout"
        self.bin = folder / "bin"
        self.calls_file = folder / "calls"
        self.source = folder / "horovod-0.28.1.tar.gz"
        self.log = self.checkout / ".venv" / "setup.log"
        paths = {"PATH": self.bin, "CALLS": self.calls_file, "TMPDIR": folder / "tmp", "SOURCE": self.source}
        self.environment = {"LC_ALL": "C", **{name: str(path) for name, path in paths.items()}}
        (folder / "tmp").mkdir()
        (self.checkout / "launch").mkdir(parents=True)
        scripts = ["setup.sh", "choose.sh", "existing.sh", "existing.py", "patched_source.py"]
        pins = [path.name for path in (ROOT / "launch").glob("constraints*.txt")]
        for name in ["setup.cfg", *(f"launch/{name}" for name in (*scripts, *pins))]:
            shutil.copy(ROOT / name, self.checkout / name)
        pack(self.source, RANKS)
        self.patch = self.checkout / "launch" / "patches" / "01-ranks.patch"
        self.patch.parent.mkdir()
        self.patch.write_text(PATCH)
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.has(**COMPILER, **{"python3.11": PYTHON})

    def has(self, **commands):
        for name, script in commands.items():
            self._write(self.bin / name, script)

    def _write(self, path, script):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def has_gpus(self, *gpus, nvcc=NVCC_13):
        """Make nvidia-smi show GPUs by compute capability and name, and a CUDA toolkit, whose folder is returned."""
        shown = f'case "$*" in *compute_cap*) printf "%s\\n" {shlex.join(gpus)} ;; *) echo NVIDIA ;; esac'
        self.has(**{"nvidia-smi": shown if gpus else "exit 9"})
        toolkit = self.checkout.with_name("cuda")
        self._write(toolkit / "bin" / "nvcc", nvcc)
        return toolkit

    def lacks(self, *names):
        for name in names:
            (self.bin / name).unlink()

    def setup(self, *arguments, **environment):
        words, streams = ["bash", self.checkout / "launch" / "setup.sh", *arguments], {"stdin": subprocess.DEVNULL}
        env = self.environment | environment
        return subprocess.run(words, env=env, cwd=self.bin, capture_output=True, text=True, timeout=60, **streams)

    def succeeds(self, *arguments, **environment):
        """The output of a call that must succeed, and what it asked of venv and pip."""
        before = len(self.calls())
        done = self.setup(*arguments, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        return done.stdout, self.calls()[before:]

    def fails(self, *arguments, **environment):
        """The one line with which a call that must fail does so."""
        done = self.setup(*arguments, **environment)
        assert done.returncode not in (0, -9), done.stdout
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def calls(self):
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []


def kinds(calls):
    """The calls by one word each, installs by what they are for."""
    words = {"pip install -c": "packages", "pip download": "source", "pip wheel": "build"}
    words |= {"--force-reinstall": "horovod", "verify": "check", " -e ": "hvdgan", "uninstall": "uninstall"}
    words |= {"venv": "venv"}  # last: other calls have its path
    return [next(word for part, word in words.items() if part in call) for call in calls]
