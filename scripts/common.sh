# Shared by the scripts of this folder; sourced, never run.
# Everything they make lies under target/, so that removing that folder removes it all.

set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"
target=${CARGO_TARGET_DIR:-$repository/target}
export CARGO_TARGET_DIR=$target
release=$target/release

say() { printf '\n== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
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
