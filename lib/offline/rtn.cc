#include "offline/rtn.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "offline/offline_device.h"
#include "offline/rtn_candidates.h"
#include "offline/rtn_lane_fit.h"

namespace moert {

GroupScale FitGroupScalar(const Scheme& scheme, absl::Span<const float> values,
                          const RtnOptions& options) {
  float low = 0, high = 0;
  for (const float v : values) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  if (low == 0 && high == 0) return {RoundScale(scheme, 0), 0};
  GroupScale best = Spanning(scheme, low, high), tried;
  double best_error = std::numeric_limits<double>::infinity();
  const PowerTable power(options.norm);
  const int grid = std::max(1, options.grid);
  for (int i = 0; i < grid; ++i) {
    const float share = RangeShare(options, i, grid);
    const GroupScale g = Spanning(scheme, low * share, high * share);
    if (!(g.scale > 0) || (g.scale == tried.scale && g.offset == tried.offset)) continue;
    tried = g;
    const double error = GroupError(scheme, g, values, options, power, best_error);
    if (error < best_error) {
      best_error = error;
      best = g;
    }
  }
  return best;
}

GroupScale FitGroup(const Scheme& scheme, absl::Span<const float> values, const RtnOptions& options,
                    const RtnLanes* lanes) {
  GroupScale best;
  if (lanes != nullptr && LaneFit::Can(scheme, values, options) &&
      LaneFit(scheme, values, options, *lanes).Run(&best)) {
    return best;
  }
  return FitGroupScalar(scheme, values, options);
}

QuantizedMatrix QuantizeGroups(const MatrixLayout& layout, absl::Span<const float> weights,
                               absl::FunctionRef<GroupScale(absl::Span<const float>)> fit) {
  QuantizedMatrix q = MakeQuantizedMatrix(layout);
  for (int64_t r = 0; r < q.rows; ++r) {
    for (int64_t n = 0; n < q.groups(); ++n) {
      const int64_t begin = r * q.k + n * q.group;
      const int64_t count = std::min(q.group, q.k - n * q.group);
      const GroupScale g = fit(weights.subspan(begin, count));
      q.scales[r * q.groups() + n] = g.scale;
      if (!q.offsets.empty()) q.offsets[r * q.groups() + n] = g.offset;
      RoundGroup(layout.scheme, g, weights.subspan(begin, count), q.codes.data() + begin);
    }
  }
  return q;
}

namespace {

QuantizedMatrix SearchAndRound(const MatrixLayout& layout, absl::Span<const float> weights,
                               const RtnOptions& options, OfflineDevice* device) {
  std::vector<GroupScale> found;
  if (device != nullptr) found = device->Rtn(layout, weights, options);
  size_t next = 0;
  return QuantizeGroups(layout, weights, [&](absl::Span<const float> values) {
    const size_t group = next++;
    if (group < found.size() && found[group].Known()) return found[group];
    return FitGroup(layout.scheme, values, options);
  });
}

}  // namespace

QuantizedMatrix QuantizeRtn(const MatrixLayout& layout, absl::Span<const float> weights,
                            const RtnOptions& options, OfflineDevice* device) {
  if (layout.scheme.scales == ScaleType::kE4M3) {
    constexpr float kMostE4M3 = 448;
    // The largest group's scale takes the largest e4m3 value.
    float most = 0;
    for (const float w : weights) most = std::max(most, std::fabs(w));
    const float matrix = most > 0 ? most / (LargestFloat(layout.scheme) * kMostE4M3) : 1;
    std::vector<float> scaled(weights.begin(), weights.end());
    for (float& w : scaled) w /= matrix;
    QuantizedMatrix q = SearchAndRound(layout, scaled, options, device);
    q.matrix_scale = matrix;
    return q;
  }
  return SearchAndRound(layout, weights, options, device);
}

}  // namespace moert
