"""Calls functions when the program imports a module."""

import sys
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Sequence


class ImportHook:
    """Calls a function after each awaited module is imported; removes itself after the last one."""

    def __init__(self, awaited: Dict[str, Callable[[], None]]) -> None:
        self._awaited = awaited

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Any:
        if name not in self._awaited:
            return None
        position = sys.meta_path.index(self) if self in sys.meta_path else -1
        for finder in sys.meta_path[position + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    loader = _CallbackLoader(spec.loader, lambda: self._on_loaded(name))
                    spec.loader = loader  # type: ignore[assignment]
                return spec
        return None

    def _on_loaded(self, name: str) -> None:
        """A module that is only searched, as `find_spec("torch")` does, is still awaited."""
        on_loaded = self._awaited.pop(name, None)
        if not self._awaited and self in sys.meta_path:
            sys.meta_path.remove(self)
        if on_loaded is not None:
            on_loaded()


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
