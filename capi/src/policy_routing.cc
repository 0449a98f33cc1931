#include <array>
#include <optional>
#include <vector>

#include "base/status_macros.h"
#include "layer_spec.h"
#include "policy_seams.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

static_assert(static_cast<int32_t>(RoutingRuleKind::kExpertCache) == MOERT_RULE_EXPERT_CACHE);

constexpr auto kFields = [](auto& c, auto& rule, const auto& visit) {
  visit(c.kind, rule.kind);
  visit(c.alpha, rule.alpha);
  visit(c.max_slot_share, rule.max_slot_share);
  visit(c.max_mass_share, rule.max_mass_share);
  visit(c.second_pass, rule.second_pass);
  visit(c.own_score_weights, rule.own_score_weights);
};

class HostRouting final : public RoutingPolicy, Adapter {
 public:
  HostRouting(std::shared_ptr<HostPolicies> host, std::unique_ptr<RoutingPolicy> fallback)
      : Adapter(std::move(host)), fallback_(std::move(fallback)) {
    if (c().routing_by_phase == 0) return;
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      std::optional<RoutingRule> own = RoutingRule{};
      if (fallback_ != nullptr) own = fallback_->PhaseRule(phase);
      if (!own.has_value()) continue;
      PolicyContext context;
      context.phase = phase;
      by_phase_[static_cast<size_t>(phase)] = Decide(context, *own);
    }
  }
  PolicyTraits traits() const override { return {.promise = Promise::kLossy, .needs_host = true}; }
  int64_t StateBytes(const PolicyScope& scope) const override {
    return StateOf(fallback_, 0, scope);
  }
  absl::Status Check(const MoeModelSpec& model) const override {
    if (fallback_ != nullptr) MOERT_RETURN_IF_ERROR(fallback_->Check(model));
    if (c().routing_check == nullptr) return absl::OkStatus();
    std::vector<moert_layer_spec> layers;
    for (const MoeLayerSpec& layer : model.layers) layers.push_back(capi::ToC(layer));
    return Ask("routing_check", [&](moert_failure* failure) {
      return c().routing_check(c().user_data, layers.data(), static_cast<int32_t>(layers.size()),
                               failure);
    });
  }
  std::optional<RoutingRule> PhaseRule(Phase phase) const override {
    return by_phase_[static_cast<size_t>(phase)];
  }
  RoutingRule Rule(const PolicyContext& context) override {
    if (const auto& rule = by_phase_[static_cast<size_t>(context.phase)]) return *rule;
    return Decide(context, fallback_ == nullptr ? RoutingRule{} : fallback_->Rule(context));
  }

 private:
  /// The host's answer, which starts from the strategy's own rule.
  RoutingRule Decide(const PolicyContext& context, const RoutingRule& own) const {
    const moert_policy_context where = ToC(context);
    auto rule = MakeC<moert_routing_rule>(kFields, own);
    if (!Decided(c().routing_rule,
                 [&] { return c().routing_rule(c().user_data, &where, &rule); })) {
      return own;
    }
    const bool legal = (rule.kind == MOERT_RULE_TOPK || rule.kind == MOERT_RULE_EXPERT_CACHE) &&
                       rule.alpha >= 0 && rule.alpha <= 1 && rule.max_slot_share >= 0 &&
                       rule.max_slot_share <= 1 && rule.max_mass_share >= 0 &&
                       rule.max_mass_share <= 1;
    if (!legal) {
      CountFailure();
      return own;
    }
    return MakeCpp<RoutingRule>(kFields, rule);
  }

  const std::unique_ptr<RoutingPolicy> fallback_;
  std::array<std::optional<RoutingRule>, 2> by_phase_;  // asked at once; else nullopt
};

}  // namespace

std::unique_ptr<RoutingPolicy> AdaptRouting(std::shared_ptr<HostPolicies> host,
                                            std::unique_ptr<RoutingPolicy> fallback) {
  return std::make_unique<HostRouting>(std::move(host), std::move(fallback));
}

}  // namespace moert::capi
