#!/usr/bin/env bash
# Make .venv-peers: PyTorch for the peers, apart from TensorFlow. Takes a second where it is there already. With
# HVDGAN_GPU=1 it is PyPI's build, which brings CUDA and NCCL.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

venv=.venv-peers
cpu_wheels=https://download.pytorch.org/whl/cpu
wanted="$(sed -n '/^peers =/,/^[a-z\[]* =/{s/^ \{4\}//p}' setup.cfg)"
with_cuda="$wanted with CUDA"
if [[ -f "$venv/.hvdgan" ]]; then
    made="$(<"$venv/.hvdgan")"
    # The build with CUDA computes on CPUs too.
    if [[ "$made" == "$with_cuda" || ("$made" == "$wanted" && "${HVDGAN_GPU:-}" != 1) ]]; then exit; fi
fi
if [[ -e "$venv" && ! -e "$venv/.hvdgan" ]]; then
    echo "error: $venv was not made by this script: move it away" >&2
    exit 1
fi

echo "making $venv: $wanted"
python="${PYTHON:-.venv/bin/python}"
# PyPI's build for Linux brings 3 GB of CUDA; where PyTorch's own index answers, its build for CPUs is found there.
index=() wanted_here="$wanted"
if [[ "${HVDGAN_GPU:-}" == 1 ]]; then
    wanted_here="$with_cuda"
elif "$python" -c "import urllib.request; urllib.request.urlopen('$cpu_wheels/torch/', timeout=10)" 2>/dev/null; then
    index=(--extra-index-url "$cpu_wheels")
fi
rm -rf "$venv"
mkdir "$venv"
touch "$venv/.hvdgan" # empty: begun; a call that was cut short begins again
"$python" -m venv "$venv"
# shellcheck disable=SC2086  # one word for each requirement
"$venv/bin/python" -m pip install -q --disable-pip-version-check -c launch/constraints.txt "${index[@]}" $wanted
"$venv/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
printf '%s\n' "$wanted_here" >"$venv/.hvdgan"
