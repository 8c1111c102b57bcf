// Calls of PyTorch's allocator that differ between releases.
//
// Each function compiles with the headers of every supported release, and fails at run time where
// the release lacks the call.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <string>

#include "text_streams.h"

namespace native = c10::cuda::CUDACachingAllocator;
using NativeAllocator = native::CUDAAllocator;

#if __has_include(<c10/cuda/CUDAAllocatorConfig.h>)
#include <c10/cuda/CUDAAllocatorConfig.h>
#endif

// libtorch sets this predicate; without it, recording an event fails.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(signed char));
}

// libtorch makes what expandable segments need from 2.13 on: the cache of peer accesses.
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
inline void prepare_peer_access() {
  c10::cuda::detail::init_p2p_access_cache(1);
}
#else
inline void prepare_peer_access() {}
#endif

[[noreturn]] inline void unsupported(const char* call) {
  fail(std::string("this PyTorch has no ") + call);
}

constexpr int DEVICE = 0;

inline c10::cuda::MempoolId_t pool_id(uint64_t pool) {
  return {0, pool};
}

// Only the named stream's allocations, or all of them without one.
template <class A>
void begin_pool(A* allocator, uint64_t pool, bool every_stream, cudaStream_t stream) {
  if constexpr (requires(std::function<bool(cudaStream_t)> filter) {
                  allocator->beginAllocateToPool(DEVICE, pool_id(0), filter);
                }) {
    allocator->beginAllocateToPool(
        DEVICE, pool_id(pool), [=](cudaStream_t asked) { return every_stream || asked == stream; });
  } else {
    if (every_stream) unsupported("pool for every stream");
    allocator->beginAllocateStreamToPool(DEVICE, stream, pool_id(pool));
  }
}

template <class A>
void end_pool(A* allocator, uint64_t pool, cudaStream_t stream) {
  if constexpr (requires { allocator->endAllocateToPool(DEVICE, pool_id(0)); }) {
    allocator->endAllocateToPool(DEVICE, pool_id(pool));
  } else {
    allocator->endAllocateStreamToPool(DEVICE, stream);
  }
}

template <class A>
void add_pool_user(A* allocator, uint64_t pool) {
  if constexpr (requires { allocator->createOrIncrefPool(DEVICE, pool_id(0)); }) {
    allocator->createOrIncrefPool(DEVICE, pool_id(pool));
  } else if constexpr (requires { allocator->ensureExistsAndIncrefPool(DEVICE, pool_id(0)); }) {
    allocator->ensureExistsAndIncrefPool(DEVICE, pool_id(pool));
  } else {
    unsupported("createOrIncrefPool");
  }
}

template <class A>
void use_pool_on_oom(A* allocator, uint64_t pool) {
  if constexpr (requires { allocator->setUseOnOOM(DEVICE, pool_id(0), true); }) {
    allocator->setUseOnOOM(DEVICE, pool_id(pool), true);
  } else if constexpr (requires { allocator->setUseOnOOM(DEVICE, pool_id(0)); }) {
    allocator->setUseOnOOM(DEVICE, pool_id(pool));
  } else {
    unsupported("setUseOnOOM");
  }
}

template <class A>
void forbid_splits(A* allocator, uint64_t pool) {
  if constexpr (requires { allocator->setNoSplit(DEVICE, pool_id(0)); }) {
    allocator->setNoSplit(DEVICE, pool_id(pool));
  } else {
    unsupported("setNoSplit");
  }
}

template <class A>
void empty_pool(A* allocator, uint64_t pool) {
  if constexpr (requires { allocator->emptyCache(pool_id(0)); }) {
    allocator->emptyCache(pool_id(pool));
  } else {
    unsupported("emptyCache of a pool");
  }
}

template <class A>
void mark_capture(A* allocator, bool begins) {
  if constexpr (requires { allocator->markCaptureBegin(DEVICE); }) {
    begins ? allocator->markCaptureBegin(DEVICE) : allocator->markCaptureEnd(DEVICE);
  }
}

// The allocator marks the block as used by the stream; it owns the block all the same.
inline void record_stream(NativeAllocator* allocator, void* block, cudaStream_t stream) {
  c10::DataPtr pointer(block, block, allocator->raw_deleter(), c10::Device(c10::kCUDA, DEVICE));
  allocator->recordStream(pointer, c10::cuda::getStreamFromExternal(stream, DEVICE));
  pointer.release_context();
}

template <class Stats>
void write_stats(LogWriter& log, const Stats& stats) {
  for (const auto* stat : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes,
                           &stats.allocation, &stats.segment, &stats.active}) {
    log.decimal((*stat)[0].current);
    log.decimal((*stat)[0].peak);
  }
  log.decimal(stats.inactive_split_bytes[0].current);
  log.decimal(stats.inactive_split[0].current);
  log.decimal(stats.num_alloc_retries);
  log.decimal(stats.num_ooms);
}
