"""Starts the package beside this file in a Python process of a recorded command.

Python imports the first module of this name that it finds. So this one removes its folder from
`sys.path` and then imports the program's own `sitecustomize`, if there is one, in its place. The
program sees the same path and the same module as without gpumemtrace.
"""

import sys


def _import_hidden_sitecustomize() -> None:
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


def _install_triggers(folder: str, name: str) -> None:
    import importlib.util
    import os

    package = os.path.join(folder, name)
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        return
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    importlib.import_module(name + ".triggers").install()


def _main() -> None:
    import os

    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    if sys.version_info >= (3, 10):
        for name in os.listdir(folder):
            if not name.startswith("_gpumemtrace_"):
                continue
            try:
                _install_triggers(folder, name)
            except Exception as error:
                sys.stderr.write(f"gpumemtrace: cannot start {name[len('_gpumemtrace_'):]}: {error!r}\n")
    _import_hidden_sitecustomize()


_main()
