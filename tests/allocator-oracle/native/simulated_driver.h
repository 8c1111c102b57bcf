// The functions of the simulated driver that the oracle itself calls.
#pragma once

#include <dlfcn.h>

#include <cstdint>

#include "text_streams.h"

// Loaded by PyTorch's runtime, so a context exists and calls of PyTorch go to the same library.
class SimulatedDriver {
 public:
  SimulatedDriver() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {
    if (library_ == nullptr) fail("libcuda.so.1 is not loaded");
  }

  uint64_t create_stream() {
    uint64_t stream = 0;
    check("cuStreamCreate", call<uint64_t*, unsigned>("cuStreamCreate", &stream, 1U));
    return stream;
  }
  void complete_stream(uint64_t stream) {
    static const auto complete = function<int(uint64_t)>("simgpuCompleteStream");
    check("simgpuCompleteStream", complete(stream));
  }
  void begin_capture(uint64_t stream) {
    check("cuStreamBeginCapture_v2", call<uint64_t, unsigned>("cuStreamBeginCapture_v2", stream, 0U));
  }
  // The captured graph is destroyed: the oracle launches none.
  void end_capture(uint64_t stream) {
    uint64_t graph = 0;
    check("cuStreamEndCapture", call<uint64_t, uint64_t*>("cuStreamEndCapture", stream, &graph));
    check("cuGraphDestroy", call<uint64_t>("cuGraphDestroy", graph));
  }
  // 0 if the device has too little memory.
  uint64_t allocate(uint64_t bytes) {
    uint64_t addr = 0;
    const int rc = call<uint64_t*, uint64_t>("cuMemAlloc_v2", &addr, bytes);
    if (rc != 0 && rc != 2) check("cuMemAlloc_v2", rc);
    return addr;
  }
  void free(uint64_t addr) { check("cuMemFree_v2", call<uint64_t>("cuMemFree_v2", addr)); }

  uint64_t free_bytes() {
    uint64_t free = 0, total = 0;
    check("cuMemGetInfo_v2", call<uint64_t*, uint64_t*>("cuMemGetInfo_v2", &free, &total));
    return free;
  }

  // The lowest address of device memory: addresses are handed out first fit.
  uint64_t first_device_address() {
    const uint64_t addr = allocate(2 << 20);
    free(addr);
    return addr;
  }
  // The lowest address of reservations.
  uint64_t first_reserved_address() {
    const uint64_t bytes = 2 << 20;
    uint64_t addr = 0;
    check("cuMemAddressReserve", call<uint64_t*, uint64_t, uint64_t, uint64_t, uint64_t>(
                                     "cuMemAddressReserve", &addr, bytes, 0UL, 0UL, 0UL));
    check("cuMemAddressFree", call<uint64_t, uint64_t>("cuMemAddressFree", addr, bytes));
    return addr;
  }

 private:
  template <class Function>
  Function* function(const char* name) {
    void* found = dlsym(library_, name);
    if (found == nullptr) fail(std::string("the simulated driver has no ") + name + ": run cargo build --release");
    return reinterpret_cast<Function*>(found);
  }
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) {
    return function<int(Arguments...)>(name)(arguments...);
  }
  static void check(const char* name, int rc) {
    if (rc != 0) fail(std::string(name) + " returned " + std::to_string(rc));
  }

  void* library_;
};
