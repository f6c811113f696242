# Shared by the launch scripts and benchmarks/gpu.sh, which source it: finds the Python that has hvdgan.
# shellcheck shell=bash

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

# Use the checkout's own .venv, unless another environment is active. Sets python to the full path, which is valid on
# every host that sees the same files.
use_python() {
    local active="${VIRTUAL_ENV:-${CONDA_DEFAULT_ENV:-}}"
    if [[ -z "$active" || "$active" == base ]] && [[ -x "$root/.venv/bin/python" ]]; then PATH="$root/.venv/bin:$PATH"; fi
    python="$(command -v python)" || {
        echo "${0##*/}: found no python; run launch/setup.sh, or activate your environment" >&2
        exit 1
    }
}

# launch WORD ...: start ranks; hvdgan launch --help lists its flags.
launch() {
    use_python
    exec "$python" -m hvdgan.launch "$@"
}
