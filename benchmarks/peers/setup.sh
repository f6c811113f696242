#!/usr/bin/env bash
# Make .venv-peers: PyTorch for the peers, apart from TensorFlow. Takes a second where it is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

venv=.venv-peers
cpu_wheels=https://download.pytorch.org/whl/cpu
wanted="$(sed -n '/^peers =/,/^[a-z\[]* =/{s/^ \{4\}//p}' setup.cfg)"
if [[ -f "$venv/.hvdgan" && "$(<"$venv/.hvdgan")" == "$wanted" ]]; then exit; fi
if [[ -e "$venv" && ! -e "$venv/.hvdgan" ]]; then
    echo "error: $venv was not made by this script: move it away" >&2
    exit 1
fi

echo "making $venv: $wanted"
python="${PYTHON:-.venv/bin/python}"
# PyPI's build for Linux brings 3 GB of CUDA; where PyTorch's own index answers, its build for CPUs is found there.
index=()
if "$python" -c "import urllib.request; urllib.request.urlopen('$cpu_wheels/torch/', timeout=10)" 2>/dev/null; then
    index=(--extra-index-url "$cpu_wheels")
fi
rm -rf "$venv"
mkdir "$venv"
touch "$venv/.hvdgan" # empty: begun; a call that was cut short begins again
"$python" -m venv "$venv"
# shellcheck disable=SC2086  # one word for each requirement
"$venv/bin/python" -m pip install -q --disable-pip-version-check -c launch/constraints.txt "${index[@]}" $wanted
"$venv/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
printf '%s\n' "$wanted" >"$venv/.hvdgan"
