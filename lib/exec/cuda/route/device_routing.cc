#include "exec/cuda/route/device_routing.h"

namespace moert::cuda {
namespace {

template <typename Device, typename Host>
constexpr bool Same(Device a, Host b) {
  return static_cast<int32_t>(a) == static_cast<int32_t>(b);
}
static_assert(Same(DeviceRoutingKind::kSoftmaxTopK, RoutingKind::kSoftmaxTopK) &&
              Same(DeviceRoutingKind::kTopKSoftmax, RoutingKind::kTopKSoftmax) &&
              Same(DeviceRoutingKind::kSigmoidGrouped, RoutingKind::kSigmoidGrouped) &&
              Same(DeviceRoutingKind::kSparseMixer, RoutingKind::kSparseMixer) &&
              Same(DeviceRoutingKind::kSqrtSoftplusGrouped, RoutingKind::kSqrtSoftplusGrouped) &&
              Same(DeviceRoutingKind::kTopKSigmoid, RoutingKind::kTopKSigmoid));
static_assert(Same(DeviceFunction::kSilu, Activation::kSilu) &&
              Same(DeviceFunction::kGelu, Activation::kGelu) &&
              Same(DeviceFunction::kGeluTanh, Activation::kGeluTanh) &&
              Same(DeviceFunction::kRelu2, Activation::kRelu2));

}  // namespace

DeviceRouting MakeDeviceRouting(const RoutingSpec& spec, int num_experts,
                                const float* selection_bias) {
  DeviceRouting d;
  d.kind = static_cast<DeviceRoutingKind>(spec.kind);
  d.num_experts = num_experts;
  d.top_k = spec.top_k;
  d.renormalize = spec.renormalize ? 1 : 0;
  d.scaling = spec.scaling;
  d.num_groups = spec.num_groups;
  d.top_groups = spec.top_groups;
  d.sparsemixer_threshold = 2 * spec.sparsemixer_eps;
  d.selection_bias = selection_bias;
  return d;
}

DeviceActivation MakeDeviceActivation(const ExpertActivation& activation) {
  DeviceActivation d;
  d.function = DeviceFunctionOf(activation.function);
  d.gated = activation.gated ? 1 : 0;
  d.plain = activation.plain() && activation.function != Activation::kRelu2 ? 1 : 0;
  d.alpha = activation.alpha;
  d.inverse_alpha = 1 / activation.alpha;
  if (activation.limit > 0) d.limit = activation.limit;
  d.up_offset = activation.up_offset;
  return d;
}

ExpertCacheArgs MakeExpertCacheArgs(const RoutingRule& rule) {
  ExpertCacheArgs args;
  args.alpha = rule.alpha;
  args.max_slot_share = static_cast<double>(rule.max_slot_share);
  args.max_mass_share = static_cast<double>(rule.max_mass_share);
  args.second_pass = rule.second_pass ? 1 : 0;
  args.own_score_weights = rule.own_score_weights ? 1 : 0;
  return args;
}

}  // namespace moert::cuda
