#include "strategies/hybrid_bits.h"

namespace moert {
namespace {

class HybridBits final : public PrecisionPolicy {
 public:
  explicit HybridBits(const HybridBitsOptions& options) : options_(options) {}

  int TransferVersion(const TransferSnapshot& snapshot) override {
    constexpr int kHigh = 0, kLow = 1;
    if (snapshot.resident >= 0) {
      const bool upgrade = options_.upgrade && snapshot.context.phase == Phase::kDecode;
      return upgrade ? kHigh : snapshot.resident;
    }
    if (snapshot.context.phase == Phase::kDecode) {
      return options_.miss_low && !snapshot.prefetch ? kLow : kHigh;
    }
    return AmongLeastPopular(snapshot.layer_counts, snapshot.key.expert, options_.rho) ? kLow
                                                                                       : kHigh;
  }

 private:
  const HybridBitsOptions options_;
};

}  // namespace

bool AmongLeastPopular(absl::Span<const int32_t> counts, int expert, double rho) {
  int64_t all = 0;
  int64_t up_to = 0;  // of the expert and those less popular
  for (int e = 0; e < static_cast<int>(counts.size()); ++e) {
    all += counts[e];
    const bool less = counts[e] < counts[expert] || (counts[e] == counts[expert] && e >= expert);
    if (less) up_to += counts[e];
  }
  return all > 0 && static_cast<double>(up_to) <= rho * static_cast<double>(all);
}

std::unique_ptr<PrecisionPolicy> MakeHybridBits(const HybridBitsOptions& options) {
  return std::make_unique<HybridBits>(options);
}

}  // namespace moert
