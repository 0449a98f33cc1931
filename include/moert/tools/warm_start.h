// WarmStart: fills the fast tier in the background after an engine was opened, most popular experts
// first, so that the first tokens do not pay for every expert's first read.
//
// It uses PrefetchHint: the experts that it asks for move while the link has nothing more urgent,
// after every demand load, a few at a time. It fills free slots only and evicts nothing.
#ifndef MOERT_TOOLS_WARM_START_H_
#define MOERT_TOOLS_WARM_START_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/engine.h"
#include "moert/policy.h"

namespace moert {

struct WarmStartOptions {
  /// Experts in flight at once. 1..64.
  int in_flight = 4;
  /// A thread of its own calls Advance, until everything is filled. False: the host calls it, as
  /// under a virtual clock.
  bool thread = true;
};

struct WarmStartStats {
  int64_t asked = 0;    // experts that were hinted
  int64_t arrived = 0;  // of those, experts that have arrived
  bool filling = false;
};

/// Thread-safe.
class WarmStart {
 public:
  /// `order`: the most popular first; an expert that is listed twice counts once. `engine` is
  /// borrowed and must live longer. InvalidArgument for an expert that the model lacks, or options
  /// out of range.
  static absl::StatusOr<std::unique_ptr<WarmStart>> Create(Engine* engine,
                                                           std::vector<ExpertKey> order,
                                                           WarmStartOptions options = {});
  /// Experts by how often they were used, most often first; `counts[layer][expert]`. Experts never
  /// used are left out. Counts are compared as shares of their layer, so that every layer is
  /// represented.
  static std::vector<ExpertKey> ByCounts(const std::vector<std::vector<int64_t>>& counts);

  /// Stops asking; transfers in flight still arrive.
  ~WarmStart();
  WarmStart(const WarmStart&) = delete;
  WarmStart& operator=(const WarmStart&) = delete;

  /// Asks for what fits now. False when nothing is left to do. Waits for a layer call in progress.
  bool Advance();
  WarmStartStats stats() const;

 private:
  struct Impl;
  explicit WarmStart(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace moert

#endif  // MOERT_TOOLS_WARM_START_H_
