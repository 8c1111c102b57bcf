"""Calls functions when the program imports a module."""

import sys
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Sequence


class ImportHook:
    """Calls a function after each awaited module is imported; removes itself after the last one."""

    def __init__(self, awaited: Dict[str, Callable[[], None]]) -> None:
        self._awaited = awaited

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Any:
        on_loaded = self._awaited.pop(name, None)
        if on_loaded is None:
            return None
        position = sys.meta_path.index(self) if self in sys.meta_path else -1
        others = sys.meta_path[position + 1 :]
        if not self._awaited and position >= 0:
            del sys.meta_path[position]
        for finder in others:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    loader = _CallbackLoader(spec.loader, on_loaded)
                    spec.loader = loader  # type: ignore[assignment]
                return spec
        return None


class _CallbackLoader:
    """Loads a module with its own loader, which it then restores, and calls a function."""

    def __init__(self, own: Any, on_loaded: Callable[[], None]) -> None:
        self._own, self._on_loaded = own, on_loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: Any) -> Any:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        module.__loader__ = self._own
        self._own.exec_module(module)
        try:
            self._on_loaded()
        except Exception:
            # An unknown version of PyTorch: what needed this is missing, and the program goes on.
            return
