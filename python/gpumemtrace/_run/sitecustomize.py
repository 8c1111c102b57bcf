"""Lets a program under `gpumemtrace run` import the package that its environment does not have.

`run` writes the package and this file into a folder. In each Python process, the preloaded library
puts the folder of this file before `PYTHONPATH`, and this file undoes that before any code of the
program runs: `sys.path` and `PYTHONPATH` are those without gpumemtrace, and so is what children
inherit. What stays is a finder behind all others, so any other `gpumemtrace` is preferred.
"""

import os
import sys


class _LastFinder:
    """Finds the package beside the folder of this file, after every other finder has failed."""

    def __init__(self, folder: str) -> None:
        self._package = os.path.join(os.path.dirname(folder), "gpumemtrace")

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != "gpumemtrace":
            return None
        from importlib.util import spec_from_file_location

        file = os.path.join(self._package, "__init__.py")
        # The folder is gone once `gpumemtrace run` has ended.
        if not os.path.isfile(file):
            return None
        return spec_from_file_location(name, file, submodule_search_locations=[self._package])


def _restore_path(folder: str) -> None:
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)
    value = os.environ.get("PYTHONPATH", "")
    if value == folder:
        del os.environ["PYTHONPATH"]
    elif value.startswith(folder + os.pathsep):
        os.environ["PYTHONPATH"] = value[len(folder) + 1 :]


def _import_hidden_sitecustomize() -> None:
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


_folder = os.path.dirname(os.path.abspath(__file__))
_restore_path(_folder)
if sys.version_info >= (3, 10):
    sys.meta_path.append(_LastFinder(_folder))  # type: ignore[arg-type]
_import_hidden_sitecustomize()
