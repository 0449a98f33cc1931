#include "strategies/rung_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace moert {

RungChoice::RungChoice(absl::Span<const double> loss, absl::Span<const int64_t> bytes,
                       int versions) {
  const auto wide = static_cast<size_t>(versions);
  std::vector<double> lost;  // losses of the expert's steps so far
  for (size_t at = 0; at + wide <= loss.size(); at += wide) {
    Expert expert{static_cast<int>(steps_.size()), 0};
    lost.clear();
    for (int rung = 0; rung < versions; ++rung) {
      const size_t version = at + static_cast<size_t>(versions - 1 - rung);
      Step step{static_cast<uint8_t>(rung), bytes[version],
                std::numeric_limits<double>::infinity()};
      // The lower hull: a step that saves more per byte than the previous one replaces it.
      while (!lost.empty()) {
        step.saved = (lost.back() - loss[version]) /
                     static_cast<double>(std::max<int64_t>(1, step.bytes - steps_.back().bytes));
        if (step.saved <= 0 || lost.size() == 1 || step.saved < steps_.back().saved) break;
        steps_.pop_back();
        lost.pop_back();
      }
      if (!lost.empty() && step.saved <= 0) continue;
      steps_.push_back(step);
      lost.push_back(loss[version]);
    }
    expert.count = static_cast<int>(steps_.size()) - expert.first;
    experts_.push_back(expert);
  }
}

int RungChoice::TakenAt(const Expert& expert, int rung) const {
  int taken = 0;
  while (taken + 1 < expert.count && steps_[expert.first + taken + 1].rung <= rung) ++taken;
  return taken;
}

int RungChoice::Priced(const Expert& expert, const UseBand& use, int taken, double price) const {
  while (taken + 1 < expert.count && use.least * Saved(expert, taken + 1) > price) ++taken;
  while (taken > 0 && use.most * Saved(expert, taken) < price) --taken;
  return taken;
}

std::vector<uint8_t> RungChoice::Choose(absl::Span<const UseBand> uses,
                                        absl::Span<const uint8_t> rungs, int64_t capacity) const {
  std::vector<int> before;
  double highest = 0;
  for (size_t i = 0; i < experts_.size(); ++i) {
    before.push_back(TakenAt(experts_[i], rungs[i]));
    if (experts_[i].count > 1) highest = std::max(highest, uses[i].most * Saved(experts_[i], 1));
  }
  std::vector<int> taken(experts_.size());
  const auto bytes_at = [&](double price) {
    int64_t bytes = 0;
    for (size_t i = 0; i < experts_.size(); ++i) {
      taken[i] = Priced(experts_[i], uses[i], before[i], price);
      bytes += Bytes(experts_[i], taken[i]);
    }
    return bytes;
  };
  int64_t bytes = bytes_at(0);
  if (bytes > capacity) {
    // Finds the lowest price at which all experts fit: at a higher price they never take more
    // bytes. Savings span orders of magnitude, so the bisection is on a logarithmic scale.
    constexpr int kHalvings = 32;
    double high = 2 * highest + std::numeric_limits<double>::min();
    double low = high * 0x1p-60;
    for (int i = 0; i < kHalvings; ++i) {
      const double price = std::sqrt(low) * std::sqrt(high);
      (bytes_at(price) > capacity ? low : high) = price;
    }
    bytes = bytes_at(high);
  }
  SpendRest(uses, capacity - bytes, &taken);
  std::vector<uint8_t> chosen;
  for (size_t i = 0; i < experts_.size(); ++i) {
    chosen.push_back(steps_[experts_[i].first + taken[i]].rung);
  }
  return chosen;
}

void RungChoice::SpendRest(absl::Span<const UseBand> uses, int64_t left,
                           std::vector<int>* taken) const {
  struct Candidate {
    double saved;
    size_t expert;
    int step;
  };
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < experts_.size(); ++i) {
    for (int step = (*taken)[i] + 1; step < experts_[i].count; ++step) {
      const double saved = uses[i].least * Saved(experts_[i], step);
      if (saved <= 0 || Bytes(experts_[i], step) - Bytes(experts_[i], step - 1) > left) break;
      candidates.push_back({saved, i, step});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.saved > b.saved; });
  for (const Candidate& c : candidates) {
    int& at = (*taken)[c.expert];
    const int64_t growth = Bytes(experts_[c.expert], c.step) - Bytes(experts_[c.expert], at);
    if (at + 1 != c.step || growth > left) continue;
    at = c.step;
    left -= growth;
  }
}

}  // namespace moert
