"""The version, which stands in Cargo.toml alone: what was installed knows it."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__: str = version("gpumemtrace")
except PackageNotFoundError:
    # Imported from its folder, without being installed.
    __version__ = "unknown"
