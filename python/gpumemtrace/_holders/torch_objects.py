"""What a tensor and its autograd graph hold, read with the least possible effect.

Most of what tensors hold is in C++, out of reach of `gc.get_referents`: gradients, and what a graph
has saved for the backward pass. Reading a saved tensor may call functions of the program
(`saved_tensors_hooks`; activation checkpointing then recomputes it). So it is read only if it is
known to have no hook. PyTorch 2.15 reports that and 2.9 does not; without the report, hooks must
have been watched since the start of the program (`watch_saved_tensor_hooks`). Tensors are read
with the functions of their base class, which bypasses `__torch_function__`.
"""

import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .safe_access import class_dict, is_subclass, mro

_get_flags = type.__dict__["__flags__"].__get__
#: `Py_TPFLAGS_HEAPTYPE`: set for classes created in Python.
_HEAP_TYPE = 1 << 9
_WATCH_ATTRIBUTE = "_gpumemtrace_hooks_were_used"


class TorchObjects:
    """Accessors for tensors, autograd nodes and modules of the program's PyTorch."""

    def __init__(self, torch: Any) -> None:
        self._c = torch._C
        base = mro(torch.Tensor)[1]
        self._base: type = base
        get = {name: getattr(base, name).__get__ for name in ("is_cuda", "is_leaf", "requires_grad", "grad", "grad_fn")}
        self._is_cuda, self._is_leaf, self._requires_grad = get["is_cuda"], get["is_leaf"], get["requires_grad"]
        self._grad, self._grad_fn = get["grad"], get["grad_fn"]
        self._device = base.get_device  # type: ignore[attr-defined]
        self._module, self._optimizer = torch.nn.Module, torch.optim.Optimizer
        #: Returns the address of a tensor's storage, not of its first element.
        self._data_address = getattr(self._c, "_data_address", None)
        self._python_node = self._c._FunctionBase
        self._reports_hooks = hasattr(self._c._autograd.SavedTensor, "unpack_hook")
        used = getattr(self._c._autograd._push_saved_tensors_default_hooks, _WATCH_ATTRIBUTE, None)
        self._may_unpack = used is not None and not used[0]
        self._tensor_types: Dict[int, bool] = {}
        self._node_types: Dict[int, bool] = {}
        self._optimizer_types: Dict[int, bool] = {}
        self._saved_names: Dict[int, List[str]] = {}
        #: Whether a saved tensor was left unread.
        self.has_unread_saved = False

    @classmethod
    def of_program(cls) -> "Optional[TorchObjects]":
        """`None` if the program has not imported PyTorch."""
        torch = sys.modules.get("torch")
        try:
            return cls(torch) if torch is not None and "torch.cuda" in sys.modules else None
        except AttributeError:
            return None

    def torch_function_disabled(self) -> Any:
        """A context in which no `__torch_function__` is called."""
        disabled = getattr(self._c, "DisableTorchFunctionSubclass", None) or self._c.DisableTorchFunction
        return disabled()

    def is_tensor_type(self, kind: type) -> bool:
        known = self._tensor_types.get(id(kind))
        if known is None:
            known = self._tensor_types[id(kind)] = is_subclass(kind, self._base)
        return known

    def is_optimizer_type(self, kind: type) -> bool:
        known = self._optimizer_types.get(id(kind))
        if known is None:
            known = self._optimizer_types[id(kind)] = is_subclass(kind, self._optimizer)
        return known

    def is_module(self, thing: Any) -> bool:
        return is_subclass(type(thing), self._module)

    def storage_address(self, tensor: Any) -> Optional[Tuple[int, int]]:
        """Device and address of the tensor's storage; `None` without memory on a CUDA device."""
        try:
            if not self._is_cuda(tensor):
                return None
            if self._data_address is not None:
                address = self._data_address(tensor)
            else:
                base: Any = self._base
                address = base.data_ptr(tensor) - base.storage_offset(tensor) * base.element_size(tensor)
            return (self._device(tensor), address) if address else None
        except Exception:
            return None

    def tensor_referents(self, tensor: Any) -> List[Any]:
        """What a tensor holds in C++: its gradient, or the node of the graph that created it."""
        try:
            if not self._requires_grad(tensor):
                return []
            found = self._grad(tensor) if self._is_leaf(tensor) else self._grad_fn(tensor)
            return [] if found is None else [found]
        except Exception:
            return []

    def is_node_type(self, kind: type) -> bool:
        """Whether it is a type of autograd node: a native one, or a subclass of `Function`."""
        known = self._node_types.get(id(kind))
        if known is None:
            is_native = not _get_flags(kind) & _HEAP_TYPE and "next_functions" in class_dict(kind)
            known = self._node_types[id(kind)] = is_native or is_subclass(kind, self._python_node)
        return known

    def node_referents(self, node: Any) -> Iterator[Any]:
        """What an autograd node holds: the next nodes, and its saved tensors."""
        kind = type(node)
        is_python = is_subclass(kind, self._python_node)
        try:
            get = self._python_node.__dict__["next_functions"].__get__ if is_python else None
            nexts = get(node) if get is not None else node.next_functions
        except Exception:
            nexts = ()
        for following in nexts or ():
            if following[0] is not None:
                yield following[0]
        if is_python:
            yield from self._saved_tensors(node, "saved_tensors", "_raw_saved_tensors", self._python_node)
            return
        names = self._saved_names.get(id(kind))
        if names is None:
            prefix = "_raw_saved_"
            names = self._saved_names[id(kind)] = [name[len(prefix) :] for name in dir(kind) if name.startswith(prefix)]
            if "variable" in dir(kind):
                names.append("")
        for name in names:
            if name:
                yield from self._saved_tensors(node, "_saved_" + name, "_raw_saved_" + name, kind)
            else:
                try:
                    yield node.variable
                except Exception:
                    continue

    def _saved_tensors(self, node: Any, plain: str, raw: str, kind: type) -> Iterator[Any]:
        """The tensors of one saved attribute, which has one tensor or several."""
        if not self._reports_hooks:
            if not self._may_unpack:
                self.has_unread_saved = True
                return
            try:
                found = getattr(kind, plain).__get__(node)
            except Exception as error:
                # "backward through the graph a second time": the tensor was freed after the
                # backward pass. Any other error, such as an in-place change, leaves it unread.
                self.has_unread_saved |= "second time" not in str(error)
                return
            yield from found if type(found) in (tuple, list) else (found,)
            return
        try:
            saved = getattr(kind, raw).__get__(node)
        except Exception:
            return
        for one in saved if type(saved) in (tuple, list) else (saved,):
            try:
                # The tensor, or with a hook the packed value.
                yield one.data
            except Exception:
                continue


def watch_saved_tensor_hooks(torch: Any) -> None:
    """Notes whether the program uses hooks for saved tensors, if PyTorch does not report that.

    Must be called before any tensor is saved.
    """
    autograd = torch._C._autograd
    push = autograd._push_saved_tensors_default_hooks
    register = autograd.SavedTensor.register_hooks
    if hasattr(autograd.SavedTensor, "unpack_hook") or hasattr(push, _WATCH_ATTRIBUTE):
        return
    used = [False]

    def _push_saved_tensors_default_hooks(*arguments: Any) -> Any:
        used[0] = True
        return push(*arguments)

    def register_hooks(*arguments: Any) -> Any:
        used[0] = True
        return register(*arguments)

    setattr(_push_saved_tensors_default_hooks, _WATCH_ATTRIBUTE, used)
    autograd._push_saved_tensors_default_hooks = _push_saved_tensors_default_hooks
    autograd.SavedTensor.register_hooks = register_hooks
