// Where a model's bytes would lie on this machine, how fast it would decode, and by which command.
#ifndef MOERT_EXAMPLES_CLI_DOCTOR_ADVICE_H_
#define MOERT_EXAMPLES_CLI_DOCTOR_ADVICE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/doctor/model_facts.h"
#include "cli/doctor/rates.h"

namespace moert::cli {

/// Bytes that a run may take.
struct Room {
  int64_t memory = 0;  // RAM
  int64_t device = 0;  // 0: no GPU is used
};

/// Shares of the routed experts, which sum up to 1, by the fastest tier that holds them.
struct Tiers {
  double device = 0, memory = 0, disk = 0;
};

/// Tokens a second of one request, from `least` (no expert is likelier than another) to `most`
/// (routing as skewed as the bundled model's). 0: a rate that is needed was not measured.
struct Speed {
  double least = 0, most = 0;
};

/// The experts in one scheme on this machine.
struct Placement {
  ExpertsAs as;
  Tiers tiers;
  int64_t budget = 0;  // of the fast tier, fixed parts included
  // Beside a GPU that lacks some, RAM that experts are read into before the first token: for all of
  // them, or, where it has room for half at least, as much as there is.
  int64_t pinned = 0;
  Speed speed;
};

struct Advice {
  bool fits = false;  // all but the experts, at least
  bool on_device = false;
  std::vector<Placement> placements;  // as ModelFacts::schemes
  std::vector<std::string> lines;     // for people: sums, placements, what to type
  std::vector<std::string> assumptions;
};

/// Time that a layer's kernels take beside the bytes they read, as each waits for the one before
/// it. Measured once, on an H200; the advice says so.
inline constexpr double kDeviceLayerSeconds = 35e-6;
/// Share of a device's measured memory rate that products of one token reach.
inline constexpr double kDeviceShare = 0.6;
/// Device memory left for a context, workspaces and a screen.
inline constexpr int64_t kDeviceReserve = int64_t{1} << 30;

Advice Advise(const ModelFacts& facts, const Room& room, const Rates& rates);

nlohmann::json ToJson(const Advice& advice);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_DOCTOR_ADVICE_H_
