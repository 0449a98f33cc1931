#include "services.h"

#include <atomic>
#include <exception>
#include <string>

#include "guard.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

class CThreadPool final : public ThreadPool {
 public:
  CThreadPool(const moert_thread_pool& c, std::shared_ptr<const Ownership> ownership)
      : c_(c, std::move(ownership)) {}
  int num_threads() const override { return c_->num_threads; }
  void Run(int64_t num_jobs, Job job) override {
    Batch batch{job};
    c_->run(c_->user_data, num_jobs, &RunOne, &batch);
    if (batch.failed) std::rethrow_exception(batch.failure);
  }

 private:
  struct Batch {
    Job job;
    std::atomic<bool> failed{false};
    std::exception_ptr failure;
  };

  // Nothing may be thrown into the host's threads.
  static void RunOne(void* data, int64_t index, int32_t worker) noexcept {
    Batch& batch = *static_cast<Batch*>(data);
    try {
      batch.job(index, worker);
    } catch (...) {
      if (!batch.failed.exchange(true)) batch.failure = std::current_exception();
    }
  }

  const Owned<moert_thread_pool> c_;
};

class CAllocator final : public HostAllocator {
 public:
  CAllocator(const moert_allocator& c, std::shared_ptr<const Ownership> ownership)
      : c_(c, std::move(ownership)) {}
  void* Allocate(int64_t bytes, int64_t alignment) override {
    void* memory =
        c_->allocate(c_->user_data, static_cast<uint64_t>(bytes), static_cast<uint64_t>(alignment));
    // A block that the kernels cannot use is no block.
    if (memory != nullptr && reinterpret_cast<uintptr_t>(memory) % alignment != 0) {
      Free(memory, bytes);
      return nullptr;
    }
    return memory;
  }
  void Free(void* memory, int64_t bytes) override {
    c_->deallocate(c_->user_data, memory, static_cast<uint64_t>(bytes));
  }

 private:
  const Owned<moert_allocator> c_;
};

absl::Status Missing(const char* member) { return Illegal(member, ": must not be NULL"); }

}  // namespace

absl::StatusOr<std::shared_ptr<ThreadPool>> AdaptThreadPool(
    const moert_thread_pool& pool, std::shared_ptr<const Ownership> ownership) {
  if (pool.run == nullptr) return Missing("thread_pool.run");
  if (pool.num_threads < 1 || pool.num_threads > 1024) {
    return Illegal("thread_pool.num_threads is ", pool.num_threads, ", legal is 1 to 1024");
  }
  return std::shared_ptr<ThreadPool>(std::make_shared<CThreadPool>(pool, std::move(ownership)));
}

absl::StatusOr<std::shared_ptr<HostAllocator>> AdaptAllocator(
    const moert_allocator& allocator, std::shared_ptr<const Ownership> ownership) {
  if (allocator.allocate == nullptr) return Missing("allocator.allocate");
  if (allocator.deallocate == nullptr) return Missing("allocator.deallocate");
  return std::shared_ptr<HostAllocator>(
      std::make_shared<CAllocator>(allocator, std::move(ownership)));
}

absl::StatusOr<LogFunction> AdaptLogger(const moert_logger& logger,
                                        std::shared_ptr<const Ownership> ownership) {
  if (logger.log == nullptr) return Missing("logger.log");
  auto owned = std::make_shared<Owned<moert_logger>>(logger, std::move(ownership));
  return LogFunction([owned](LogLevel level, absl::string_view line) {
    (*owned)->log((*owned)->user_data, static_cast<moert_log_level>(level),
                  std::string(line).c_str());
  });
}

}  // namespace moert::capi

using moert::capi::InitStruct;

extern "C" {

void moert_thread_pool_init(moert_thread_pool* pool, uint64_t size) {
  InitStruct(pool, size, moert_thread_pool{});
}

void moert_allocator_init(moert_allocator* allocator, uint64_t size) {
  InitStruct(allocator, size, moert_allocator{});
}

void moert_logger_init(moert_logger* logger, uint64_t size) {
  InitStruct(logger, size, moert_logger{});
}

}  // extern "C"
