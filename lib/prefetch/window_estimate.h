// WindowEstimate: the time from a layer's routing to the next layer's, without waiting (Fate
// Sec. 4.3: T_window = T_moe + T_gate + T_attention), updated by measurement.
//
// It is measured from one routing to the next, so it includes the host's work in between
// (attention), on the wall clock and on the virtual one. There is one estimate for each phase,
// layer and size of the step in powers of two.
#ifndef MOERT_LIB_PREFETCH_WINDOW_ESTIMATE_H_
#define MOERT_LIB_PREFETCH_WINDOW_ESTIMATE_H_

#include <cstdint>
#include <vector>

#include "base/ewma.h"
#include "moert/policy.h"
#include "moert/tools/profile.h"

namespace moert {

class WindowEstimate {
 public:
  /// `profile` is borrowed. Its times are used until there are measurements.
  WindowEstimate(int layers, const HardwareProfile* profile);

  /// Reports that a layer's routing became known at context.now_ns; `stalled_ns` is the total
  /// waiting time so far.
  void Routed(const PolicyContext& context, int64_t tokens, int64_t stalled_ns);
  /// Reports that the layer routed last waited for a load until now_ns.
  void Waited(int64_t now_ns) { waited_ns_ = now_ns; }
  /// Time from the routing of context.layer to the routing of the next layer.
  int64_t WindowNs(const PolicyContext& context, int64_t tokens) const;
  /// Time from the last load that a call of context.layer waited for to the routing of the next
  /// layer; -1 if no call has waited.
  int64_t IdleNs(const PolicyContext& context, int64_t tokens) const;

 private:
  size_t Index(Phase phase, int layer, int64_t tokens) const;

  const int layers_;
  const HardwareProfile* profile_;
  using Mean = Ewma<running_mean::kWindow>;
  std::vector<Mean> mean_ns_;
  std::vector<Mean> idle_ns_;
  int64_t waited_ns_ = -1;  // end of the last wait since the last routing; -1: none
  PolicyContext last_;
  int64_t last_tokens_ = 0;
  int64_t last_stalled_ns_ = 0;
  bool any_ = false;
};

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_WINDOW_ESTIMATE_H_
