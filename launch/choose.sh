# Finds what this machine has and chooses the build. launch/setup.sh sources it, with root, venv and pins set.
# shellcheck shell=bash disable=SC2034,SC2154  # the variables are shared with setup.sh

# Unset variables that would change what pip sees or where it installs; module_path keeps the PYTHONPATH that a module has
# set. Take our own .venv from the PATH: PyPI's mpirun may be in it, and must not be taken for the machine's.
clean_environment() {
    module_path="${PYTHONPATH:-}"
    unset PYTHONPATH PYTHONHOME
    export PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
    local path=":$PATH:"
    path="${path//":$venv/bin:"/:}"
    if [[ "${VIRTUAL_ENV:-}" -ef "$venv" ]]; then path="${path//":$VIRTUAL_ENV/bin:"/:}"; fi
    path="${path#:}"
    PATH="${path%:}"
}

# Sets series, the TensorFlow to build for, its reason series_why, its pins series_pins, and pythons that it has wheels for.
choose_tensorflow() {
    local kept_choice file known=""
    kept_choice="$(cat "$venv/.hvdgan-tf" 2>/dev/null || true)"
    if [[ -n "${HVDGAN_TF:-}" ]]; then
        series="$HVDGAN_TF" series_why="HVDGAN_TF=$HVDGAN_TF"
    elif [[ -n "$kept_choice" ]]; then
        series="$kept_choice" series_why=".venv was made by HVDGAN_TF=$kept_choice; HVDGAN_TF=$newest undoes it"
    else
        series="$newest" series_why="the default"
    fi
    series_pins="$root/launch/constraints-$series.txt"
    if [[ ! "$series" =~ ^[0-9.]+$ || ! -f "$series_pins" ]]; then
        for file in "$root"/launch/constraints-*.txt; do
            file="${file##*/constraints-}"
            known+="${known:+, }${file%.txt}"
        done
        die "HVDGAN_TF=$series: expected one of $known"
    fi
    read -r -a pythons <<<"$(sed -n 's/^# Python: //p' "$series_pins")"
}

# Sets python and python_version. A name on the PATH may be a shim that fails: only running it tells.
choose_python() {
    local probe='import sys; print("%d.%d.%d" % sys.version_info[:3]); import ensurepip, venv; print("fits")'
    local name answer seen=""
    local -a names=(python3.11 python3.12 python3.13 python3)
    # The Python of .venv comes first, so that a newly installed one does not cause a rebuild.
    if [[ -e "$venv/.hvdgan-packages" ]]; then names=("$(readlink -f "$venv/bin/python")" "${names[@]}"); fi
    if [[ -n "${PYTHON:-}" ]]; then names=("$PYTHON"); fi
    for name in "${names[@]}"; do
        answer="$("$name" -c "$probe" 2>/dev/null)" || true
        python="$name" python_version="${answer%%$'\n'*}"
        case " ${pythons[*]} : $answer" in
            *" ${python_version%.*} "*": "*fits) return ;;
            *" ${python_version%.*} "*": "?*) seen+="; $name lacks its venv module (Debian: python3-venv)" ;;
            *": "?*) seen+="; $name is $python_version" ;;
            *) [[ -z "${PYTHON:-}" ]] || seen="; $name does not run" ;;
        esac
    done
    die "TensorFlow $series needs Python ${pythons[0]} to ${pythons[-1]} and found none${seen:+ (${seen#; })}; \
PYTHON=/path/to/python names one"
}

# Sets device (cpu or gpu), device_why, and cuda: the toolkit for the NCCL build, or none.
choose_device() {
    local gpu folder
    device=cpu cuda=none device_why="nvidia-smi does not answer"
    if [[ -n "${HVDGAN_GPU:-}" ]]; then
        device_why="HVDGAN_GPU=$HVDGAN_GPU"
        [[ "$HVDGAN_GPU" == 0 ]] || device=gpu
    elif gpu="$(timeout 30 nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null)" && [[ -n "$gpu" ]]; then
        device=gpu device_why="nvidia-smi found ${gpu%%$'\n'*}"
    elif [[ "$(kept device)" == gpu ]]; then
        # A login node without a GPU must not undo the build for the compute nodes.
        device=gpu device_why=".venv was made for GPUs; HVDGAN_GPU=0 undoes it"
    fi
    [[ "$device" == gpu ]] || return 0
    # The nvcc on the PATH may be a wrapper outside the toolkit; nvcc prints where its toolkit is.
    local -a toolkits=("$(nvcc --dryrun -x cu -E /dev/null 2>&1 | sed -n 's|^#. _HERE_=\(.*\)/bin$|\1|p')")
    toolkits+=(/usr/local/cuda "$(kept cuda)")
    if [[ -n "${CUDA_HOME:-}" ]]; then toolkits=("$CUDA_HOME"); fi
    for folder in "${toolkits[@]}"; do
        if [[ -x "$folder/bin/nvcc" ]]; then cuda="$folder"; return; fi
    done
}

# Sets capabilities: the compute capabilities of the GPUs for which Horovod's kernels are compiled (80,90), or all: those
# that nvcc knows. Those of another node are kept, because Horovod does not check whether its kernels were launched: on a
# GPU for which it has none, gradients could be wrong without an error.
choose_capabilities() {
    local known oldest line number
    capabilities=""
    [[ "$cuda" != none ]] || return 0
    if [[ -n "${HOROVOD_BUILD_CUDA_CC_LIST:-}" ]]; then
        capabilities="${HOROVOD_BUILD_CUDA_CC_LIST// /} (HOROVOD_BUILD_CUDA_CC_LIST)"
    elif [[ "$(kept cuda)" == "$cuda" ]]; then
        capabilities="$(kept capabilities)"
    fi
    [[ "$capabilities" != *" "* ]] || return 0
    known="$("$cuda/bin/nvcc" --list-gpu-arch 2>/dev/null | tr '\n' ' ')" || known=""
    oldest="${known%% *}" oldest="${oldest#compute_}"
    while IFS= read -r line; do
        [[ "$line" =~ ^([0-9]+)\.([0-9]+),\ (.*) ]] || continue
        number="${BASH_REMATCH[1]}${BASH_REMATCH[2]}"
        if ((number < ${oldest:-0})); then
            die "$cuda/bin/nvcc is too new for ${BASH_REMATCH[3]} (sm_$number): it compiles for sm_$oldest and newer only. \
CUDA_HOME=/… names an older CUDA, CUDA_HOME=none builds without NCCL, and HOROVOD_BUILD_CUDA_CC_LIST=80,90 for other GPUs only"
        elif [[ " $known" != *" compute_$number "* ]]; then
            capabilities=all # the GPU is newer than nvcc: its driver compiles the newest of all kernels for it
        elif [[ "$capabilities" != all && ",$capabilities," != *",$number,"* ]]; then
            capabilities+="${capabilities:+,}$number"
        fi
    done < <(timeout 30 nvidia-smi --query-gpu=compute_cap,name --format=csv,noheader 2>/dev/null)
    capabilities="${capabilities:-all}"
}

# Sets mpi (what Horovod is built with, or none), mpi_why, and messages: whose MPI mpi4py will load.
choose_mpi() {
    local said version kind=""
    mpi=none messages="PyPI's Open MPI"
    if [[ "${HVDGAN_MPI:-}" == 0 ]]; then mpi_why="HVDGAN_MPI=0"; return; fi
    said="$(timeout 30 mpirun --version 2>/dev/null)" || said=""
    if [[ -z "$said" ]]; then
        mpi_why="mpirun is not on the PATH"
        # An MPI module that is not loaded in this shell must not undo the build.
        if [[ "$(kept mpi)" =~ [0-9] ]] && mpi_still_loads; then
            mpi="$(kept mpi)" messages="this machine's MPI"
            mpi_why="it was built with $mpi (mpirun is not on the PATH now); HVDGAN_MPI=0 undoes it"
        fi
        return
    fi
    # horovodrun tells MPIs apart by these names.
    case "$said" in
        *"Open MPI"* | *OpenRTE*) kind="Open MPI" ;;
        *"IBM Spectrum MPI"*) kind="Spectrum MPI" ;;
        *MPICH*) kind=MPICH ;;
        *"Intel(R) MPI"*) kind="Intel MPI" ;;
    esac
    version="$(grep -oE '[0-9]+(\.[0-9]+)+' <<<"$said" | head -n 1 || true)"
    messages="this machine's MPI"
    if [[ -z "$kind" ]]; then
        mpi_why="horovodrun does not know the MPI here (${said%%$'\n'*})"
    elif [[ "$kind" == "Open MPI" && "${version%%.*}" != 4 ]]; then
        mpi_why="horovodrun cannot drive Open MPI $version (it can Open MPI 4, MPICH and their kin)"
    elif ! command -v mpicxx >/dev/null; then
        mpi_why="$kind $version is here without its compiler, mpicxx (Debian: libopenmpi-dev)"
    else
        mpi="$kind $version" mpi_why="$kind $version is here and horovodrun can drive it"
    fi
}

mpi_still_loads() {
    local needs
    needs="$(ldd "$venv"/lib/python*/site-packages/horovod/tensorflow/mpi_lib*.so 2>/dev/null)" || return 1
    ! grep -q 'libmpi.*not found' <<<"$needs"
}

print_plan() {
    say "Python $python_version ($python)"
    if [[ "$origin" == existing ]]; then plan_existing; return; fi
    say "$tensorflow $(pin tensorflow): $series_why; $device_why"
    case "$device $cuda" in
        "gpu none") say "no NCCL (gradients go through main memory): there is no nvcc; CUDA_HOME=/… names one" ;;
        gpu*) say "NCCL between GPUs, built with $cuda/bin/nvcc for compute capabilities $capabilities" ;;
    esac
    say "Horovod $(pin horovod) over $over: $mpi_why"
    if [[ " $lists " == *" mpi "* ]]; then say "mpi4py $(pin mpi4py) on $messages"; fi
}
