#include "prompt_share.h"

#include <algorithm>
#include <numeric>

namespace moert_ggml {
namespace {

constexpr double kNew = 0.25;     // the weight of a measured time among earlier ones
constexpr double kLess = 0.96;    // of a time whose bound alone is known
constexpr double kKept = 0.9;     // of an earlier job's beside the next one's
constexpr double kPairs = 0.6;    // of an expert's time, that of a pair: until jobs tell
constexpr double kDoubt = 0.05;   // how far jobs that are all alike leave it at that
constexpr double kWorth = 0.95;   // of the time without the CPU, to begin with it
constexpr double kStays = 0.985;  // and to go on
// A job with a few experts probes the CPU's speed: in the first call, then after this many calls
// without the CPU, first and at most.
constexpr int kFirstProbe = 32, kLastProbe = 1024;
constexpr size_t kProbe = 4;
constexpr double kLeastLoad = 50e3;  // ns of the link that are worth a thought

}  // namespace

PromptShare::PromptShare(const std::vector<int>& experts) {
  for (const int count : experts)
    layers_.push_back({std::vector<int32_t>(static_cast<size_t>(count)), 0});
}

std::vector<int32_t> PromptShare::Take(const Call& call, Time now) {
  EndLayer(call.layer, call.streams, now);
  Layer& layer = layers_[static_cast<size_t>(call.layer)];
  layer.pairs.assign(call.pairs.begin(), call.pairs.end());
  layer.tokens = call.tokens;
  mean_pairs_ = std::accumulate(call.pairs.begin(), call.pairs.end(), 0.0) /
                static_cast<double>(call.pairs.size());
  std::vector<Candidate> candidates;
  int64_t brought = 0;
  for (size_t e = 0; e < call.pairs.size(); ++e) {
    if (call.in_slots[e] != 0) continue;
    if (e < call.staged.size() && call.staged[e] != 0) {
      ++brought;
    } else if (call.pairs[e] > 0) {
      candidates.push_back({static_cast<int32_t>(e), static_cast<double>(call.pairs[e])});
    }
  }
  size_t taken = Split(&candidates, brought, call.streams);
  helps_ = taken > 0;
  if (helps_) {
    calls_ = 0;
    probe_after_ = kFirstProbe;
  } else {
    taken = Probe(candidates, brought);
  }
  std::vector<int32_t> experts;
  for (size_t i = 0; i < taken; ++i) experts.push_back(candidates[i].expert);
  return experts;
}

size_t PromptShare::Split(std::vector<Candidate>* candidates, int64_t brought, bool streams) const {
  std::sort(candidates->begin(), candidates->end(), [](const Candidate& a, const Candidate& b) {
    return a.pairs < b.pairs || (a.pairs == b.pairs && a.expert < b.expert);
  });
  if (link_ < 0 || expert_ < 0) return 0;
  const double rest = streams ? rest_ : 0;
  const auto all = static_cast<double>(brought) + static_cast<double>(candidates->size());
  const double alone = std::max(link_ * all, rest);
  double best = alone, cpu = rest;
  size_t taken = 0;
  for (size_t i = 0; i < candidates->size() && cpu < best; ++i) {
    cpu += expert_ + pair_ * (*candidates)[i].pairs;
    const double time = std::max(link_ * (all - static_cast<double>(i + 1)), cpu);
    if (time >= best) continue;
    best = time;
    taken = i + 1;
  }
  return best < (helps_ ? kStays : kWorth) * alone ? taken : 0;
}

size_t PromptShare::Probe(const std::vector<Candidate>& candidates, int64_t brought) {
  const double load = link_ * static_cast<double>(brought + std::ssize(candidates));
  if (load < kLeastLoad || candidates.size() < kProbe || ++calls_ <= probe_after_) return 0;
  calls_ = 0;
  probe_after_ = std::clamp(2 * probe_after_, kFirstProbe, kLastProbe);
  size_t taken = 1;  // and more, as far as they cost nothing by what is known
  double cpu = expert_ + pair_ * candidates[0].pairs;
  for (; taken < kProbe; ++taken) {
    cpu += expert_ + pair_ * candidates[taken].pairs;
    if (cpu > load) break;
  }
  return taken;
}

// Measures the last layer's call beside the CPU's job. If the job ended after the copies, the CPU
// was the bottleneck; else its time is only bounded, and later calls find out whether it is less.
void PromptShare::EndLayer(int layer, bool streams, Time now) {
  const auto rest = static_cast<double>((now - begin_ - took_).count());
  if (streams && layer == layer_ + 1 && layer_ >= 0) {
    if (took_.count() > 0 && !late_) {
      rest_ = rest_known_ ? (1 - kNew) * rest_ + kNew * rest : rest;
      rest_known_ = true;
    } else if (rest_known_) {
      rest_ = std::min(kLess * rest_, rest);
    }
  }
  layer_ = layer;
  begin_ = now;
  took_ = Time(0);
}

std::vector<int32_t> PromptShare::Ahead(int layer, int64_t tokens, std::span<const int32_t> likely,
                                        std::span<const uint8_t> in_slots) const {
  const Layer& last = layers_[static_cast<size_t>(layer)];
  const double longer =
      last.tokens > 0 ? static_cast<double>(tokens) / static_cast<double>(last.tokens) : 0;
  std::vector<Candidate> candidates;
  std::vector<int32_t> ahead;
  for (const int32_t e : likely) {
    const auto at = static_cast<size_t>(e);
    if (in_slots[at] != 0) {
      ahead.push_back(e);
    } else {
      candidates.push_back({e, last.tokens > 0 ? longer * last.pairs[at] : mean_pairs_});
    }
  }
  size_t taken = Split(&candidates, 0, /*streams=*/true);
  const bool asks = expert_ < 0 && link_ * static_cast<double>(candidates.size()) >= kLeastLoad;
  if (asks) taken = std::min(kProbe, candidates.size());  // else the layer has none for a probe
  for (size_t i = taken; i < candidates.size(); ++i) ahead.push_back(candidates[i].expert);
  return ahead;
}

void PromptShare::Brought(int64_t experts, Time took) {
  const double each = static_cast<double>(took.count()) / static_cast<double>(experts);
  link_ = link_ < 0 ? each : (1 - kNew) * link_ + kNew * each;
}

// Least squares, biased towards the usual share of pairs: jobs that are all alike determine only
// the sum.
void PromptShare::Computed(int64_t experts, int64_t pairs, Time took, bool late) {
  const auto e = static_cast<double>(experts), p = static_cast<double>(pairs);
  const auto t = static_cast<double>(took.count());
  took_ = took;
  late_ = late;
  const double kept = helps_ ? kKept : 0;  // jobs before a probe are of another time
  ee_ = kept * ee_ + e * e;
  ep_ = kept * ep_ + e * p;
  pp_ = kept * pp_ + p * p;
  et_ = kept * et_ + e * t;
  pt_ = kept * pt_ + p * t;
  const double usual = (et_ + kPairs * pt_) / (ee_ + 2 * kPairs * ep_ + kPairs * kPairs * pp_);
  const double a = (1 + kDoubt) * ee_, b = (1 + kDoubt) * pp_;
  const double x = et_ + kDoubt * ee_ * usual, y = pt_ + kDoubt * pp_ * kPairs * usual;
  const double det = a * b - ep_ * ep_;
  expert_ = std::max(0.0, (x * b - y * ep_) / det);
  pair_ = std::max(0.0, (y * a - x * ep_) / det);
}

}  // namespace moert_ggml
