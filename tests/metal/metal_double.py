"""Python bindings of the double of Metal (metal_double.m): one function per `double_...` export."""

import ctypes
import os

_double = ctypes.CDLL(os.environ["METAL_DOUBLE"], mode=ctypes.RTLD_GLOBAL)
_itself = ctypes.CDLL(None)
_OBJECT, _NUMBER = ctypes.c_void_p, ctypes.c_ulong


def _function(name, result, *arguments):
    function = getattr(_double, f"double_{name}")
    function.restype, function.argtypes = result, arguments
    return function


device = _function("device", _OBJECT, _NUMBER)
default_device = _function("default_device", _OBJECT)
heap = _function("heap", _OBJECT, _OBJECT, _NUMBER)
texture = _function("texture", _OBJECT, _OBJECT, _NUMBER)
heap_texture = _function("heap_texture", _OBJECT, _OBJECT, _NUMBER)
buffer = _function("buffer", _OBJECT, _OBJECT, _NUMBER)
copied = _function("bytes", _OBJECT, _OBJECT, ctypes.c_char_p, _NUMBER)
no_copy = _function("no_copy", _OBJECT, _OBJECT, ctypes.c_char_p, _NUMBER)
heap_buffer = _function("heap_buffer", _OBJECT, _OBJECT, _NUMBER)
heap_buffer_at = _function("heap_buffer_at", _OBJECT, _OBJECT, _NUMBER, _NUMBER)
purgeable = _function("purgeable", _NUMBER, _OBJECT, _NUMBER)
release = _function("release", None, _OBJECT)
retain = _function("retain", None, _OBJECT)
observe = _function("observe", None, _OBJECT)
swizzle = _function("swizzle", None)
foreign_calls = _function("foreign_calls", _NUMBER, _NUMBER)


def step():
    getattr(_itself, "gpumemtrace_step", lambda: None)()
