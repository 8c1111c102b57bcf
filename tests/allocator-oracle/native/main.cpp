// Drives PyTorch's own CUDA caching allocator with the requests on standard input, and writes what
// it does to standard output.
//
// README.md has both formats. The program is linked against libc10_cuda.so of one wheel, and needs
// neither Python nor the rest of PyTorch. The card and the allocator's settings come from the
// environment, which both libraries read before main().

#include <c10/util/Logging.h>

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "allocator_calls.h"
#include "simulated_driver.h"

namespace {

using Entry = native::TraceEntry;

// In the log, device memory begins at 0 and reservations begin here.
constexpr uint64_t RESERVED_BASE = 5ULL << 40;
// Requests between two readings of the history, where PyTorch has no trace tracker.
constexpr uint64_t HISTORY_REQUESTS = 8192;

struct Block {
  // Null after the free, or if the allocation failed.
  void* addr = nullptr;
  cudaStream_t stream = nullptr;
  // Another stream uses it, so its free is deferred.
  bool is_shared = false;
};

struct EndedRequest {
  uint64_t request;
  bool is_deferred;
};

class Oracle {
 public:
  void run() {
    std::string_view line;
    while (reader_.next(line) && line != "requests") {
      if (Fields fields(line); fields.word() == "streams") stream_count_ = fields.number();
    }
    start();
    while (reader_.next(line)) {
      serve(line);
      ++request_;
    }
    read_history();
    log_.flush();
  }

 private:
  void start() {
    allocator_ = native::get();
    c10::initLogging();
    c10::cuda::_internal::setHasPrimaryContext([](signed char) { return true; });
    prepare_peer_access();
    allocator_->init(1);
    // Any call makes the runtime load the driver and a context.
    allocator_->raw_delete(allocator_->raw_alloc_with_stream(512, nullptr));
    allocator_->emptyCache();
    driver_ = new SimulatedDriver;
    device_base_ = driver_->first_device_address();
    reserved_base_ = driver_->first_reserved_address();
    if (device_base_ >= reserved_base_) fail("reservations lie below device memory");
    streams_.push_back(nullptr);
    for (uint64_t stream = 1; stream < stream_count_; ++stream) {
      streams_.push_back(reinterpret_cast<cudaStream_t>(driver_->create_stream()));
    }
    allocator_->resetAccumulatedStats(DEVICE);
    allocator_->resetPeakStats(DEVICE);
    attach(allocator_);
  }

  template <class A>
  void attach(A* allocator) {
    if constexpr (requires { allocator->attachAllocatorTraceTracker([](const Entry&) {}); }) {
      allocator->attachAllocatorTraceTracker([this](const Entry& entry) { on_entry(entry); });
    } else {
      uses_history_ = true;
      restart_history();
    }
  }

  void serve(std::string_view line) {
    Fields fields(line);
    const std::string_view kind = fields.word();
    if (kind.size() != 1) fail("unknown request: " + std::string(line));
    // Entries of an emptied cache are not ended by an allocation, and statistics are no entries.
    if (kind[0] == 'e' || kind[0] == 'k' || ended_.size() >= HISTORY_REQUESTS) read_history();
    try {
      serve_kind(kind[0], fields);
    } catch (const c10::OutOfMemoryError&) {
      if (kind[0] != 'a') throw;
      blocks_.push_back({});
      if (!uses_history_) log_oom(driver_->free_bytes());
    } catch (const c10::Error& error) {
      read_history();
      log_.flush();
      fail("request " + std::to_string(request_) + " (" + std::string(line) + "): " + error.what_without_backtrace());
    }
    freed_ = 0;
    if (kind[0] == 'e') read_history();
  }

  void serve_kind(char kind, Fields& fields) {
    switch (kind) {
      case 'a': {
        const uint64_t bytes = fields.number();
        const cudaStream_t on = stream(fields);
        if (uses_history_) ended_.push_back({request_, false});
        void* block = allocator_->raw_alloc_with_stream(bytes, on);
        blocks_.push_back({block, on, false});
        if (!uses_history_) log_block(block);
        break;
      }
      case 'f':
        if (Block& block = blocks_.at(fields.number()); block.addr != nullptr) {
          if (uses_history_) ended_.push_back({request_, block.is_shared});
          freed_ = reinterpret_cast<uint64_t>(block.addr);
          allocator_->raw_delete(std::exchange(block.addr, nullptr));
        }
        break;
      case 'r':
        if (Block& block = blocks_.at(fields.number()); block.addr != nullptr) {
          const cudaStream_t user = stream(fields);
          block.is_shared |= user != block.stream;
          record_stream(allocator_, block.addr, user);
        }
        break;
      case 'd': driver_->complete_stream(reinterpret_cast<uint64_t>(stream(fields))); break;
      case 'e':
        if (fields.at_end()) allocator_->emptyCache();
        else empty_pool(allocator_, fields.number());
        break;
      case 'l': allocator_->setMemoryFraction(std::stod(fields.rest()), DEVICE); break;
      case 's': native::setAllocatorSettings(fields.rest()); break;
      case 'p': add_pool_user(allocator_, fields.number()); break;
      case 'n': forbid_splits(allocator_, fields.number()); break;
      case 'u': use_pool_on_oom(allocator_, fields.number()); break;
      case 'b': {
        const uint64_t pool = fields.number();
        const bool every = fields.at_end();
        routed_ = every ? nullptr : stream(fields);
        begin_pool(allocator_, pool, every, routed_);
        break;
      }
      case 'x': end_pool(allocator_, fields.number(), routed_); break;
      case 'v': allocator_->releasePool(DEVICE, pool_id(fields.number())); break;
      case 'g': {
        const cudaStream_t captured = stream(fields);
        c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(captured, DEVICE));
        driver_->begin_capture(reinterpret_cast<uint64_t>(captured));
        mark_capture(allocator_, true);
        break;
      }
      case 'h':
        mark_capture(allocator_, false);
        driver_->end_capture(reinterpret_cast<uint64_t>(stream(fields)));
        c10::cuda::setCurrentCUDAStream(c10::cuda::getDefaultCUDAStream(DEVICE));
        break;
      case 'm': outside_.push_back(driver_->allocate(fields.number())); break;
      case 'w':
        if (uint64_t& addr = outside_.at(fields.number()); addr != 0) driver_->free(std::exchange(addr, 0));
        break;
      case 'k':
        log_.begin('k');
        write_stats(log_, allocator_->getDeviceStats(DEVICE));
        log_.end();
        break;
      default: fail("unknown request kind " + std::string(1, kind));
    }
  }

  void on_entry(const Entry& entry) {
    const auto addr = static_cast<uint64_t>(entry.addr_);
    switch (entry.action_) {
      case Entry::SEGMENT_ALLOC: return log_segment('+', entry);
      case Entry::SEGMENT_FREE: return log_segment('-', entry);
      case Entry::SEGMENT_MAP: return log_segment('<', entry);
      case Entry::SEGMENT_UNMAP: return log_segment('>', entry);
      case Entry::FREE_COMPLETED:
        // A free that completes at once is no event of its own.
        if (std::exchange(freed_, 0) == addr) return;
        log_.begin('c');
        log_.decimal(request_);
        log_.hex(relative(addr));
        log_.end();
        return;
      default: return;
    }
  }

  void log_segment(char kind, const Entry& entry) {
    log_.begin(kind);
    log_.decimal(request_);
    log_.hex(relative(entry.addr_));
    log_.decimal(entry.size_);
    const auto found = std::find(streams_.begin(), streams_.end(), static_cast<const void*>(entry.stream_));
    log_.decimal(found - streams_.begin());
    log_.end();
  }

  void log_block(const void* block) {
    log_.begin('a');
    log_.hex(relative(reinterpret_cast<uint64_t>(block)));
    log_.end();
  }

  void log_oom(uint64_t free_bytes) {
    log_.begin('o');
    log_.decimal(free_bytes);
    log_.end();
  }

  template <class A>
  void restart(A* allocator) {
    if constexpr (requires { allocator->recordHistory(true, nullptr, 1, native::RecordContext::NEVER); }) {
      allocator->recordHistory(true, nullptr, 16 * HISTORY_REQUESTS, native::RecordContext::NEVER);
    }
  }

  // Writes the entries since the last call, each with the request that caused it.
  void read_history() {
    if (!uses_history_) return;
    const uint64_t now = request_;
    const auto snapshot = allocator_->snapshot();
    const auto& entries = snapshot.device_traces.at(DEVICE);
    if (entries.size() >= 16 * HISTORY_REQUESTS) fail("the history is too short");
    size_t ended = 0;
    for (const Entry& entry : entries) {
      request_ = ended < ended_.size() ? ended_[ended].request : now;
      const auto addr = static_cast<uint64_t>(entry.addr_);
      if (entry.action_ == Entry::ALLOC) {
        log_block(reinterpret_cast<const void*>(addr));
        ++ended;
      } else if (entry.action_ == Entry::FREE_REQUESTED) {
        // A free that completes at once is no event of its own.
        freed_ = ended_.at(ended).is_deferred ? 0 : addr;
        ++ended;
      } else {
        on_entry(entry);
      }
      if (entry.action_ == Entry::OOM) {
        log_oom(addr);
        ++ended;
      }
    }
    request_ = now;
    restart_history();
  }

  void restart_history() {
    restart(allocator_);
    ended_.clear();
  }

  cudaStream_t stream(Fields& fields) { return streams_.at(fields.number()); }

  uint64_t relative(uint64_t addr) const {
    return addr >= reserved_base_ ? addr - reserved_base_ + RESERVED_BASE : addr - device_base_;
  }

  LineReader reader_;
  LogWriter log_;
  NativeAllocator* allocator_ = nullptr;
  SimulatedDriver* driver_ = nullptr;
  uint64_t device_base_ = 0, reserved_base_ = 0;
  uint64_t stream_count_ = 1;
  std::vector<cudaStream_t> streams_;
  // By number of the allocation.
  std::vector<Block> blocks_;
  // Memory outside of the allocator, by number; 0 after the free, or if it failed.
  std::vector<uint64_t> outside_;
  uint64_t request_ = 0;
  // The block of the free in progress.
  uint64_t freed_ = 0;
  cudaStream_t routed_ = nullptr;
  bool uses_history_ = false;
  // The requests since the last reading of the history that end with an entry of their own.
  std::vector<EndedRequest> ended_;
};

}  // namespace

int main() {
  (new Oracle)->run();
  // The allocator's destructors may run after the driver's: nothing is left to do.
  std::_Exit(0);
}
