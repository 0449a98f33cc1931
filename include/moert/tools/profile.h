// HardwareProfile: the rates every cost model reads (design rule 8: measure, don't assume).
//
// `moert-bench probe --json FILE` measures one and `--profile FILE` uses it. The shipped profile
// "reference" is the logical machine of the virtual clock: quality tables are made with it, so that
// a run is reproducible to the bit on any machine.
#ifndef MOERT_TOOLS_PROFILE_H_
#define MOERT_TOOLS_PROFILE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moert {

struct HardwareProfile {
  std::string name = "reference";
  // Transfers into the fast tier (CPU backend: disk reads; CUDA: pinned host to device).
  double link_bytes_per_s = 16e9;  // of all transfers together
  int64_t link_latency_ns = 5000;  // per transfer
  // Transfers under way at once, and the rate of one that has the link to itself (0: the link's).
  int link_streams = 1;
  double stream_bytes_per_s = 0;
  // One reader that brings a record from a file into RAM (simulation with a host_budget).
  double file_bytes_per_s = 2e9;
  // From the end of a transfer until the layer that waits for it continues; occupies no link.
  int64_t arrival_ns = 0;
  // One layer of a decode step with every expert resident: all of it where `compute` is empty
  // (attention included), else what is not expert multiplication.
  int64_t decode_layer_ns = 500'000;
  // Added to decode_layer_ns per token of a prefill step.
  int64_t prefill_token_ns = 2'000;
  // CPU execution of experts beside a GPU, for placement decisions: the first token of an expert
  // costs the latency and one pass over its weights, every further one this share of that pass (the
  // importance paper's t_cpu per token is a share of 1).
  bool cpu_executor = false;  // simulation: whether there is such a CPU at all
  double cpu_weight_bytes_per_s = 40e9;
  int64_t cpu_expert_latency_ns = 10'000;
  double cpu_next_token_share = 1;
  // Expert multiplication in the fast tier as measured, ascending by tokens of an expert; between
  // two rows the time is interpolated. Empty: its time is part of the layer's.
  struct ComputeRate {
    int64_t tokens = 1;
    double weight_bytes_per_s = 0;
  };
  std::vector<ComputeRate> compute = {};
  // The same of stored versions that are multiplied at another rate, by the version's name.
  struct VersionRates {
    std::string version = {};
    std::vector<ComputeRate> rates = {};
  };
  std::vector<VersionRates> version_compute = {};
  // The same CPU's measured rates by stored version. They replace cpu_weight_bytes_per_s and
  // cpu_next_token_share: the time is the latency plus the time by these rates.
  std::vector<VersionRates> cpu_compute = {};
  // Overheads of a multiplication call beside its experts (a layer makes one call for the resident
  // experts and one for each arrival), of a call after a wait (threads have gone to sleep), and of
  // each run of the next layer's gate for a predictor.
  int64_t wave_ns = 0;
  int64_t wake_ns = 0;
  int64_t next_gate_ns = 0;
  // Added to a layer in which a device answers misses low or substitutes them: it keeps accounts of
  // the requests.
  int64_t request_rule_ns = 6'000;

  /// A time of a link or a CPU for one record, in whole ns, capped so that sums cannot overflow:
  /// rates may be as low as a byte per second.
  static int64_t WholeNs(double ns) { return static_cast<int64_t>(std::min(ns, 1e15)); }

  /// Time a transfer of `bytes` occupies the link when others keep it busy.
  int64_t TransferNs(int64_t bytes) const {
    return link_latency_ns + WholeNs(1e9 * static_cast<double>(bytes) / link_bytes_per_s);
  }
  /// Time of one layer with nothing to wait for.
  int64_t LayerNs(bool prefill, int64_t tokens) const {
    return decode_layer_ns + (prefill ? prefill_token_ns * tokens : 0);
  }
  /// Time of the CPU beside a GPU to multiply one expert of `bytes` by `tokens` tokens. `version`:
  /// the name of its stored version.
  int64_t CpuExpertNs(int64_t bytes, int64_t tokens, absl::string_view version = {}) const;
  /// Time to multiply one expert of `bytes` by `tokens` tokens, beside LayerNs. `version`: its
  /// name; without rates of its own it is charged those of `compute`.
  double ExpertNs(int64_t bytes, int64_t tokens, absl::string_view version = {}) const;
};

/// "reference", or the path of a profile written by `moert-bench probe --json`. Errors name the
/// file, field and range.
absl::StatusOr<HardwareProfile> LoadProfile(const std::string& path);

}  // namespace moert

#endif  // MOERT_TOOLS_PROFILE_H_
