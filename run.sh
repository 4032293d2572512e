#!/usr/bin/env bash
# One command for everything: makes .venv if there is none, installs the project, and starts.
#
#   ./run.sh                                   train the built-in digits on $NPROC (2) processes
#   ./run.sh configs/net.yaml train.epochs=3   train what a config says
#   ./run.sh test [pytest's own words]         lint, types, suite
#
# A first word that names an entry point of launch/ runs that; PYTHON chooses the interpreter.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$root/.venv/bin/python

say() { printf 'run.sh: %s\n' "$*" >&2; }

make_venv() {
    local base=${PYTHON:-python3}
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
        say "wanted Python 3.10 or later, met $("$base" --version 2>&1 || true); set PYTHON=/path/to/python3"
        exit 2
    }
    say "making $root/.venv"
    "$base" -m venv "$root/.venv" || {
        rm -rf "$root/.venv"
        say "$base cannot make a virtual environment; on Debian: apt install python3-venv"
        exit 2
    }
}

# is_current MARK: whether MARK was left after the last change of what an installation depends on.
is_current() {
    local file
    for file in setup.cfg pyproject.toml constraints.txt; do
        [ "$1" -nt "$root/$file" ] || return 1
    done
}

# install [EXTRA]: the project and its dependencies, unless that is done already.
install() {
    local mark=$root/.venv/installed extra=${1:+[$1]}
    is_current "$mark-test" || is_current "$mark${1:+-$1}" && return
    say "installing the project$extra and its dependencies"
    "$python" -m pip install --quiet --disable-pip-version-check \
        -c "$root/constraints.txt" -e "$root$extra"
    touch "$mark${1:+-$1}"
}

test_all() {
    cd "$root"
    "$python" -m ruff check .
    "$python" -m ruff format --check --quiet .
    "$python" -m mypy
    exec "$python" -m pytest "$@"
}

processes=${NPROC:-2}
[[ $processes =~ ^[1-9][0-9]*$ ]] || {
    say "NPROC wants the number of processes, met '$processes'"
    exit 2
}
[ -x "$python" ] || make_venv

if [ "${1-}" = test ]; then
    shift
    install test
    test_all "$@"
fi

install
entry=train
if [[ "${1-}" =~ ^[a-z]+$ ]] && grep -qs __main__ "$root/launch/$1.py"; then
    entry=$1
    shift
fi
case $entry in
    train | script)
        share=$(($(nproc) / processes))
        export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((share > 1 ? share : 1))}
        exec "$python" -m torch.distributed.run --standalone --nproc_per_node="$processes" \
            -m "launch.$entry" "$@"
        ;;
    *) exec "$python" -m "launch.$entry" "$@" ;;
esac
