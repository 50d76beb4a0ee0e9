#!/bin/sh
# Runs zerokit out of this checkout, in an environment (.venv) that it makes by itself.
#
#   ./launch.sh                  plan for this machine and train a small model on it
#   ./launch.sh test [ARGS...]   the test suite; ARGS go to pytest
#   ./launch.sh ARGS...          zerokit ARGS...
#
# PYTHON=/path/to/python3 chooses the interpreter. Needs Python 3.10 or newer with
# venv, a package index that pip can reach (or all packages installed already), and nothing
# else: no compiler, no GPU.
set -eu

say() { printf 'launch.sh: %s\n' "$*" >&2; }
die() {
    say "$@"
    exit 2
}

# The folder of this file, whatever links lead to it.
checkout() {
    path=$1
    while [ -L "$path" ]; do
        target=$(readlink "$path")
        case $target in
            /*) path=$target ;;
            *) path=$(dirname -- "$path")/$target ;;
        esac
    done
    CDPATH='' cd -P -- "$(dirname -- "$path")" && pwd
}

here=$(checkout "$0")
venv=$here/.venv
stamp=$venv/.zerokit-installed

# ---- the interpreter -------------------------------------------------------

# Exit status: 0 usable, 3 older than 3.10, 4 cannot make an environment, else no Python.
probe() {
    "$1" -I -c '
import sys
if sys.version_info < (3, 10):
    sys.exit(3)
try:
    import ensurepip, fcntl, venv
except ImportError:
    sys.exit(4)
' >/dev/null 2>&1
}

no_venv_message() {
    version=$("$1" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    say "$1 (Python $version) comes without the venv and ensurepip modules."
    if [ -r /etc/debian_version ]; then
        say "On Debian and Ubuntu:  apt-get install python$version-venv"
    fi
    die "Install them, or name another Python 3.10 or newer:  PYTHON=/path/to/python3 ./launch.sh"
}

# Sets $python to $PYTHON, else the first usable one on PATH.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        status=0
        probe "$PYTHON" || status=$?
        case $status in
            0) python=$PYTHON ;;
            3) die "PYTHON=$PYTHON is $("$PYTHON" --version 2>&1); zerokit needs 3.10 or newer." ;;
            4) no_venv_message "$PYTHON" ;;
            *) die "PYTHON=$PYTHON does not run as a Python interpreter." ;;
        esac
        return
    fi
    found=
    without_venv=
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        status=0
        probe "$candidate" || status=$?
        case $status in
            0) python=$candidate && return ;;
            3) found="$found $candidate ($("$candidate" --version 2>&1))" ;;
            4) without_venv=${without_venv:-$candidate} ;;
        esac
    done
    [ -z "$without_venv" ] || no_venv_message "$without_venv"
    say "no Python 3.10 or newer on PATH${found:+; found only$found}."
    die "Install one, or name it:  PYTHON=/path/to/python3 ./launch.sh"
}

# ---- the environment -------------------------------------------------------

# All that the environment is made from; a copy of it in the environment is the proof
# that the last installation ran to its end.
ingredients() {
    printf 'extras: %s\ncheckout: %s\n' "$1" "$here"
    cat "$here/pyproject.toml" "$here/constraints.txt" "$venv/pyvenv.cfg"
}

installed() {
    [ -f "$stamp" ] && [ -x "$venv/bin/python" ] && ingredients "$1" | cmp -s - "$stamp"
}

base_of() {
    "$1" -I -c 'import os, sys; print(sys.version, os.path.realpath(sys.base_prefix))' 2>/dev/null
}

# Unless $PYTHON asks for another one, the environment keeps the Python it was made with.
same_python() {
    [ -z "${PYTHON:-}" ] || [ "$(base_of "$PYTHON")" = "$(base_of "$venv/bin/python")" ]
}

# $1: the extras to have, "train" or "train,dev" (which serves for "train" as well).
ready() {
    same_python && { installed train,dev || { [ "$1" = train ] && installed train; }; }
}

# One installation at a time. The lock is on an open file, so it goes when the last
# process that holds it is gone, however that ended.
lock() {
    exec 9>>"$here/.venv.lock" || die "$here cannot be written to; put the checkout where it can."
    if ! "$python" -I -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)' 2>/dev/null; then
        say "another launch.sh is installing into $venv; waiting for it."
        "$python" -I -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
    fi
}

# A missing stamp tells of an installation that was interrupted; pip would take what is
# half there for whole, so that environment is made anew.
make_environment() {
    if [ -f "$stamp" ] && [ -n "$(base_of "$venv/bin/python")" ] && same_python \
        && grep -qxF "checkout: $here" "$stamp"; then
        rm -f "$stamp"
        return
    fi
    rm -f "$stamp"
    rm -rf "$venv"
    say "making $venv with $("$python" --version 2>&1)"
    "$python" -I -m venv "$venv" || die "the environment could not be made (see above)."
}

# The build of DeepSpeed's wheel compiles nothing (DS_BUILD_OPS=0) and, as pip isolates
# it from torch, cannot ask for an operation that needs a compiler.
pip_install() {
    quiet=-q
    [ ! -t 2 ] || quiet=
    cd "$here"
    env -u PYTHONPATH -u PYTHONHOME -u PIP_TARGET -u PIP_PREFIX PIP_USER=0 \
        DS_BUILD_OPS=0 PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
        "$venv/bin/python" -m pip install $quiet --disable-pip-version-check --no-input --no-compile \
        -e ".[$1]" >&2 || return
    # On all cores, while pip would use one. Where PYTHONDONTWRITEBYTECODE is set, every start would
    # compile the sources again. A third of them hardly anybody imports: tests, and Transformers' models.
    "$venv/bin/python" -m compileall -q -j 0 \
        -x 'site-packages/(.*/tests?/|transformers/models/(?!auto/)[a-z0-9_]+/)' \
        "$venv"/lib/python*/site-packages zerokit >/dev/null 2>&1 || true
}

# Without an index: the packages that $python has itself, if those are all that zerokit[$1] needs.
# No version is compared; zerokit launch and doctor refuse what cannot work.
take_packages_of_python() {
    missing=$("$python" -I - "$here/pyproject.toml" "$1" <<'EOF'
import importlib.metadata, re, sys
text = open(sys.argv[1], encoding="utf-8").read()
missing = []
for key in ["dependencies", *sys.argv[2].split(",")]:
    for entry in re.findall(r'"([^"]*)"', re.search(rf"^{key} = \[(.*)\]$", text, re.M)[1]):
        asked = re.search(r"python_version (<|>=) '3\.(\d+)'", entry)
        if asked and (sys.version_info[1] < int(asked[2])) != (asked[1] == "<"):
            continue
        name = re.match(r"[\w.-]+", entry)[0]
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name == "matplotlib":  # a page says so itself
                print("launch.sh: without matplotlib, pages have no charts", file=sys.stderr)
            else:
                missing.append(name)
print(*missing)
EOF
    ) || return
    if [ -n "$missing" ]; then
        say "$python does not have them either: $missing"
        say "(PYTHON=/path/to/python3 names one that has them)"
        return 1
    fi
    "$python" -I - "$here" "$venv" <<'EOF' || return
import os, pathlib, shlex, sys
here, venv = map(pathlib.Path, sys.argv[1:])
(site,) = (venv / "lib").glob("python*/site-packages")
packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
(site / "packages-of-python.pth").write_text("\n".join([str(here), *packages, ""]))
command = venv / "bin" / "zerokit"
command.write_text(f"""#!/bin/sh
'''exec' {shlex.quote(str(venv / 'bin' / 'python'))} "$0" "$@"
' '''
import sys
from zerokit.cli import main
sys.exit(main())
""")
command.chmod(0o755)
EOF
    say "going on with the packages that $python has, in the versions that it has;"
    say "where an index can be reached, remove $venv and run the same command again."
}

install() (
    find_python
    lock
    if ready "$1"; then exit 0; fi
    make_environment
    say "installing zerokit[$1] and what it needs (once; some minutes, mostly PyTorch)"
    if ! pip_install "$1"; then
        say "the installation failed (see above)."
        take_packages_of_python "$1" || die "run the same command to try again."
    fi
    ingredients "$1" >"$stamp.new"
    mv "$stamp.new" "$stamp"
)

ensure() {
    # what the commands that zerokit shows to be run next begin with
    case $0 in
        */*) ZEROKIT_COMMAND=$0 ;;
        *) ZEROKIT_COMMAND=$here/launch.sh ;;
    esac
    export ZEROKIT_COMMAND
    ready "$1" || install "$1"
    PATH=$venv/bin:$PATH
    export PATH
}

# ---- what to run -----------------------------------------------------------

# Plans for this machine's GPUs, or for two CPU ranks where there are none, and trains.
demo() {
    cd "$here"
    run=runs/demo-$(date +%Y%m%d-%H%M%S)
    "$venv/bin/zerokit" plan --model examples/tiny-llama.json --seq-len 128 --micro-batch 4 \
        --gradient-accumulation 1 --checkpointing none --device local --out "$run/plan"
    printf '\n'
    "$venv/bin/zerokit" launch --plan "$run/plan" --run-dir "$run/run" examples/train_causal_lm.py --steps 20
    cat <<EOF

The run folder: $here/$run/run

Next:
  ./launch.sh report $run/run
      shows this run again; report.html in the run folder is for a browser
  ./launch.sh plan --params 70b --gpus 8 --gpu h200
      what a large model would need; --help lists models, hardware and job options
  ./launch.sh launch --plan zerokit-plan train.py
      runs your own script, unmodified, with the plan written by the line before
EOF
}

case ${1-} in
    '')
        ensure train
        demo
        ;;
    test)
        shift
        ensure train,dev
        cd "$here"
        # All of it: three files at a time, since many tests wait, in the order of tests/conftest.py.
        [ $# -gt 0 ] || set -- -n 3 --dist loadfile --no-loadscope-reorder
        exec "$venv/bin/python" -m pytest "$@"
        ;;
    *)
        ensure train
        exec "$venv/bin/zerokit" "$@"
        ;;
esac
