// WindowEstimate: how long after a layer's routing the next layer asks, waiting excluded (Fate
// Sec. 4.3: T_window = T_moe + T_gate + T_attention), kept current by measuring it.
//
// Measured from one routing to the next, so what the host does in between (attention) is in it, on
// the wall clock and on the virtual one. Kept by phase, layer and size of the step in powers of
// two.
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
  /// `profile` is borrowed: it answers until something was measured.
  WindowEstimate(int layers, const HardwareProfile* profile);

  /// A layer's routing became known at context.now_ns; `stalled_ns` is all that was waited so far.
  void Routed(const PolicyContext& context, int64_t tokens, int64_t stalled_ns);
  /// The layer whose routing came last waited for a load until now_ns.
  void Waited(int64_t now_ns) { waited_ns_ = now_ns; }
  /// From the routing of context.layer to that of the layer after it.
  int64_t WindowNs(const PolicyContext& context, int64_t tokens) const;
  /// From the last load that a call of context.layer waited for to the routing of the layer after
  /// it; -1 if no call has waited.
  int64_t IdleNs(const PolicyContext& context, int64_t tokens) const;

 private:
  size_t Index(Phase phase, int layer, int64_t tokens) const;

  const int layers_;
  const HardwareProfile* profile_;
  using Mean = Ewma<running_mean::kWindow>;
  std::vector<Mean> mean_ns_;
  std::vector<Mean> idle_ns_;
  int64_t waited_ns_ = -1;  // since the last routing; -1: not
  PolicyContext last_;
  int64_t last_tokens_ = 0;
  int64_t last_stalled_ns_ = 0;
  bool any_ = false;
};

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_WINDOW_ESTIMATE_H_
