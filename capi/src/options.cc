#include "options.h"

#include <sched.h>

#include <atomic>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
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

  // Exceptions must not reach the host's threads.
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
    // A block that the kernels cannot use counts as none.
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

namespace {

moert_engine_options Defaults() {
  const EngineOptions defaults;
  moert_engine_options options{};
  options.budget_fraction = defaults.budget.fraction;
  options.max_tokens_per_forward = defaults.max_tokens_per_forward;
  options.numerics = static_cast<moert_numerics>(defaults.activation);
  options.clock = static_cast<moert_clock>(defaults.clock);
  options.link_gbps = defaults.link_gbps;
  options.threads = defaults.threads;
  options.io_threads = defaults.io_threads;
  options.backend = static_cast<moert_backend>(defaults.backend);
  options.device = defaults.device;
  options.host_budget_bytes = defaults.host_budget;
  options.numa_node = defaults.numa_node;
  return options;
}

/// "0-3,8"
absl::StatusOr<std::vector<int>> ParseCpus(absl::string_view text) {
  std::vector<int> cpus;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> ends = absl::StrSplit(item, absl::MaxSplits('-', 1));
    int first = 0, last = 0;
    const bool range = absl::StrContains(item, '-');
    const bool numbers = absl::SimpleAtoi(ends.first, &first) &&
                         absl::SimpleAtoi(range ? ends.second : ends.first, &last);
    if (!numbers || first < 0 || last < first || last >= CPU_SETSIZE) {
      return Illegal("options.cpus is '", text, "': '", item, "' is no CPU or range of CPUs below ",
                     CPU_SETSIZE);
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

absl::Status ReadServices(const moert_engine_options& c, ParsedOptions* parsed) {
  EngineOptions& options = parsed->options;
  if (c.policies != nullptr) {
    parsed->policies = std::make_shared<HostPolicies>();
    moert_policies policies{};
    MOERT_RETURN_IF_ERROR(ReadStruct(c.policies, "options.policies", &policies));
    parsed->policies->c = policies;
    options.customize_strategy = [policies = parsed->policies](Strategy* strategy) {
      return InstallPolicies(policies, strategy);
    };
  }
  if (c.thread_pool != nullptr) {
    moert_thread_pool pool{};
    MOERT_RETURN_IF_ERROR(ReadStruct(c.thread_pool, "options.thread_pool", &pool));
    MOERT_ASSIGN_OR_RETURN(options.thread_pool, AdaptThreadPool(pool, parsed->ownership));
  }
  if (c.allocator != nullptr) {
    moert_allocator allocator{};
    MOERT_RETURN_IF_ERROR(ReadStruct(c.allocator, "options.allocator", &allocator));
    MOERT_ASSIGN_OR_RETURN(options.allocator, AdaptAllocator(allocator, parsed->ownership));
  }
  if (c.logger != nullptr) {
    moert_logger logger{};
    MOERT_RETURN_IF_ERROR(ReadStruct(c.logger, "options.logger", &logger));
    MOERT_ASSIGN_OR_RETURN(options.log, AdaptLogger(logger, parsed->ownership));
  }
  if (c.trace_sink != nullptr) {
    moert_trace_sink sink{};
    MOERT_RETURN_IF_ERROR(ReadStruct(c.trace_sink, "options.trace_sink", &sink));
    options.trace = AdaptTraceSink(sink, parsed->ownership);
  }
  return absl::OkStatus();
}

}  // namespace

Budget ToBudget(int64_t bytes, double fraction) {
  return bytes != 0 ? Budget::Bytes(bytes) : Budget::Fraction(fraction);
}

absl::StatusOr<ParsedOptions> ReadOptions(const moert_engine_options* options) {
  moert_engine_options c = Defaults();
  if (options != nullptr) MOERT_RETURN_IF_ERROR(ReadStruct(options, "options", &c));
  MOERT_RETURN_IF_ERROR(CheckRange("options.numerics", c.numerics, 0, MOERT_NUMERICS_FP8));
  MOERT_RETURN_IF_ERROR(CheckRange("options.clock", c.clock, 0, MOERT_CLOCK_SIMULATION));
  MOERT_RETURN_IF_ERROR(CheckRange("options.backend", c.backend, 0, MOERT_BACKEND_CUDA));
  ParsedOptions parsed;
  EngineOptions& result = parsed.options;
  if (c.strategy != nullptr) result.strategy = c.strategy;
  if (c.promise != nullptr) {
    const absl::StatusOr<Promise> promise = ParsePromise(c.promise);
    if (!promise.ok()) return Illegal("options.", promise.status().message());
    result.promise = *promise;
  }
  result.budget = ToBudget(c.budget_bytes, c.budget_fraction);
  result.max_tokens_per_forward = c.max_tokens_per_forward;
  result.activation = static_cast<ActivationNumerics>(c.numerics);
  result.clock = c.clock == MOERT_CLOCK_WALL ? ClockKind::kWall : ClockKind::kVirtual;
  result.simulate = c.clock == MOERT_CLOCK_SIMULATION;
  if (c.profile != nullptr) {
    MOERT_ASSIGN_OR_RETURN(result.profile, LoadProfile(c.profile));
  }
  result.link_gbps = c.link_gbps;
  result.threads = c.threads;
  result.io_threads = c.io_threads;
  if (c.kernels != nullptr) result.kernels = c.kernels;
  result.backend = static_cast<BackendKind>(c.backend);
  result.device = c.device;
  result.host_budget = c.host_budget_bytes;
  if (c.cpus != nullptr) {
    MOERT_ASSIGN_OR_RETURN(result.cpus, ParseCpus(c.cpus));
  }
  if (c.trace_path != nullptr) parsed.trace.routing = c.trace_path;
  if (c.timeline_path != nullptr) parsed.trace.timeline = c.timeline_path;
  MOERT_RETURN_IF_ERROR(CheckFlag("options.trace_replace", c.trace_replace));
  if (c.trace_replace == 1) parsed.trace.existing = Existing::kReplace;
  if (c.shard != nullptr) {
    MOERT_ASSIGN_OR_RETURN(result.shard, ReadShard(c.shard, "options.shard"));
  }
  if (c.open_progress != nullptr) {
    result.open_progress = [call = c.open_progress,
                            user = c.open_user_data](const OpenProgress& progress) {
      return call(user, progress.loaded_experts, progress.total_experts) == MOERT_OK;
    };
  }
  if (c.numa_node < -1 || c.numa_node > INT32_MAX) {
    return Illegal("options.numa_node is ", c.numa_node, ", legal is a node or -1");
  }
  result.numa_node = static_cast<int>(c.numa_node);
  MOERT_RETURN_IF_ERROR(ReadServices(c, &parsed));
  return parsed;
}

}  // namespace moert::capi

extern "C" void moert_engine_options_init(moert_engine_options* options, uint64_t size) {
  moert::capi::InitStruct(options, size, moert::capi::Defaults());
}
