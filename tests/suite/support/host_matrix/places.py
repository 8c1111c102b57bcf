"""The kinds of folder that a program of the host matrix can run in.

Each place is a context manager that takes an empty folder and yields the folder to run in. It
raises LookupError if the machine cannot provide it.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

PLACES = {}
#: Held while a test depends on how the kernel protects files in folders like /tmp.
PROTECTION_LOCK = "/tmp/gpumemtrace-host-matrix.lock"


def place(function):
    """Registers a place under its function's name, with hyphens."""
    PLACES[function.__name__.replace("_", "-")] = contextlib.contextmanager(function)
    return function


def do(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode:
        raise LookupError(f"`{' '.join(map(str, command))}` fails: {(done.stderr or done.stdout).strip()[:200]}")


def need(*commands):
    for command in commands:
        if not shutil.which(command):
            raise LookupError(f"{command} is not installed")


@contextlib.contextmanager
def mounted(folder, *command):
    folder.mkdir(exist_ok=True)
    do(*command, folder)
    try:
        yield folder
    finally:
        # A FUSE server or a process of the program may take a moment to let go.
        if subprocess.run(["umount", folder], capture_output=True).returncode:
            subprocess.run(["umount", "-l", folder], check=True)


@place
def plain(folder):
    yield folder


@place
def tmpfs(folder):
    with mounted(folder / "tmpfs", "mount", "-t", "tmpfs", "-o", "size=64M", "none") as inside:
        yield inside


@place
def small_disk(folder):
    """A disk that has room for the rings, and soon is full."""
    with mounted(folder / "small", "mount", "-t", "tmpfs", "-o", "size=9M", "none") as inside:
        yield inside


@place
def full_disk(folder):
    with mounted(folder / "full", "mount", "-t", "tmpfs", "-o", "size=64K", "none") as inside:
        yield inside


@place
def read_only(folder):
    with mounted(folder / "locked", "mount", "-t", "tmpfs", "-o", "size=1M,ro", "none") as inside:
        yield inside


@place
def sticky(folder):
    """A folder like /tmp: everyone may write."""
    with open(PROTECTION_LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        folder.chmod(0o1777)
        yield folder


@place
def protected_sticky(folder):
    """Like `sticky`, with the kernel's protection on: it refuses to open another user's file with
    O_CREAT there. The setting is the machine's, so a lock keeps other tests of such folders out."""
    setting = Path("/proc/sys/fs/protected_regular")
    with open(PROTECTION_LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = setting.read_text()
        try:
            setting.write_text("2")
        except OSError as error:
            raise LookupError(f"{setting}: {error.strerror}") from error
        try:
            folder.chmod(0o1777)
            yield folder
        finally:
            setting.write_text(before)


@place
def overlay(folder):
    for name in ("lower", "upper", "work"):
        (folder / name).mkdir()
    layers = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    with mounted(folder / "merged", "mount", "-t", "overlay", "-o", layers, "overlay") as inside:
        yield inside


@place
def fuse(folder):
    """Without a cache of attributes: the kernel keeps one for each name of a file, and shows the
    old size under the second name for a second (docs/limits.md)."""
    need("bindfs")
    (folder / "behind").mkdir()
    options = "attr_timeout=0,entry_timeout=0"
    with mounted(folder / "mirror", "bindfs", "-o", options, folder / "behind") as inside:
        yield inside


@place
def fuse_overlay(folder):
    need("fuse-overlayfs")
    for name in ("lower", "upper", "work"):
        (folder / name).mkdir()
    layers = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    with mounted(folder / "merged", "fuse-overlayfs", "-o", layers) as inside:
        yield inside


@place
def ext4(folder):
    """A disk of its own that goes read-only at its first error."""
    need("mkfs.ext4")
    image = folder / "image"
    with open(image, "wb") as file:
        os.truncate(file.fileno(), 64 << 20)
    do("mkfs.ext4", "-q", "-F", image)
    with mounted(folder / "disk", "mount", "-o", "loop,errors=remount-ro", image) as inside:
        (inside / "lost+found").rmdir()
        yield inside


@place
def quota(folder):
    """A quota of 9 MiB: room for the rings. The kernels of small machines often lack the quotas of
    ext4 and XFS, so this is btrfs."""
    need("mkfs.btrfs", "btrfs")
    image = folder / "image"
    with open(image, "wb") as file:
        os.truncate(file.fileno(), 256 << 20)
    do("mkfs.btrfs", "-q", image)
    with mounted(folder / "disk", "mount", "-o", "loop", image) as disk:
        do("btrfs", "quota", "enable", disk)
        do("btrfs", "subvolume", "create", disk / "limited")
        do("btrfs", "qgroup", "limit", "9M", disk / "limited")
        yield disk / "limited"
