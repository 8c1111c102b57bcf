"""The version of the installed package. Cargo.toml is its only source."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__: str = version("gpumemtrace")
except PackageNotFoundError:
    # Imported from a source folder, without being installed.
    __version__ = "unknown"
