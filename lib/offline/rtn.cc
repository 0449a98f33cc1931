#include "offline/rtn.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/bf16.h"
#include "offline/offline_device.h"
#include "offline/rtn_candidates.h"
#include "offline/rtn_lane_fit.h"
#include "offline/rtn_lanes.h"

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

namespace {

uint8_t NearestF8Code(float value) {
  // Positive codes ascend with their values: binary search over 0x00..0x7e, then the nearer
  // neighbour.
  const float magnitude = std::min(std::fabs(value), 448.0f);
  int low = 0, high = 0x7e;
  while (low < high) {
    const int mid = (low + high) / 2;
    if (F8E4M3ToF32(static_cast<uint8_t>(mid)) < magnitude) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  int code = low;
  if (code > 0) {
    const float above = F8E4M3ToF32(static_cast<uint8_t>(code)) - magnitude;
    const float below = magnitude - F8E4M3ToF32(static_cast<uint8_t>(code - 1));
    if (below < above || (below == above && code % 2 == 1)) --code;
  }
  return static_cast<uint8_t>(code | (std::signbit(value) && code != 0 ? 0x80 : 0));
}

uint8_t NearestF4(float value) {
  uint8_t best = 0;
  for (uint8_t code = 1; code < 8; ++code) {
    const float step = std::fabs(F4E2M1ToF32(code) - std::fabs(value));
    const float held = std::fabs(F4E2M1ToF32(best) - std::fabs(value));
    if (step < held || (step == held && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) && best != 0 ? 8 : 0));
}

}  // namespace

bool HasPlainCodes(const Scheme& scheme) {
  return !scheme.fp8 && !scheme.fp4 && !scheme.zero_points && scheme.scales == ScaleType::kBF16;
}

float RestoreCode(const Scheme& scheme, const GroupScale& g, uint8_t code) {
  if (scheme.fp8) return g.scale * F8E4M3ToF32(code);
  if (scheme.fp4) return g.scale * F4E2M1ToF32(code);
  const float u = static_cast<float>(code);
  if (scheme.zero_points) return g.scale * (u - g.offset);
  return scheme.symmetric ? g.scale * (u - static_cast<float>(1 << (scheme.weight_bits - 1)))
                          : g.scale * u - g.offset;
}

uint8_t RoundToCode(const Scheme& scheme, const GroupScale& g, float weight) {
  if (scheme.fp8) return g.scale > 0 ? NearestF8Code(weight / g.scale) : 0;
  if (scheme.fp4) return g.scale > 0 ? NearestF4(weight / g.scale) : 0;
  const float middle = static_cast<float>(1 << (scheme.weight_bits - 1));
  const float top = static_cast<float>((1 << scheme.weight_bits) - 1);
  const float zero = scheme.symmetric ? middle : scheme.zero_points ? g.offset : 0;
  if (!(g.scale > 0)) return static_cast<uint8_t>(zero);
  if (scheme.zero_points) {
    return static_cast<uint8_t>(std::clamp(std::nearbyint(weight / g.scale + zero), 0.0f, top));
  }
  const float u = scheme.symmetric ? weight / g.scale + middle : (weight + g.offset) / g.scale;
  return static_cast<uint8_t>(std::clamp(std::nearbyint(u), 0.0f, top));
}

float LargestFloat(const Scheme& scheme) { return scheme.fp8 ? 448.0f : 6.0f; }

void RoundGroup(const Scheme& scheme, const GroupScale& g, absl::Span<const float> weights,
                uint8_t* codes, const RtnLanes* lanes) {
  const int count = static_cast<int>(weights.size());
  if (lanes == nullptr || !(g.scale > 0)) {
    for (size_t i = 0; i < weights.size(); ++i) codes[i] = RoundToCode(scheme, g, weights[i]);
  } else if (scheme.fp8 || scheme.fp4) {
    lanes->float_codes(scheme.fp8, weights.data(), count, g.scale, codes);
  } else {
    const bool before = !scheme.symmetric && !scheme.zero_points;  // the offset is added to weights
    const float zero = scheme.symmetric     ? static_cast<float>(1 << (scheme.weight_bits - 1))
                       : scheme.zero_points ? g.offset
                                            : 0;
    lanes->codes(weights.data(), count, g.scale, before ? g.offset : 0, zero,
                 static_cast<float>((1 << scheme.weight_bits) - 1), codes);
  }
}

}  // namespace moert
