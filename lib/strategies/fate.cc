// fate: the next layer's gate says what to prefetch, ARC keeps what comes back, and shallow layers,
// which it predicts worst, get their slots first (Fate Sec. 4). With one scheme it is
// exact.
#include "base/status_macros.h"
#include "strategies/arc.h"
#include "strategies/builtin.h"
#include "strategies/capacity.h"
#include "strategies/next_layer_gate.h"

namespace moert {

absl::StatusOr<Strategy> BuildFate(const Params& params) {
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};

  NextLayerGateOptions gate;
  MOERT_ASSIGN_OR_RETURN(gate.percentile, params.Number("percentile", 75, 0, 99.999));
  MOERT_ASSIGN_OR_RETURN(const int64_t top, params.Integer("top", 0, 1, 1 << 20));
  gate.top = static_cast<int>(top);
  MOERT_ASSIGN_OR_RETURN(gate.wrap, params.Flag("wrap", false));
  strategy.prefetch = MakeNextLayerGate(gate);
  MOERT_ASSIGN_OR_RETURN(strategy.prefetch_control, params.Flag("control", true));

  MOERT_ASSIGN_OR_RETURN(const int64_t transient, params.Integer("transient", -1, 0, 1 << 20));
  if (params.Has("shallow")) {
    MOERT_ASSIGN_OR_RETURN(const int64_t shallow, params.Integer("shallow", 0, 0, 1 << 20));
    strategy.residency =
        MakeArc(MakeShallowFirst({static_cast<int>(shallow), static_cast<int>(transient)}));
  } else {
    strategy.residency = MakeArc(MakeMeasuredCapacity(static_cast<int>(transient)));
  }
  return strategy;
}

}  // namespace moert
