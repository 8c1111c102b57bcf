"""Starts `gpumemtrace run --holders` in a Python of the command that is run.

Constraint: Python imports one module of this name, the first that is found. Consequence: this one takes its folder out of the path
again and then imports the other, if there is one, in its own place: the program sees the same path and the same module as without.
"""

import sys


def _the_other() -> None:
    """Imports the module that would have been this one."""
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


def _start(folder: str) -> None:
    import importlib.util
    import os

    name = "_gpumemtrace_holders"
    package = os.path.join(folder, name)
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        return
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    importlib.import_module(name + ".triggers").install()


def _begin() -> None:
    import os

    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    if sys.version_info >= (3, 8) and os.environ.get("GPUMEMTRACE_HOLDERS") == "1":
        try:
            _start(folder)
        except Exception as error:
            sys.stderr.write(f"gpumemtrace: who holds what leaks will not be told: {error!r}\n")
    _the_other()


_begin()
