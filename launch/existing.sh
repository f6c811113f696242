# Uses a TensorFlow and a Horovod that are there already. launch/setup.sh sources it, with root, venv and pins set.
#
# .venv then holds what they lack, and sees the folders in which they lie; it changes nothing there, so that it works
# with a cluster's module, too.
# shellcheck shell=bash disable=SC2034,SC2154  # the variables are shared with setup.sh

# Sets origin: build or existing.
choose_horovod() {
    origin="${HVDGAN_HOROVOD:-}"
    # A later call without the variable must not build what was not wanted.
    if [[ -z "$origin" && -n "$(kept existing)" ]]; then origin=existing; fi
    origin="${origin:-build}"
    [[ "$origin" == build || "$origin" == existing ]] || die "HVDGAN_HOROVOD=$origin: expected existing or build"
    if [[ "$origin" == existing && -n "${HVDGAN_TF:-}" ]]; then
        die "HVDGAN_TF=$HVDGAN_TF: HVDGAN_HOROVOD=existing takes the TensorFlow that is there; leave one of them out"
    fi
}

# Sets python, python_version, found (what launch/existing.py says of it) and the keys of setup.sh.
find_existing() {
    local complaint sources
    python="${PYTHON:-$(kept existing)}"
    if [[ -z "$python" ]]; then python="$(command -v python || command -v python3)" || die "found no python on the PATH"; fi
    command -v "$python" >/dev/null || die "HVDGAN_HOROVOD=existing: there is no $python"
    complaint="$(mktemp)"
    found="$(PYTHONPATH="$module_path" "$python" "$root/launch/existing.py" find 2>"$complaint")" || {
        found="$(tail -n 1 "$complaint")"
        rm -f "$complaint"
        die "HVDGAN_HOROVOD=existing: $python: ${found:-does not run}"
    }
    rm -f "$complaint"
    python_version="$(existing python)" python="$(existing executable)"
    sources="$(cat "$pins" "$root/setup.cfg" "$root"/launch/{setup,existing}.sh "$root/launch/existing.py" | sha256sum)"
    printf -v base 'root=%s\npython=%s\ndevice=\nseries=\nexisting=%s' "$root" "${python_version%.*}" "$python"
    messages="PyPI's Open MPI"
    if [[ " $(existing kinds) " == *MPI* ]]; then messages="its MPI"; fi
    choose_lists
    printf -v packages '%s\nlists=%s\nsources=%s' "$base" "$lists" "${sources%% *}"
    horovod="$found"
    ready="Python ${python_version%.*}, and of $python TensorFlow $(existing tensorflow) and Horovod \
$(existing horovod) with $(existing kinds)"
}

# existing KEY: print what launch/existing.py has found.
existing() { sed -n "s/^$1=//p" <<<"$found"; }

plan_existing() {
    say "TensorFlow $(existing tensorflow) and Horovod $(existing horovod) with $(existing kinds), which are there already"
    if [[ " $(existing kinds) " != *" Gloo"* ]]; then
        say "without Gloo: no elastic runs, and horovodrun needs an MPI that it can drive (launch/mpirun.sh drives others)"
    fi
}

install_beside_existing() {
    local -a wanted
    local site
    if ! stamped packages "$packages" || ! stamped horovod "$horovod"; then
        say "[2/4] what is missing there, from PyPI"
        rm -f "$venv/.hvdgan-packages" "$venv/.hvdgan-horovod"
        site="$(echo "$venv"/lib/python*/site-packages)"
        # addsitedir, since those folders may have .pth files of their own.
        existing pth >"$site/hvdgan-existing.pth"
        PYTHONPATH="$module_path" "$python" "$root/launch/existing.py" constraints "$pins" >"$venv/constraints.txt"
        read_wanted
        logged "installing the packages" pip install -c "$venv/constraints.txt" "${wanted[@]}"
        # The existing horovodrun starts the existing Python, and may not be on the PATH.
        printf '#!/bin/sh\nexec %q -m horovod.runner.launch "$@"\n' "$venv/bin/python" >"$venv/bin/horovodrun"
        chmod +x "$venv/bin/horovodrun"
        say "[3/4] checking the Horovod that is there"
        check_horovod "$(existing kinds | tr , ' ')"
        printf '%s\n' "$packages" >"$venv/.hvdgan-packages"
        printf '%s\n' "$horovod" >"$venv/.hvdgan-horovod"
    fi
}
