"""Makes thousands of random driver calls, valid and invalid, on a small device. Run by
test_routes.py.

usage: random_calls.py FOLDER SEED CALLS

Checks nothing itself: the test compares the trace with the driver's log.
"""

import random
import sys
from ctypes import byref, c_uint64
from pathlib import Path

from every_row import DEVICE, FLOAT, HOST, HOST_NUMA, MIB, POOL, POSIX_FD, PROP, Driver, any_node, node_params, pair, words

SIZES = [1, 512, 65536, MIB - 1, MIB, 2 * MIB, 3 * MIB, 8 * MIB, 64 * MIB, 400 * MIB]


class Program:
    """Handles and addresses that the program received, live or not."""

    def __init__(self, call, seed):
        self.call, self.random = call, random.Random(seed)
        self.known = {}

    def one(self, kind):
        """Returns some handle of a kind; most are still live."""
        return self.random.choice(self.known.get(kind) or [0])

    def give(self, kind, name, *arguments, at=0):
        out = c_uint64()
        if self.call.result(name, *arguments[:at], byref(out), *arguments[at:]) == 0:
            self.known.setdefault(kind, []).append(out.value)
        return out.value

    def take(self, kind, name, *rest):
        known = self.known.get(kind) or [0]
        value = known.pop(self.random.randrange(len(known))) if self.random.random() < 0.9 and known != [0] else self.one(kind)
        self.call.result(name, value, *rest)

    def size(self):
        return self.random.choice(SIZES)

    def step(self):
        self.random.choice(STEPS)(self)

    def switch(self):
        self.call("cuCtxSetCurrent", self.random.choice(self.contexts()))

    def contexts(self):
        return self.known["primary"] + self.known.get("context", [])

    def context_create(self):
        if len(self.known.get("context", [])) < 4:
            self.give("context", "cuCtxCreate_v2", 0, self.random.randrange(2))

    def context_destroy(self):
        contexts = self.known.get("context", [])
        if contexts:
            self.call("cuCtxDestroy_v2", contexts.pop(self.random.randrange(len(contexts))))
            self.switch()

    def primary_reset(self):
        device = self.random.randrange(2)
        self.call("cuDevicePrimaryCtxReset_v2", device)
        self.call.get("cuDevicePrimaryCtxRetain", device)
        self.switch()

    def pitched(self):
        pitch = c_uint64()
        self.give("block", "cuMemAllocPitch_v2", byref(pitch), self.random.randrange(1, 5000), self.random.randrange(1, 500), 4)

    def free_block(self):
        if self.random.random() < 0.5:
            self.take("block", "cuMemFree_v2")
        else:
            self.take("block", "cuMemFreeAsync", 0)

    def pool_block(self):
        if self.random.random() < 0.5:
            self.give("block", "cuMemAllocAsync", self.size(), 0)
        else:
            self.give("block", "cuMemAllocFromPoolAsync", self.size(), self.one("pool"), 0)

    def other_pool(self):
        """A pool of host or managed memory, or a wrong kind of pool."""
        kind, place = self.random.choice([(1, HOST), (1, HOST_NUMA), (2, DEVICE), (2, 0), (1, 0), (3, DEVICE)])
        if self.random.random() < 0.7:
            self.give("pool", "cuMemPoolCreate", words(pair(kind, 0), pair(place, 0), size=88))
        else:
            self.give("pool", "cuMemGetDefaultMemPool", words(pair(place, 0)), kind)

    def map(self):
        size = self.random.choice([2, 4]) * MIB
        address = self.one("range") + self.random.randrange(4) * 2 * MIB
        if self.call.result("cuMemMap", address, size, 0, self.one("handle"), 0) == 0:
            self.known.setdefault("mapping", []).append((address, size))

    def unmap(self):
        mappings = self.known.get("mapping") or [(0, 2 * MIB)]
        self.call.result("cuMemUnmap", *mappings.pop(self.random.randrange(len(mappings))))

    def retain(self):
        address = self.random.choice(self.known.get("mapping") or [(0, 0)])[0]
        self.give("handle", "cuMemRetainAllocationHandle", address)

    def share(self):
        descriptor = c_uint64()
        if self.call.result("cuMemExportToShareableHandle", byref(descriptor), self.one("handle"), POSIX_FD, 0) == 0:
            self.give("handle", "cuMemImportFromShareableHandle", descriptor.value & 0xffffffff, POSIX_FD)

    def array(self):
        side = self.random.choice([16, 64, 1024])
        deferred = self.random.choice([0, 0x80])
        self.give("array", "cuArray3DCreate_v2", words(side, side, 0, pair(FLOAT, 4), deferred))

    def node(self):
        graph = self.one("graph")
        if self.random.random() < 0.6:
            kind, place = self.random.choice([(1, DEVICE), (1, DEVICE), (1, HOST), (2, DEVICE)])
            params = any_node(10, *node_params(self.size(), kind, place))
            if self.call.result("cuGraphAddNode_v2", byref(c_uint64()), graph, None, None, 0, params) == 0:
                self.known.setdefault("block", []).append(params[16])
                self.known.setdefault("node", []).append(params[16])
        else:
            address = self.random.choice([self.one("node"), self.one("block")])
            self.call.result("cuGraphAddMemFreeNode", byref(c_uint64()), graph, None, 0, address)

    def move_child(self):
        """Moves a graph into another one; a clone fails if it has memory nodes."""
        params = any_node(4, self.one("graph"), self.random.randrange(2))
        self.call.result("cuGraphAddNode_v2", byref(c_uint64()), self.one("graph"), None, None, 0, params)

    def captured(self):
        stream = self.call.get("cuStreamCreate", 1)
        self.call("cuStreamBeginCapture_v2", stream, 2)
        for _ in range(self.random.randrange(4)):
            if self.random.random() < 0.5:
                address = self.give("node", "cuMemAllocAsync", self.size(), stream)
            else:
                address = self.give("node", "cuMemAllocFromPoolAsync", self.size(), self.one("pool"), stream)
            self.known.setdefault("block", []).append(address)
            if self.random.random() < 0.5:
                self.call.result("cuMemFreeAsync", address, stream)
        self.give("graph", "cuStreamEndCapture", stream, at=1)


STEPS = [
    Program.switch, Program.context_create, Program.context_destroy, Program.primary_reset,
    lambda p: p.give("block", "cuMemAlloc_v2", p.size()),
    lambda p: p.give("block", "cuMemAllocManaged", p.size(), 1),
    Program.pitched, Program.free_block, Program.free_block, Program.pool_block, Program.free_block,
    lambda p: p.give("host", "cuMemHostAlloc", p.size() % (8 * MIB), 0),
    lambda p: p.take("host", "cuMemFreeHost"),
    lambda p: p.give("pool", "cuMemPoolCreate", POOL),
    Program.other_pool,
    lambda p: p.take("pool", "cuMemPoolDestroy"),
    lambda p: p.call.result("cuMemPoolTrimTo", p.one("pool"), 0),
    lambda p: p.call.result("cuCtxSynchronize"),
    lambda p: p.give("range", "cuMemAddressReserve", 8 * MIB, 0, 0, 0),
    lambda p: p.take("range", "cuMemAddressFree", 8 * MIB),
    lambda p: p.give("handle", "cuMemCreate", p.random.choice([2, 4]) * MIB, PROP, 0),
    lambda p: p.take("handle", "cuMemRelease"),
    Program.map, Program.map, Program.unmap, Program.retain, Program.share,
    Program.array, lambda p: p.take("array", "cuArrayDestroy"),
    lambda p: p.give("graph", "cuGraphCreate", 0),
    Program.node, Program.node, Program.captured, Program.move_child,
    lambda p: p.give("exec", "cuGraphInstantiateWithFlags", p.one("graph"), p.random.choice([0, 1])),
    lambda p: p.call.result("cuGraphLaunch", p.one("exec"), 0), lambda p: p.call.result("cuGraphLaunch", p.one("exec"), 0),
    lambda p: p.take("graph", "cuGraphDestroy"), lambda p: p.take("exec", "cuGraphExecDestroy"),
    lambda p: p.call.result("cuDeviceGraphMemTrim", p.random.randrange(2)),
]

if __name__ == "__main__":
    program = Program(Driver("dlsym", Path(sys.argv[1])), int(sys.argv[2]))
    program.call("cuInit", 0)
    for device in range(2):
        program.give("primary", "cuDevicePrimaryCtxRetain", device)
    program.switch()
    for _ in range(int(sys.argv[3])):
        program.step()
