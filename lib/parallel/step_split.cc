#include "parallel/step_split.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "model/expected_experts.h"

namespace moert {
namespace {

constexpr int64_t kTimeoutNs = int64_t{60} * 1'000'000'000;
// Between products, ranks do not reach an exchange at the same time, so it takes 1.5 times as long.
constexpr double kBesideProducts = 1.5;
// Rows of a step choose similar experts: blocks of rows have more in common than for even choice.
constexpr double kSharedByBlocks = 1.15;

/// Numbers of calls: large ones (`many` floats), followed by small ones (`few`).
struct Calls {
  int large = 0, small = 0;
};

absl::StatusOr<double> SecondsOf(const Calls& calls, Collectives* group, float* data, int64_t few,
                                 int64_t many, void* stream) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls.large + calls.small; ++i) {
    MOERT_RETURN_IF_ERROR(group->AllReduce(data, i < calls.large ? many : few, stream));
  }
  if (stream != nullptr) MOERT_RETURN_IF_ERROR(group->Wait(stream, kTimeoutNs));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return took.count();
}

}  // namespace

absl::StatusOr<AllReduceCost> MeasureAllReduce(Collectives* group, float* data, int64_t few,
                                               int64_t many, void* stream) {
  // The device is still busy with large calls when the small ones are enqueued. So the small ones
  // are measured by their time on the device, as in a graph, not by the host's launch time.
  constexpr Calls kLarge{10, 0}, kBoth{10, 8};
  constexpr int kTrials = 3;
  constexpr double kLeast = 2e-6;  // less is noise
  double large = std::numeric_limits<double>::max(), both = large;
  for (int trial = 0; trial <= kTrials; ++trial) {
    MOERT_ASSIGN_OR_RETURN(const double alone, SecondsOf(kLarge, group, data, few, many, stream));
    MOERT_ASSIGN_OR_RETURN(const double more, SecondsOf(kBoth, group, data, few, many, stream));
    if (trial == 0) continue;  // a warm-up, which makes connections
    large = std::min(large, alone);
    both = std::min(both, more);
  }
  double mine[2] = {std::max((both - large) / kBoth.small, kLeast), large / kLarge.large};
  std::vector<double> all(2 * static_cast<size_t>(group->size()));
  MOERT_RETURN_IF_ERROR(group->AllGather(mine, sizeof(mine), all.data(), nullptr));
  for (size_t i = 0; i < all.size(); ++i) mine[i % 2] = std::max(mine[i % 2], all[i]);
  return AllReduceCost{mine[0], static_cast<double>(many) * sizeof(float) / mine[1]};
}

SplitRule::SplitRule(const ExpertSource& source, int ranks, const DeviceRates& rates,
                     const AllReduceCost& exchange)
    : ranks_(ranks), rates_(rates), exchange_(exchange) {
  for (int l = 0; l < source.model().num_layers(); ++l) {
    const MoeLayerSpec& spec = source.model().layers[l];
    double bytes = 0;
    for (int e = 0; e < spec.num_experts; ++e) {
      bytes += static_cast<double>(source.layout(l, e, 0).bytes) / spec.num_experts;
    }
    const auto hidden = static_cast<double>(spec.hidden);
    layers_.push_back({static_cast<double>(spec.num_experts),
                       static_cast<double>(spec.routing.top_k), hidden, bytes,
                       6 * hidden * static_cast<double>(spec.intermediate)});
  }
}

double SplitRule::Products(const Layer& layer, double all, StepSplit split) const {
  const auto used_by = [&](double rows) {
    return ExpectedExperts(layer.experts, layer.top_k, rows);
  };
  double rows = all, used = used_by(all), share = 1;  // of the tokens' products
  if (split == StepSplit::kRows) {
    rows = std::ceil(all / ranks_);
    used = std::min(used, kSharedByBlocks * used_by(rows));
  } else if (split == StepSplit::kExperts) {  // of the rank that has most: a mean of maxima
    share = std::min(1.0, 1 / ranks_ + 0.45 / std::sqrt(used));
  }
  return share * (used * layer.bytes / rates_.read_bytes +
                  rows * layer.top_k * layer.operations / rates_.operations);
}

double SplitRule::Seconds(StepSplit split, TokenPlacement placement, int64_t rows,
                          int64_t value_bytes) const {
  const auto all = static_cast<double>(rows);
  const bool apart = placement == TokenPlacement::kPerRank;
  double seconds = 0;
  for (const Layer& layer : layers_) {
    // An all-reduce sends all bytes twice, a gather once.
    const double bytes = all * layer.hidden * static_cast<double>(value_bytes);
    const double reduced = bytes / exchange_.bytes_per_s, gathered = reduced / 2;
    double exchange = 0;
    if (split == StepSplit::kRows && !apart) exchange = exchange_.seconds + gathered;
    if (split == StepSplit::kExperts) {
      exchange = (apart ? 2 : 1) * exchange_.seconds + reduced;
    }
    // If ranks have tokens of their own, these are blocks of rows already.
    const StepSplit products = apart && split == StepSplit::kNone ? StepSplit::kRows : split;
    seconds += Products(layer, all, products) + kBesideProducts * exchange;
  }
  return seconds;
}

StepSplit SplitRule::Choose(TokenPlacement placement, int64_t rows, int64_t value_bytes) const {
  StepSplit best = StepSplit::kNone;
  double least = Seconds(best, placement, rows, value_bytes);
  for (const StepSplit split : {StepSplit::kRows, StepSplit::kExperts}) {
    const double seconds = Seconds(split, placement, rows, value_bytes);
    if (!(seconds < least)) continue;
    best = split;
    least = seconds;
  }
  return best;
}

}  // namespace moert
