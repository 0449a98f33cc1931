// Costs of layer calls on the virtual clock. Only this class advances logical time for the work of
// a call; the virtual link does so for transfers (transfer/virtual_link.cc).
#ifndef MOERT_LIB_ENGINE_CHARGES_H_
#define MOERT_LIB_ENGINE_CHARGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "exec/executor.h"
#include "exec/model_constants.h"
#include "moert/engine.h"
#include "moert/tools/profile.h"
#include "store/versioned_store.h"

namespace moert {

/// Does nothing on the wall clock. Costs are those of the profile, or those of a recording if the
/// call has recorded times (RoutedInput::times).
class Charges {
 public:
  /// All borrowed. `version_names`: of the served versions, for the profile's rates.
  Charges(Clock* clock, const HardwareProfile* profile, const MoeModelSpec* model,
          const ModelConstants* constants, const VersionedStore* store,
          std::vector<std::string> version_names);

  /// Begins a call. `routed` is null if the gate routes it.
  void Begin(const RoutedInput* routed);
  /// Charges the routing. `next_gate`: the next layer's gate was scored too.
  void Routed(int layer, const RoutingResult& routing, bool next_gate);
  /// Charges the products of experts, and of the shared expert in the `first` batch of the call.
  void Multiplied(int layer, const RoutingResult& routing, absl::Span<const ReadyExpert> experts,
                  bool first);
  /// Waits until `ns` for work that ran beside the call.
  void WaitUntil(int64_t ns);
  /// Charges the rest of the call.
  void Rest(Phase phase, int64_t tokens);

 private:
  void Pass(double ns);
  const RecordLayout* SharedLayout(int layer) const;

  VirtualClock* const clock_;  // null: the wall clock
  const HardwareProfile* const profile_;
  const MoeModelSpec* const model_;
  const ModelConstants* const constants_;
  const VersionedStore* const store_;
  const std::vector<std::string> version_names_;
  bool shared_ = true;                   // this call includes the layer's shared experts
  const CallTimes* recorded_ = nullptr;  // recorded times of this call; null: none
  double recorded_bytes_ = 0;            // bytes of all records that the recorded call multiplied
};

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_CHARGES_H_
