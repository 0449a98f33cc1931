#include <vector>

#include "base/status_macros.h"
#include "guard.h"
#include "policy_seams.h"

namespace moert::capi {
namespace {

class HostPrecision final : public PrecisionPolicy, Adapter {
 public:
  HostPrecision(std::shared_ptr<HostPolicies> host, std::unique_ptr<PrecisionPolicy> fallback)
      : Adapter(std::move(host)), fallback_(std::move(fallback)) {}

  PolicyTraits traits() const override {
    PolicyTraits traits = TraitsOf(fallback_);
    const bool decides = c().precision_initial != nullptr || c().precision_decide != nullptr ||
                         c().precision_transfer != nullptr || c().precision_upgrades != nullptr;
    if (decides) traits = {.promise = Promise::kLossy, .needs_host = true};
    return traits;
  }
  int64_t StateBytes(const PolicyScope& scope) const override {
    return StateOf(fallback_,
                   scope.model->total_experts() *
                       int64_t{2 * (sizeof(int64_t) + sizeof(ExpertKey)) + sizeof(double)},
                   scope);
  }
  absl::StatusOr<PrecisionDecision> Decide(const PrecisionSnapshot& snapshot) override {
    switch (snapshot.moment) {
      case PrecisionMoment::kOpen:
        return Initial(snapshot);
      case PrecisionMoment::kInterval:
        return Transitions(snapshot);
      case PrecisionMoment::kShrink:
        break;
    }
    return Worth(snapshot);
  }
  int TransferVersion(const TransferSnapshot& snapshot) override {
    const int own = fallback_ == nullptr ? PrecisionPolicy::TransferVersion(snapshot)
                                         : fallback_->TransferVersion(snapshot);
    if (snapshot.resident >= 0) return Upgraded(snapshot, own);
    const moert_policy_context context = ToC(snapshot.context);
    moert_transfer_snapshot s{};
    s.struct_size = sizeof(s);
    s.context = &context;
    s.layer_tokens = snapshot.layer_tokens;
    s.expert = snapshot.key.expert;
    s.tokens = snapshot.tokens;
    s.prefetch = snapshot.prefetch;
    s.num_versions = snapshot.num_versions;
    s.layer_counts = snapshot.layer_counts.empty() ? nullptr : snapshot.layer_counts.data();
    s.num_experts = static_cast<int64_t>(snapshot.layer_counts.size());
    int32_t version = 0;
    const bool decided = Decided(c().precision_transfer, [&] {
      return c().precision_transfer(c().user_data, &s, &version);
    });
    if (decided && version >= 0 && version < snapshot.num_versions) return version;
    if (decided) CountFailure();
    return own;
  }

 private:
  absl::StatusOr<PrecisionDecision> Own(const PrecisionSnapshot& snapshot) {
    return fallback_ == nullptr ? PrecisionDecision() : fallback_->Decide(snapshot);
  }

  absl::StatusOr<PrecisionDecision> Initial(const PrecisionSnapshot& snapshot) {
    if (c().precision_initial == nullptr) return Own(snapshot);
    const absl::Span<const int32_t> capacity = snapshot.high_capacity;
    promote_.assign(snapshot.selections.size(), 0);
    int64_t count = 0;
    MOERT_RETURN_IF_ERROR(Ask("precision_initial", [&](moert_failure* failure) {
      return c().precision_initial(
          c().user_data, capacity.data(), static_cast<int32_t>(capacity.size()),
          static_cast<int64_t>(promote_.size()), promote_.data(), &count, failure);
    }));
    PrecisionDecision decision;
    if (Keys(*snapshot.context.model, promote_, count, &decision.promote)) return decision;
    return Illegal("precision_initial: ", count, " indices, legal are at most ", promote_.size(),
                   ", each from 0 to ", static_cast<int64_t>(promote_.size()) - 1);
  }

  absl::StatusOr<PrecisionDecision> Transitions(const PrecisionSnapshot& snapshot) {
    const moert_policy_context context = ToC(snapshot.context);
    const moert_precision_snapshot s = ToC(snapshot, &context);
    promote_.assign(s.total_experts, 0);
    demote_.assign(s.total_experts, 0);
    int64_t promotes = 0, demotes = 0;
    const bool decided = Decided(c().precision_decide, [&] {
      return c().precision_decide(c().user_data, &s, promote_.data(), &promotes, demote_.data(),
                                  &demotes);
    });
    PrecisionDecision decision;
    if (decided && Keys(*snapshot.context.model, promote_, promotes, &decision.promote) &&
        Keys(*snapshot.context.model, demote_, demotes, &decision.demote)) {
      return decision;
    }
    if (decided) CountFailure();
    return Own(snapshot);
  }

  absl::StatusOr<PrecisionDecision> Worth(const PrecisionSnapshot& snapshot) {
    const moert_policy_context context = ToC(snapshot.context);
    const moert_precision_snapshot s = ToC(snapshot, &context);
    PrecisionDecision decision;
    decision.worth.resize(snapshot.selections.size());
    if (Decided(c().precision_worth,
                [&] { return c().precision_worth(c().user_data, &s, decision.worth.data()); })) {
      return decision;
    }
    // The strategy's own worths mean nothing for a hot set that the host decides.
    return c().precision_decide != nullptr ? PrecisionDecision() : Own(snapshot);
  }

  int Upgraded(const TransferSnapshot& snapshot, int own) {
    const moert_policy_context where = ToC(snapshot.context);
    int32_t upgrades = own < snapshot.resident;
    const bool decided = Decided(c().precision_upgrades, [&] {
      return c().precision_upgrades(c().user_data, &where, &upgrades);
    });
    if (!decided) return own;
    return upgrades != 0 ? 0 : snapshot.resident;
  }

  /// Indices over all experts, layer by layer, as keys. False when one is out of range.
  static bool Keys(const MoeModelSpec& model, const std::vector<int64_t>& indices, int64_t count,
                   std::vector<ExpertKey>* keys) {
    if (count < 0 || count > static_cast<int64_t>(indices.size())) return false;
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = indices[i];
      int layer = 0;
      while (rest >= 0 && layer < model.num_layers() && rest >= model.layers[layer].num_experts) {
        rest -= model.layers[layer++].num_experts;
      }
      if (rest < 0 || layer == model.num_layers()) return false;
      keys->push_back({layer, static_cast<int32_t>(rest)});
    }
    return true;
  }

  const std::unique_ptr<PrecisionPolicy> fallback_;
  std::vector<int64_t> promote_, demote_;
};

}  // namespace

std::unique_ptr<PrecisionPolicy> AdaptPrecision(std::shared_ptr<HostPolicies> host,
                                                std::unique_ptr<PrecisionPolicy> fallback) {
  return std::make_unique<HostPrecision>(std::move(host), std::move(fallback));
}

}  // namespace moert::capi
