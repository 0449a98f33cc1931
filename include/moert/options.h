// EngineOptions: a plain aggregate; every field has a default that most hosts should leave alone.
#ifndef MOERT_OPTIONS_H_
#define MOERT_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "moert/backend.h"
#include "moert/promise.h"
#include "moert/scheme.h"
#include "moert/tools/profile.h"

namespace moert {

class HostAllocator;
class PeerTier;
class ThreadPool;
class TraceSink;
struct Strategy;

enum class ClockKind : int32_t {
  kWall = 0,
  kVirtual = 1,  // logical times from the profile: reproducible to the bit
};

/// A byte budget: bytes for everything (pools and fixed parts), or a share of the bytes of all
/// routed experts in the best version served. The fixed parts are added to a share.
struct Budget {
  std::optional<int64_t> bytes = {};
  double fraction = 1.0;  // in (0, 1]; used when `bytes` is empty

  static Budget Bytes(int64_t b) { return {b, 0}; }
  static Budget Fraction(double f) { return {std::nullopt, f}; }
};

enum class LogLevel : int32_t { kInfo = 0, kWarning = 1, kError = 2 };

/// The part of every layer that an engine owns (expert and tensor parallelism). Outputs of shards
/// that cover a layer once add up to its output. Ids are the model's; those of others add nothing.
struct Shard {
  /// Experts [first_expert, first_expert + num_experts) of every layer; num_experts 0: all.
  int first_expert = 0;
  int num_experts = 0;
  /// If not empty, replaces the range: the owned experts of every layer, ascending, at least one.
  std::vector<std::vector<int32_t>> experts = {};
  /// Channels [first_channel, first_channel + num_channels) of the intermediate dimension; 0: all.
  /// Both are multiples of kKTile and of group sizes. Shared experts are sliced in proportion.
  int64_t first_channel = 0;
  int64_t num_channels = 0;
  bool shared_experts = true;  // whether they are computed here

  bool whole() const {
    return num_experts == 0 && experts.empty() && num_channels == 0 && shared_experts;
  }
};

/// Progress of Engine::Create: experts that a preloading strategy loads.
struct OpenProgress {
  int64_t loaded_experts = 0;
  int64_t total_experts = 0;
};

/// Every field has an initializer: designated ones may omit any of them without a warning.
struct EngineOptions {
  // ----- Options that change results or memory ---------------------------------------------------
  /// Strategy spec, "name[:key=value,...]" or "A+B.seam" (strategy.h). The default is exact.
  std::string strategy = "on-demand";
  /// Modifies the strategy built from the spec: installs policies of the host. Also called by Plan.
  std::function<absl::Status(Strategy*)> customize_strategy = {};
  /// The weakest promise that the host accepts: a strategy that promises less is refused. Keys that
  /// are `auto` (such as `cpu`) follow it: with kFaithful a CPU beside a device computes some
  /// misses. Empty: a strategy promises what its spec says, and `auto` is faithful.
  std::optional<Promise> promise = {};
  Budget budget = {};  // hard limit of the fast tier (design rule 1)
  /// Rows of the largest layer call. Workspace is sized from it and is part of the budget.
  int64_t max_tokens_per_forward = 512;
  BackendKind backend = BackendKind::kCpu;
  int device = 0;  // CUDA backend: the device's ordinal
  /// CUDA backend: most bytes of pinned host memory that keep records once read; -1: all that the
  /// machine can spare at open but an eighth (MemoryPlan::pinned_bytes). Simulation: bytes of
  /// records in RAM, others come from a file (HardwareProfile::file_bytes_per_s); -1: all.
  int64_t host_budget = -1;
  ActivationNumerics activation = ActivationNumerics::kBF16;
  ClockKind clock = ClockKind::kWall;
  HardwareProfile profile = {};
  /// CUDA backend: engines with the same tier, over one source and without shards, copy missing
  /// experts from each other (MakePeerTier). Not used once the device serves misses. Null: none.
  std::shared_ptr<PeerTier> peers = {};
  /// Paces transfers to this rate, GB/s (1e9); 0: the device's own speed (wall) or the profile's.
  double link_gbps = 0;
  /// Decisions and logical time only: no record is read, no pool memory held, nothing multiplied.
  /// Needs the virtual clock and Engine::ForwardRouted. Budgets mean the same as in a real run.
  bool simulate = false;
  Shard shard = {};  // the part of the model that this engine owns; the default is all of it

  // ----- Options that change speed only ----------------------------------------------------------
  /// Compute threads, the caller's included; 0: one per core this process may use, on a device
  /// without the cores of the caller and of the I/O threads. On a device whose CPU computes
  /// experts, threads poll for work for 10 ms after a job, yielding to others, before they sleep.
  int threads = 0;
  /// CPUs that compute threads except the caller's are pinned to, in turn; empty: not pinned.
  std::vector<int> cpus = {};
  std::shared_ptr<ThreadPool> thread_pool = {};  // replaces threads, cpus; null: the library's own
  /// NUMA node of pools in RAM, and of compute threads unless `cpus` or `thread_pool` says
  /// otherwise; -1: wherever the system puts them. A node that does not exist is refused.
  int numa_node = -1;
  std::shared_ptr<HostAllocator> allocator = {};  // of expert pools in RAM; null: the system
  int io_threads = 2;                             // threads that read experts; 1..16
  /// CPU kernel set: "auto" or a name of MixedGroupGemm::KernelNames().
  std::string kernels = "auto";
  std::shared_ptr<TraceSink> trace = {};  // sees every layer call; null: none

  /// Called by Create, on its thread, after each layer that a preloading strategy loaded; may be
  /// null. False: Create waits for reads under way, frees what it has and returns Cancelled.
  std::function<bool(const OpenProgress&)> open_progress = {};
  /// Receives a log line for the operator of the host. Called from the thread that caused it, with
  /// no lock held; may call the engine. Null: no log.
  std::function<void(LogLevel, absl::string_view line)> log = {};

  /// Names the first field out of range, its value and the legal range.
  absl::Status Validate() const;
};

}  // namespace moert

#endif  // MOERT_OPTIONS_H_
