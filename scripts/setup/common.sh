# Shared by the scripts of this folder; sourced, never run.
# Everything they make lies under target/, so that removing that folder removes it all.

set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repository"
target=${CARGO_TARGET_DIR:-$repository/target}
export CARGO_TARGET_DIR=$target
release=$target/release

say() { printf '\n== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "${0##*scripts/}" "$*" >&2
    exit 1
}

need_cargo() {
    command -v cargo >/dev/null 2>&1 ||
        die "cargo is not installed; get Rust from https://rustup.rs and run this again"
    command -v cc >/dev/null 2>&1 ||
        die "no C compiler was found (libzstd needs one); on Debian or Ubuntu: apt install gcc libc6-dev"
}

# A Python of one of the given versions, on PATH or under pyenv: prints its path, or nothing.
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

# zig, which compiles C and links for other systems and older C libraries, with what drives cargo through it: prints the folder.
zig_tools() {
    local python tools=$target/venvs/wheel
    python=$(find_python 3.11 3.12 3.13)
    [ -n "$python" ] || die "Python 3.11, 3.12 or 3.13 is needed; none was found"
    [ -x "$tools/bin/python" ] || "$python" -m venv "$tools" >&2
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'ziglang>=0.15,<0.18' 'cargo-zigbuild>=0.20,<0.25' \
        'hatchling>=1.27,<2' 'auditwheel>=6.4,<7' >&2 || die "zig cannot be installed (ziglang, cargo-zigbuild)"
    echo "$tools"
}
