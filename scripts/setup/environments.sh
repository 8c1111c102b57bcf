# The environments of the suites, below target/venvs; sourced by scripts/test and its long checks.

tools=$target/venvs/tools
#: The PyTorch of most cases, and the one that tests of PyTorch itself run with too.
newest_torch=2.15.0 older_torch=2.9.1
# Few machines have CPython 3.14 yet, so it is optional.
newest_python=3.13
[ -z "$(find_python 3.14)" ] || newest_python=3.14

install_tools() {
    [ -x "$tools/bin/python" ] || "$python" -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'pytest>=8,<9' 'pytest-xdist>=3.6,<4' 'zstandard>=0.23' \
        'hatchling>=1.27,<2' 'mypy>=1.13,<3' 'jsonschema>=4.23,<5' 'lief>=0.16,<2' 'pyyaml>=6,<7'
    # Greenlets switch parts of the C stack; one interpreter tests them.
    [ -d "$target/venvs/greenlet/gevent" ] ||
        "$python" -m pip install --quiet --disable-pip-version-check --upgrade --target "$target/venvs/greenlet" greenlet gevent ||
        skip "greenlets: cannot install greenlet and gevent"
    export GPUMEMTRACE_GREENLETS=$python=$target/venvs/greenlet
}

# Installs PyTorch with another CPython for each release, if there are several. With a second
# argument, the simulated GPU is left out.
install_torch() {
    local found
    found=$(find_python "$([ "$1" = "$newest_torch" ] && echo 3.12 || echo 3.11)")
    scripts/simgpu-venv ${2:+--packages-only} --with expecttest --torch "$1" --python "${found:-$python}" "$target/venvs/torch-$1"
}

# Sets GPUMEMTRACE_VENVS, the newest release first.
list_torches() {
    export GPUMEMTRACE_VENVS=$newest_torch=$target/venvs/torch-$newest_torch,$older_torch=$target/venvs/torch-$older_torch
}

install_readers() {
    if scripts/setup/readers "$@" "$target/venvs/readers"; then
        export GPUMEMTRACE_READERS=$target/venvs/readers
    else
        skip "exported files in third-party readers: scripts/setup/readers failed"
    fi
}

# Sets GPUMEMTRACE_PYTHONS to the installed ones of the given versions, and skips the others.
list_pythons() {
    local version found pythons=()
    for version in "$@"; do
        found=$(find_python "$version")
        if [ -n "$found" ]; then pythons+=("$found"); else skip "CPython $version: not installed here"; fi
    done
    GPUMEMTRACE_PYTHONS=$(IFS=,; echo "${pythons[*]}")
    # A Python whose frames gpumemtrace does not read.
    GPUMEMTRACE_OLD_PYTHON=$(find_python 3.9 3.8)
    [ -n "$GPUMEMTRACE_OLD_PYTHON" ] || skip "native stacks of an older CPython: neither 3.9 nor 3.8 is installed"
    export GPUMEMTRACE_PYTHONS GPUMEMTRACE_OLD_PYTHON
}

check_python_offsets() {
    heading "CPython field offsets"
    local found pythons
    IFS=, read -ra pythons <<<"$GPUMEMTRACE_PYTHONS"
    for found in "${pythons[@]}"; do
        if "$found" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' &&
            command -v gcc >/dev/null; then
            "$python" scripts/generate/python-abi --check "$found"
        else
            skip "the field offsets of $found: no headers or no gcc"
        fi
    done
}

# Lists the suites' tests that skip themselves because a tool is missing.
list_missing_tools() {
    [ -x "${CHROMIUM:-/usr/bin/chromium}" ] || skip "the page in a browser: Chromium is not installed (Debian's chromium, or set CHROMIUM)"
    command -v c++ >/dev/null && command -v objcopy >/dev/null || skip "names of native frames: no C++ compiler or no binutils"
    command -v "${CXX:-g++}" >/dev/null || skip "the model of PyTorch's allocator: no C++ compiler"
    command -v "${CC:-cc}" >/dev/null || skip "the routes to the driver: no C compiler"
    # The kinds of file system that host programs run on need root and these tools.
    [ "$(id -u)" = 0 ] || skip "host programs that mount file systems or change their user: not root"
    local tool
    for tool in bindfs fuse-overlayfs mkfs.btrfs mkfs.ext4; do
        command -v "$tool" >/dev/null || skip "host programs on a file system of $tool: it is not installed"
    done
    [ -n "$quick" ] || for tool in go dot; do
        command -v "$tool" >/dev/null || skip "exported files in pprof: $tool is not installed (Debian's golang-go and graphviz)"
    done
}
