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

/// A byte budget: either bytes for everything (pools and fixed parts), or a share of the bytes of
/// all routed experts in the best version served, to which the fixed parts are added.
struct Budget {
  std::optional<int64_t> bytes = {};
  double fraction = 1.0;  // in (0, 1]; used when `bytes` is empty

  static Budget Bytes(int64_t b) { return {b, 0}; }
  static Budget Fraction(double f) { return {std::nullopt, f}; }
};

enum class LogLevel : int32_t { kInfo = 0, kWarning = 1, kError = 2 };

/// Which part of every layer an engine owns: for expert and tensor parallelism. Its outputs are
/// partial sums: over shards that cover a layer once they add up to the layer's output. Ids stay
/// those of the whole model; what the shard does not own adds nothing.
struct Shard {
  /// Experts [first_expert, first_expert + num_experts) of every layer; num_experts 0: all.
  int first_expert = 0;
  int num_experts = 0;
  /// If not empty, replaces the range: the owned experts of every layer, ascending, at least one.
  std::vector<std::vector<int32_t>> experts = {};
  /// Channels [first_channel, first_channel + num_channels) of every layer's intermediate
  /// dimension; 0: all. Both are multiples of kKTile and of the schemes' group sizes. Shared
  /// experts are sliced in proportion.
  int64_t first_channel = 0;
  int64_t num_channels = 0;
  /// Whether the shared experts are computed here.
  bool shared_experts = true;

  bool whole() const {
    return num_experts == 0 && experts.empty() && num_channels == 0 && shared_experts;
  }
};

/// Progress of Engine::Create: experts that a preloading strategy loads.
struct OpenProgress {
  int64_t loaded_experts = 0;
  int64_t total_experts = 0;
};

/// Every field has an initializer, so designated initializers may omit any of them without a
/// warning.
struct EngineOptions {
  // Options that change results or memory.

  /// Strategy spec, "name[:key=value,...]", composed as "A+B.seam" (strategy.h). The default is
  /// exact.
  std::string strategy = "on-demand";
  /// Modifies the strategy that was built from the spec, before the engine takes it: a host
  /// installs policies of its own this way. Also called by Plan.
  std::function<absl::Status(Strategy*)> customize_strategy = {};
  /// The weakest promise that the host accepts (promise.h). A strategy that promises less is
  /// refused. Strategy keys set to `auto` (such as `cpu`) follow it: with kFaithful a CPU beside a
  /// device computes some misses. Empty: a strategy promises what its spec says, and `auto` is
  /// faithful.
  std::optional<Promise> promise = {};
  /// Hard limit of the fast tier (design rule 1).
  Budget budget = {};
  /// Rows of the largest layer call. Workspace is sized from it and is part of the budget.
  int64_t max_tokens_per_forward = 512;
  BackendKind backend = BackendKind::kCpu;
  /// CUDA backend: the device's ordinal.
  int device = 0;
  /// CUDA backend: limit of the pinned host memory that keeps records once read, bytes; -1: the
  /// memory that the machine can spare when the engine opens, less an eighth of it
  /// (MemoryPlan::pinned_bytes). Simulation: bytes of records that RAM holds, the others come from
  /// a file (HardwareProfile::file_bytes_per_s); -1: RAM holds all.
  int64_t host_budget = -1;
  ActivationNumerics activation = ActivationNumerics::kBF16;
  ClockKind clock = ClockKind::kWall;
  HardwareProfile profile = {};
  /// CUDA backend: engines given the same tier copy missing experts from each other (MakePeerTier).
  /// They must be over one source, without shards. Not used once the device serves misses itself.
  /// Null: no peers.
  std::shared_ptr<PeerTier> peers = {};
  /// Paces transfers to this rate, GB/s (1e9); 0: the device's own speed (wall) or the profile's.
  double link_gbps = 0;
  /// Decisions and logical time only: no record is read, no pool memory held, nothing multiplied.
  /// Needs the virtual clock; layers run through Engine::ForwardRouted. Budgets mean what they mean
  /// in a real run of the same model.
  bool simulate = false;
  /// The part of the model that this engine owns; the default is all of it.
  Shard shard = {};

  // Options that change speed only.

  /// Compute threads, the caller's included; 0: one per core this process may use, on a device
  /// without the cores of the caller and of the I/O threads. On a device, if a strategy computes
  /// experts on the CPU, the threads poll for work for 10 ms after a job, yielding to other
  /// threads, before they sleep.
  int threads = 0;
  /// CPUs the compute threads are pinned to, in turn; empty: not pinned. The caller's own thread is
  /// never touched.
  std::vector<int> cpus = {};
  /// The host's pool in place of `threads` and `cpus`; null: the library's own.
  std::shared_ptr<ThreadPool> thread_pool = {};
  /// Pools in RAM come from this NUMA node, and compute threads run on its CPUs where neither
  /// `cpus` nor `thread_pool` says otherwise; -1: wherever the system puts them. Refused where the
  /// machine has no such node.
  int numa_node = -1;
  /// Where expert pools in RAM come from; null: the system.
  std::shared_ptr<HostAllocator> allocator = {};
  /// Threads that read experts from their source. 1..16.
  int io_threads = 2;
  /// CPU kernel set: "auto" or a name of MixedGroupGemm::KernelNames().
  std::string kernels = "auto";
  /// Sees every layer call; null: none.
  std::shared_ptr<TraceSink> trace = {};

  /// Called by Create, on its thread, after each layer that a preloading strategy has loaded. If it
  /// returns false, Create waits for reads under way, frees what it has and returns Cancelled. May
  /// be null.
  std::function<bool(const OpenProgress&)> open_progress = {};

  /// Receives a log line for the operator of the host. Called from the thread that caused it, with
  /// no lock held; may call the engine. Null: no log.
  std::function<void(LogLevel, absl::string_view line)> log = {};

  /// Names the first field out of range, its value and the legal range.
  absl::Status Validate() const;
};

}  // namespace moert

#endif  // MOERT_OPTIONS_H_
