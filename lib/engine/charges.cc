#include "engine/charges.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace moert {

Charges::Charges(Clock* clock, const HardwareProfile* profile, const MoeModelSpec* model,
                 const ModelConstants* constants, const VersionedStore* store,
                 std::vector<std::string> version_names)
    : clock_(clock->as_virtual()),
      profile_(profile),
      model_(model),
      constants_(constants),
      store_(store),
      version_names_(std::move(version_names)) {}

void Charges::Pass(double ns) {
  if (clock_ == nullptr || !(ns > 0)) return;
  clock_->AdvanceTo(clock_->now_ns() + std::llround(ns));
}

const RecordLayout* Charges::SharedLayout(int layer) const {
  if (!shared_ || model_->layers[layer].shared_intermediate == 0) return nullptr;
  return &constants_->layer(layer).shared_layout;
}

void Charges::Begin(const RoutedInput* routed) {
  shared_ = routed == nullptr || routed->shared_experts;
  recorded_ = routed == nullptr ? nullptr : routed->times;
  if (routed != nullptr) Pass(static_cast<double>(routed->idle_before_ns));
}

void Charges::Routed(int layer, const RoutingResult& routing, bool next_gate) {
  if (clock_ == nullptr) return;
  if (recorded_ == nullptr) {
    if (next_gate) Pass(static_cast<double>(profile_->next_gate_ns));
    return;
  }
  Pass(static_cast<double>(recorded_->route_ns));
  recorded_bytes_ = 0;
  for (int32_t e = 0; e < routing.num_experts; ++e) {
    if (routing.counts[e] == 0) continue;
    recorded_bytes_ += static_cast<double>(store_->layout({layer, e}, 0).bytes);
  }
  if (const RecordLayout* shared = SharedLayout(layer)) {
    recorded_bytes_ += static_cast<double>(shared->bytes);
  }
}

void Charges::Multiplied(int layer, const RoutingResult& routing,
                         absl::Span<const ReadyExpert> experts, bool first) {
  if (clock_ == nullptr) return;
  double ns = 0, bytes = 0;
  const auto add = [&](const RecordLayout& layout, int64_t tokens, absl::string_view version) {
    bytes += static_cast<double>(layout.bytes);
    ns += profile_->ExpertNs(layout.bytes, tokens, version);
  };
  for (const ReadyExpert& ready : experts) {
    add(*ready.handle.layout, routing.counts[ready.expert], version_names_[ready.handle.version]);
  }
  const RecordLayout* shared = first ? SharedLayout(layer) : nullptr;
  if (shared != nullptr) add(*shared, routing.tokens, {});
  if (recorded_ != nullptr) {
    Pass(static_cast<double>(recorded_->multiply_ns) * bytes / std::max(recorded_bytes_, 1.0));
  } else if (!experts.empty() || shared != nullptr) {
    Pass(ns + static_cast<double>(profile_->wave_ns + (first ? 0 : profile_->wake_ns)));
  }
}

void Charges::WaitUntil(int64_t ns) {
  if (clock_ != nullptr) clock_->AdvanceTo(ns);
}

void Charges::Rest(Phase phase, int64_t tokens) {
  if (clock_ == nullptr) return;
  Pass(static_cast<double>(recorded_ != nullptr
                               ? recorded_->other_ns()
                               : profile_->LayerNs(phase == Phase::kPrefill, tokens)));
}

}  // namespace moert
