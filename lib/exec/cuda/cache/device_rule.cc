#include "exec/cuda/cache/device_rule.h"

#include <algorithm>

#include "base/status_macros.h"
#include "exec/cuda/route/device_routing.h"
#include "route/expert_cache_rule.h"

namespace moert::cuda {

DeviceRule::DeviceRule(int64_t max_tokens) : requests_(kRememberedRequests, max_tokens) {}

bool DeviceRule::Executes(const MoeLayerSpec& layer, const RoutingRule& rule) {
  return rule.kind == RoutingRuleKind::kExpertCache && rule.alpha >= 0 && rule.alpha <= 1 &&
         layer.num_experts <= kFewExperts && !layer.routing.expert_scales &&
         CheckExpertCacheRule(layer.routing).ok();
}

bool DeviceRule::Serves(const MoeLayerSpec& layer) {
  RoutingRule rule;
  rule.kind = RoutingRuleKind::kExpertCache;
  return layer.routing.hash_vocab == 0 && Executes(layer, rule);
}

namespace {

ExpertCacheArgs ArgsOf(const Workspace& w, const DeviceRouting& routing, int64_t tokens,
                       const RoutingRule& rule) {
  ExpertCacheArgs args = MakeExpertCacheArgs(rule);
  args.routing = routing;
  args.tokens = static_cast<int32_t>(tokens);
  args.scores = w.scores;
  args.ids = w.ids;
  args.weights = w.weights;
  args.one_row_each = tokens == 1 ? 1 : 0;
  args.accounts = w.rule.accounts;
  args.worst_shares = w.rule.worst_shares;
  args.scratch = w.rule.scratch;
  args.own_ids = w.rule.own_ids;
  args.own_weights = w.rule.own_weights;
  return args;
}

}  // namespace

absl::Status DeviceRule::Init(const RuleBuffers& buffers, int64_t max_tokens) {
  // Until a step names the requests of its rows, all rows belong to account 0.
  const auto rows = static_cast<size_t>(max_tokens) * sizeof(int32_t);
  MOERT_RETURN_IF_ERROR(FillNow(buffers.account_of, 0, rows));
  MOERT_RETURN_IF_ERROR(FillNow(buffers.accounts, 0, sizeof(RequestAccount)));  // account 0
  if (buffers.low_accounts != nullptr) {
    MOERT_RETURN_IF_ERROR(FillNow(buffers.low_accounts, 0, sizeof(LowAccount)));
  }
  MOERT_RETURN_IF_ERROR(FillNow(buffers.rows_apart, 0, sizeof(int32_t)));
  return FillNow(buffers.worst_shares, 0, 2 * sizeof(double));
}

absl::Status DeviceRule::SetRows(const RuleBuffers& buffers, absl::Span<const int64_t> request_ids,
                                 cudaStream_t stream) {
  if (request_ids == rows_) return absl::OkStatus();  // set by the layer before
  rows_.assign(request_ids.begin(), request_ids.end());
  one_row_each_ = requests_.Assign(rows_, &slot_, &fresh_);
  for (size_t begin = 0; begin < slot_.size(); begin += AccountRows::kMax) {
    AccountRows set{};
    set.begin = static_cast<int32_t>(begin);
    set.one_row_each = one_row_each_ ? 1 : 0;
    set.count = static_cast<int32_t>(std::min(slot_.size() - begin, size_t{AccountRows::kMax}));
    for (int i = 0; i < set.count; ++i) {
      set.account[i] = slot_[begin + i];
      if (fresh_[begin + i] != 0) set.fresh[i / 32] |= 1u << (i % 32);
    }
    MOERT_CUDA_RETURN_IF_ERROR(LaunchSetAccounts(buffers.account_of, buffers.rows_apart,
                                                 buffers.accounts, buffers.low_accounts, set,
                                                 stream));
  }
  return absl::OkStatus();
}

absl::Status DeviceRule::Run(const Workspace& w, const DeviceRouting& routing, int64_t tokens,
                             const RoutingRule& rule, absl::Span<const int64_t> request_ids,
                             const ExpertHandle* handles, const RuleMirror& mirror,
                             cudaStream_t stream) {
  if (!request_ids.empty()) MOERT_RETURN_IF_ERROR(SetRows(w.rule, request_ids, stream));
  ExpertCacheArgs args = ArgsOf(w, routing, tokens, rule);
  args.handles = handles;
  args.account_of = request_ids.empty() ? nullptr : w.rule.account_of;
  if (!request_ids.empty() && one_row_each_) args.one_row_each = 1;
  args.host_own_ids = mirror.own_ids;
  args.host_own_weights = mirror.own_weights;
  args.report = mirror.report;
  return MOERT_CUDA_STATUS(LaunchExpertCache(args, stream));
}

ExpertCacheArgs DeviceRule::OfCapture(const Workspace& w, const DeviceRouting& routing,
                                      int64_t tokens, const RoutingRule& rule,
                                      const ServedResidents& residents) {
  ExpertCacheArgs args = ArgsOf(w, routing, tokens, rule);
  args.served = residents;
  args.account_of = w.rule.account_of;
  args.rows_apart = w.rule.rows_apart;
  return args;
}

absl::Status DeviceRule::BeginStep(const RuleBuffers& buffers,
                                   absl::Span<const int64_t> request_ids, int64_t max_tokens,
                                   cudaStream_t stream) {
  if (!request_ids.empty() || rows_.empty()) return SetRows(buffers, request_ids, stream);
  rows_.clear();
  one_row_each_ = false;
  const auto bytes = static_cast<size_t>(max_tokens) * sizeof(int32_t);
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(buffers.account_of, 0, bytes, stream));
  return MOERT_CUDA_STATUS(cudaMemsetAsync(buffers.rows_apart, 0, sizeof(int32_t), stream));
}

absl::Status DeviceRule::Load(const Workspace& w, const DeviceRouting& routing,
                              cudaStream_t stream) {
  const auto row = static_cast<size_t>(routing.num_experts) * sizeof(float);
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(w.scores, 0, row, stream));
  MOERT_CUDA_RETURN_IF_ERROR(LaunchTopK(routing, 1, w.scores, w.ids, w.weights, stream));
  ExpertCacheArgs args = ArgsOf(w, routing, /*tokens=*/0, {});
  args.handles = w.handles;
  return MOERT_CUDA_STATUS(LaunchExpertCache(args, stream));
}

absl::Status DeviceRule::LoadAccounts(const Workspace& w, cudaStream_t stream) {
  AccountRows none{};
  return MOERT_CUDA_STATUS(LaunchSetAccounts(w.rule.account_of, w.rule.rows_apart, w.rule.accounts,
                                             w.rule.low_accounts, none, stream));
}

}  // namespace moert::cuda
