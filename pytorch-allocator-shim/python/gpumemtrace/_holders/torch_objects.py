"""What PyTorch knows of a tensor and of its graph, in the least intrusive way there is.

Constraint: most of what tensors hold is in C++, where no referrer leads: gradients, and what a graph has saved for the backward pass.
To read what was saved may call functions of the program's (`saved_tensors_hooks`: activation checkpoints compute it anew). Consequence: it
is read only where it is known that there is no such function: newer versions tell (2.15 does, 2.9 does not); of others it is known where
the program has been watched since its start (`watch_hooks`). Tensors are asked by the functions of their base class, past `__torch_function__`.
"""

import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .safe_access import bases, is_a, own_attributes

_flags_of = type.__dict__["__flags__"].__get__
#: `Py_TPFLAGS_HEAPTYPE`.
_MADE_IN_PYTHON = 1 << 9
_WATCHED = "_gpumemtrace_hooks_were_used"


class Torch:
    """PyTorch, as far as the program has imported it."""

    def __init__(self, torch: Any) -> None:
        self._c = torch._C
        base = bases(torch.Tensor)[1]
        self._base: type = base
        get = {name: getattr(base, name).__get__ for name in ("is_cuda", "is_leaf", "requires_grad", "grad", "grad_fn")}
        self._is_cuda, self._is_leaf, self._requires_grad = get["is_cuda"], get["is_leaf"], get["requires_grad"]
        self._grad, self._grad_fn = get["grad"], get["grad_fn"]
        self._device = base.get_device  # type: ignore[attr-defined]
        self._module = torch.nn.Module
        #: The address of what the tensor's storage is, not of the tensor in it.
        self._address = getattr(self._c, "_data_address", None)
        self._python_node = self._c._FunctionBase
        self._tells_hooks = hasattr(self._c._autograd.SavedTensor, "unpack_hook")
        used = getattr(self._c._autograd._push_saved_tensors_default_hooks, _WATCHED, None)
        self._may_unpack = used is not None and not used[0]
        self._kinds: Dict[int, bool] = {}
        self._nodes: Dict[int, bool] = {}
        self._saved: Dict[int, List[str]] = {}
        #: Whether some of what a graph has saved could not be read.
        self.left_unread = False

    @classmethod
    def of_program(cls) -> "Optional[Torch]":
        """`None` where the program has not imported it."""
        torch = sys.modules.get("torch")
        try:
            return cls(torch) if torch is not None and "torch.cuda" in sys.modules else None
        except AttributeError:
            return None

    def quiet(self) -> Any:
        """A context in which no `__torch_function__` is called."""
        disabled = getattr(self._c, "DisableTorchFunctionSubclass", None) or self._c.DisableTorchFunction
        return disabled()

    def is_tensor(self, kind: type) -> bool:
        known = self._kinds.get(id(kind))
        if known is None:
            known = self._kinds[id(kind)] = is_a(kind, self._base)
        return known

    def is_module(self, thing: Any) -> bool:
        return is_a(type(thing), self._module)

    def storage(self, tensor: Any) -> Optional[Tuple[int, int]]:
        """Device and address of the tensor's storage; `None` for one without memory on a device of CUDA."""
        try:
            if not self._is_cuda(tensor):
                return None
            if self._address is not None:
                address = self._address(tensor)
            else:
                base: Any = self._base
                address = base.data_ptr(tensor) - base.storage_offset(tensor) * base.element_size(tensor)
            return (self._device(tensor), address) if address else None
        except Exception:
            return None

    def beyond(self, tensor: Any) -> List[Any]:
        """What a tensor holds beyond what Python sees: its gradient, or the node of the graph that made it."""
        try:
            if not self._requires_grad(tensor):
                return []
            found = self._grad(tensor) if self._is_leaf(tensor) else self._grad_fn(tensor)
            return [] if found is None else [found]
        except Exception:
            return []

    def is_node(self, kind: type) -> bool:
        """True for nodes of a graph: those of C++, whose classes nobody can make in Python, and the program's own functions."""
        known = self._nodes.get(id(kind))
        if known is None:
            is_native = not _flags_of(kind) & _MADE_IN_PYTHON and "next_functions" in own_attributes(kind)
            known = self._nodes[id(kind)] = is_native or is_a(kind, self._python_node)
        return known

    def behind(self, node: Any) -> Iterator[Any]:
        """What a node of a graph holds: the nodes before it, and what it has saved."""
        kind = type(node)
        is_python = is_a(kind, self._python_node)
        try:
            get = self._python_node.__dict__["next_functions"].__get__ if is_python else None
            nexts = get(node) if get is not None else node.next_functions
        except Exception:
            nexts = ()
        for following in nexts or ():
            if following[0] is not None:
                yield following[0]
        if is_python:
            yield from self._saved_by(node, "saved_tensors", "_raw_saved_tensors", self._python_node)
            return
        names = self._saved.get(id(kind))
        if names is None:
            prefix = "_raw_saved_"
            names = self._saved[id(kind)] = [name[len(prefix) :] for name in dir(kind) if name.startswith(prefix)]
            if "variable" in dir(kind):
                names.append("")
        for name in names:
            if name:
                yield from self._saved_by(node, "_saved_" + name, "_raw_saved_" + name, kind)
            else:
                try:
                    yield node.variable
                except Exception:
                    continue

    def _saved_by(self, node: Any, plain: str, raw: str, kind: type) -> Iterator[Any]:
        """One thing that was saved, or several."""
        if not self._tells_hooks:
            if not self._may_unpack:
                self.left_unread = True
                return
            try:
                found = getattr(kind, plain).__get__(node)
            except Exception as error:
                # It was given back after the backward pass; or it was changed in place since, and is not shown any more.
                self.left_unread |= "second time" not in str(error)
                return
            yield from found if type(found) in (tuple, list) else (found,)
            return
        try:
            saved = getattr(kind, raw).__get__(node)
        except Exception:
            return
        for one in saved if type(saved) in (tuple, list) else (saved,):
            try:
                # With a function: what that gets. Without: the tensor.
                yield one.data
            except Exception:
                continue


def watch_hooks(torch: Any) -> None:
    """Takes note of functions for what is saved, for versions that do not tell. To be called before anything was saved."""
    autograd = torch._C._autograd
    push = autograd._push_saved_tensors_default_hooks
    register = autograd.SavedTensor.register_hooks
    if hasattr(autograd.SavedTensor, "unpack_hook") or hasattr(push, _WATCHED):
        return
    used = [False]

    def _push_saved_tensors_default_hooks(*arguments: Any) -> Any:
        used[0] = True
        return push(*arguments)

    def register_hooks(*arguments: Any) -> Any:
        used[0] = True
        return register(*arguments)

    setattr(_push_saved_tensors_default_hooks, _WATCHED, used)
    autograd._push_saved_tensors_default_hooks = _push_saved_tensors_default_hooks
    autograd.SavedTensor.register_hooks = register_hooks
