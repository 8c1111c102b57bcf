"""Makes a Python import PyTorch once and then fork for each program (../prepared_python.py).

CPython imports `sitecustomize` at the end of its own start, before the main program. This process
stays here and serves requests. A child returns from here, and CPython then runs the requested
program as if it had been the main program from the start: no frame of ours is on its stack.
"""

import atexit
import ctypes
import gc
import json
import os
import socket
import struct
import sys

#: The main program of this process, as started. No such file exists.
PLACEHOLDER = "/the-program-of-a-prepared-python"
_WORD_BYTES = 8
#: At least the size of PyConfig, in every supported CPython.
_CONFIG_WORDS = 80
#: The modules that a program does not free at its end, by their names.
LIBRARIES = {}


def serve(connection):
    """Forks for each request. Returns in the children only."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 2)
        if not message:
            os._exit(0)
        child = os.fork()
        if child == 0:
            connection.close()
            become(json.loads(message), descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def become(request, descriptors):
    """Turns this process into one that was started with the request's program and environment."""
    for number, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if not request["frees_everything"]:
        LIBRARIES.update(sys.modules)
        for name in ("__main__", "builtins", "sys"):
            del LIBRARIES[name]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    program = os.path.abspath(request["command"][1])
    sys.orig_argv[:] = request["command"]
    sys.argv[:] = request["command"][1:]
    replace_program(program)


def end_quickly():
    """Lets the interpreter leave the modules of a prepared Python and all cycles as they are.

    Freeing them takes most of a second, and copies most pages that this process shares with its
    parent. The program's own modules are cleared as usual.
    """
    if LIBRARIES:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(LIBRARIES))
        for name, module in LIBRARIES.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        gc.freeze()


def replace_program(program):
    """Replaces the main program in CPython's configuration (PyConfig.run_filename and argv[0]).

    Both are searched by their value, so no offset is needed:
    https://docs.python.org/3/c-api/init_config.html#c.PyConfig.run_filename
    """
    config = ctypes.pythonapi._Py_GetConfig
    config.restype = ctypes.c_void_p
    allocate = ctypes.pythonapi.PyMem_RawMalloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    start = config()
    replaced = 0
    with open("/proc/self/mem", "rb", buffering=0) as memory:

        def read(address, size):
            try:
                return os.pread(memory.fileno(), size, address)
            except (OSError, OverflowError):
                return b""

        wanted = wide(PLACEHOLDER)
        for place in range(start, start + _CONFIG_WORDS * _WORD_BYTES, _WORD_BYTES):
            first = read(place, _WORD_BYTES)
            second = read(word(first), _WORD_BYTES)
            for at, pointer in ((place, first), (word(first), second)):
                if len(pointer) == _WORD_BYTES and read(word(pointer), len(wanted)) == wanted:
                    text = allocate(len(wide(program)))
                    ctypes.memmove(text, wide(program), len(wide(program)))
                    ctypes.memmove(at, struct.pack("P", text), _WORD_BYTES)
                    replaced += 1
    if replaced != 2:
        os.write(2, f"the main program is in {replaced} places of PyConfig, not in 2\n".encode())
        os._exit(70)


def word(value):
    """A pointer in memory as a number; 0 if the memory could not be read."""
    return struct.unpack("P", value)[0] if len(value) == _WORD_BYTES else 0


def wide(text):
    return bytes(ctypes.create_unicode_buffer(text))


if "PREPARED_PYTHON_SOCKET" in os.environ:
    # The first one registered is the last one called.
    atexit.register(end_quickly)
    # Optimizers import the second one at their first step.
    import torch  # noqa: F401
    import torch._dynamo  # noqa: F401

    serve(socket.socket(fileno=int(os.environ.pop("PREPARED_PYTHON_SOCKET"))))
