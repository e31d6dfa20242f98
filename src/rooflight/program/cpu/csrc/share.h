// Work that a calling thread does itself, with such threads of the pool as come in time.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace rooflight {

// Runs work(0) .. work(total - 1), each once, and returns when all are done. A thread that comes
// late finds nothing left, so the caller never waits for one that is not at work: no deadlock where
// all threads of the pool are held by something else.
template <typename Work>
void Share(xla::ffi::ThreadPool& threads, int64_t total, Work work) {
  struct Shared {
    const Work work;
    const int64_t total;
    std::atomic<int64_t> next{0};
    int64_t done = 0;
    std::mutex mutex;
    std::condition_variable all_done;

    Shared(Work work, int64_t total) : work(std::move(work)), total(total) {}

    void Run() {
      int64_t mine = 0;
      for (int64_t i; (i = next.fetch_add(1)) < total; ++mine) work(i);
      if (!mine) return;
      const std::lock_guard<std::mutex> lock(mutex);
      if ((done += mine) == total) all_done.notify_all();
    }
  };

  const auto shared = std::make_shared<Shared>(std::move(work), total);
  const int64_t helpers = std::min(threads.num_threads(), total) - 1;
  for (int64_t i = 0; i < helpers; ++i) threads.Schedule([shared] { shared->Run(); });
  shared->Run();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->all_done.wait(lock, [&] { return shared->done == total; });
}

}  // namespace rooflight
