// A residency policy of the host: the expert used least often leaves. docs/guide/custom-policy.md
// builds it up from an empty file.
#ifndef MOERT_EXAMPLES_CUSTOM_POLICY_USE_RATE_H_
#define MOERT_EXAMPLES_CUSTOM_POLICY_USE_RATE_H_

#include <vector>

#include "moert/policy.h"

/// Keeps, for every expert, the share of its layer's recent calls that used it: a mean whose
/// weights shrink by `decay` per call. LRU is the limit of a decay towards 0.
class UseRate : public moert::ResidencyPolicy {
 public:
  explicit UseRate(double decay) : decay_(decay) {}

  void Observe(const moert::LayerEvent& event) override;
  int Victim(const moert::VictimSnapshot& snapshot) override;

 private:
  const double decay_;
  std::vector<std::vector<double>> rates_;  // [layers][experts]
};

#endif  // MOERT_EXAMPLES_CUSTOM_POLICY_USE_RATE_H_
