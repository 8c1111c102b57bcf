# Shared by the scripts; sourced, never run. All their output lies under target/.

set -euo pipefail
script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repository"
target=${CARGO_TARGET_DIR:-$repository/target}
export CARGO_TARGET_DIR=$target
release=$target/release

# Prints the comment at the head of the script.
print_usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$script"; }
heading() { printf '\n== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "${0##*scripts/}" "$*" >&2
    exit 1
}

need_cargo() {
    command -v cargo >/dev/null 2>&1 ||
        die "cargo is not installed; install Rust from https://rustup.rs and run this again"
    command -v cc >/dev/null 2>&1 ||
        die "no C compiler found (libzstd needs one); on Debian or Ubuntu: apt install gcc libc6-dev"
}

# Prints the path of the first Python of the given versions, on PATH or under pyenv; else nothing.
find_python() {
    local version candidate
    for version in "$@"; do
        for candidate in "$(command -v "python$version" 2>/dev/null || true)" \
            "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"python$version"; do
            if [ -n "$candidate" ] && [ -x "$candidate" ] &&
                [ "$("$candidate" -c 'import sys; print("%d.%d%s" % (*sys.version_info[:2], sys.abiflags.replace("m", "")))' 2>/dev/null)" = "$version" ]; then
                echo "$candidate"
                return
            fi
        done
    done
}

# Installs zig and cargo-zigbuild, for other systems and older C libraries; prints the folder.
zig_tools() {
    local python tools=$target/venvs/wheel
    python=$(find_python 3.11 3.12 3.13)
    [ -n "$python" ] || die "no Python 3.11, 3.12 or 3.13 found"
    [ -x "$tools/bin/python" ] || "$python" -m venv "$tools" >&2
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'ziglang>=0.15,<0.18' 'cargo-zigbuild>=0.20,<0.25' \
        'hatchling>=1.27,<2' 'auditwheel>=6.4,<7' >&2 || die "cannot install zig (ziglang, cargo-zigbuild)"
    echo "$tools"
}
