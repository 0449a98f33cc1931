// Costs of layer calls on the virtual clock. The work of a call lets logical time pass here and
// nowhere else; transfers take theirs on the virtual link (transfer/virtual_link.cc).
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

/// Does nothing on the wall clock, where work takes the time it takes. Costs are the profile's, or
/// those of the recording for a call that brings some (RoutedInput::times).
class Charges {
 public:
  /// All borrowed. `version_names`: of the served versions, for the profile's rates.
  Charges(Clock* clock, const HardwareProfile* profile, const MoeModelSpec* model,
          const ModelConstants* constants, const VersionedStore* store,
          std::vector<std::string> version_names);

  /// A call begins; `routed` is null where it is routed by the gate.
  void Begin(const RoutedInput* routed);
  /// It has been routed. `next_gate`: the next layer's gate predicts.
  void Routed(int layer, const RoutingResult& routing, bool next_gate);
  /// Experts, and the shared expert in the `first` batch of the call, have been multiplied.
  void Multiplied(int layer, const RoutingResult& routing, absl::Span<const ReadyExpert> experts,
                  bool first);
  /// Something that ran beside the call is waited for until then.
  void WaitUntil(int64_t ns);
  /// Everything else of the call.
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
  bool shared_ = true;                   // this call has the layer's shared experts
  const CallTimes* recorded_ = nullptr;  // of this call when it was recorded
  double recorded_bytes_ = 0;            // of all records it multiplied then
};

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_CHARGES_H_
