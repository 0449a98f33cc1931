// A device's arithmetic in search of a group's scale, on the host: the same bits as the CPU's
// search wherever it does not leave the group to that, and it leaves few ordinary groups.
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cuda/offline/hqq_math.h"
#include "kernels/cuda/offline/rtn_math.h"
#include "offline/fit_forms.h"
#include "offline/hqq.h"
#include "offline/rtn.h"
#include "support/catch.h"
#include "support/random_weights.h"

namespace moert {
namespace {

using cuda::Fit;

// As kernels/cuda/offline/fit_rtn.cu does, one after the other.
Fit DeviceRtn(const Scheme& scheme, const std::vector<float>& values) {
  const int count = static_cast<int>(values.size());
  const auto form = MakeRangeForm(scheme, count, RtnOptions());
  REQUIRE(form.has_value());
  float low = 0, high = 0;
  for (const float v : values) {
    low = v < low ? v : low;
    high = v > high ? v : high;
  }
  const float first = SpanningFit(*form, low, high, form->shares[0]).scale;
  bool can = (low != 0 || high != 0) && cuda::CanFitRtn(first);
  std::vector<Fit> fits;
  std::vector<cuda::RtnError> errors;
  size_t best = 0;
  for (int c = 0; c < form->candidates; ++c) {
    fits.push_back(SpanningFit(*form, low, high, form->shares[c]));
    errors.push_back(ErrorOfRange(*form, fits.back(), first, values.data(), count));
    can = can && CanFitRtn(*form, fits.back());
    if (errors.back().error < errors[best].error) best = fits.size() - 1;
  }
  for (size_t c = 0; c < fits.size(); ++c) {
    can = can && !MayBeBetter(errors[c], fits[c], errors[best], fits[best]);
  }
  return can && std::isfinite(errors[best].error) ? fits[best] : cuda::Undecided();
}

// As fit_hqq.cu.
Fit DeviceHqq(const Scheme& scheme, const std::vector<float>& values) {
  const int count = static_cast<int>(values.size());
  const auto form = MakeHqqForm(scheme, HqqOptions());
  REQUIRE(form.has_value());
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  if (!cuda::CanFitHqq(*low, *high)) return cuda::Undecided();
  Fit best = cuda::Undecided();
  double least = HUGE_VAL;
  for (int n = 0; n < form->candidates; ++n) {
    cuda::HqqCandidate c;
    if (!BeginHqq(*form, *low, *high, n, &c)) continue;
    const auto iterate = form->symmetric ? cuda::IterateHqq<true> : cuda::IterateHqq<false>;
    while (iterate(*form, values.data(), count, &c)) {
    }
    if (c.outliers) return cuda::Undecided();
    const Fit fit = StoredHqq(*form, c);
    const double error =
        fit.scale > 0 ? HqqError(*form, fit, values.data(), count) : double{HUGE_VAL};
    if (error < least) {
      least = error;
      best = fit;
    }
  }
  return best;
}

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

struct Tally {
  int groups = 0, decided = 0;
  void Add(const Fit& found, const GroupScale& right) {
    ++groups;
    if (!Decided(found)) return;
    ++decided;
    INFO(found.scale << " for " << right.scale << ", " << found.offset << " for " << right.offset);
    REQUIRE(SameBits(found.scale, right.scale));
    REQUIRE(SameBits(found.offset, right.offset));
  }
};

TEST_CASE("what a device decides is what the CPU finds, to the bit") {
  std::mt19937 random(11);
  for (const Scheme& scheme : Scheme::All()) {
    if (scheme.is_bf16()) continue;
    for (int kind = 0; kind < test::kWeightKinds; ++kind) {
      Tally rtn, hqq;
      for (const size_t count : {128, 64, 32, 16, 128, 77, 200, 128}) {
        INFO(scheme.Name() << ", kind " << kind << ", " << count << " values");
        const std::vector<float> values = test::DrawWeights(kind, count, &random);
        rtn.Add(DeviceRtn(scheme, values), FitGroup(scheme, values, RtnOptions()));
        if (!HasPlainCodes(scheme)) continue;
        hqq.Add(DeviceHqq(scheme, values), FitHqq(scheme, values, HqqOptions()));
      }
      INFO(scheme.Name() << ", kind " << kind);
      if (kind != 0) continue;
      CHECK(4 * rtn.decided >= 3 * rtn.groups);
      CHECK(hqq.decided == hqq.groups);
    }
  }
}

TEST_CASE("a device leaves few ordinary groups to the CPU") {
  std::mt19937 random(12);
  for (const Scheme& scheme : Scheme::All()) {
    if (scheme.is_bf16()) continue;
    const size_t count = scheme.group > 0 ? static_cast<size_t>(scheme.group) : 768;
    Tally tally;
    for (int i = 0; i < 40; ++i) {
      const std::vector<float> values = test::DrawWeights(0, count, &random);
      tally.Add(DeviceRtn(scheme, values), FitGroup(scheme, values, RtnOptions()));
    }
    INFO(scheme.Name() << ": " << tally.decided << " of " << tally.groups);
    CHECK(tally.decided >= 34);
  }
}

}  // namespace
}  // namespace moert
