#include "exec/cuda/cache/routing_return.h"

#include "base/checked_math.h"
#include "base/status_macros.h"
#include "route/grouping.h"

namespace moert::cuda {

absl::Status SelectionReturn::Init(SelectionTally* tally, int64_t rows) {
  seen_.resize(rows);
  return copy_.Init(tally, rows * static_cast<int64_t>(sizeof(SelectionTally)));
}

bool SelectionReturn::Take(std::vector<SelectionCount>* added) {
  const auto* now = reinterpret_cast<const SelectionTally*>(copy_.Take());
  if (now == nullptr) return false;
  added->resize(seen_.size());
  bool any = false;
  for (size_t i = 0; i < seen_.size(); ++i) {
    SelectionTally& seen = seen_[i];
    // Unsigned differences are right across a wrap.
    (*added)[i] = {now[i].slots - seen.slots, now[i].calls - seen.calls, now[i].mass - seen.mass};
    any = any || now[i].calls != seen.calls;
    seen = now[i];
  }
  return any;
}

RoutingMirror::RoutingMirror(const MoeModelSpec& model, int layer, int64_t tokens, bool next_gate,
                             std::byte* at) {
  const MoeLayerSpec& next = model.layers[(layer + 1) % model.num_layers()];
  pairs = tokens * model.layers[layer].routing.top_k;
  num_scores = tokens * model.layers[layer].num_experts;
  num_next_scores = next_gate ? tokens * next.num_experts : 0;
  Carver carver(at);
  ids = carver.Take<int32_t>(pairs);
  weights = carver.Take<float>(pairs);
  scores = carver.Take<float>(num_scores);
  next_scores = carver.Take<float>(num_next_scores);
}

int64_t RoutingMirror::Bytes(const Extent& extent, int64_t tokens) {
  const int64_t pairs = extent.pairs / extent.tokens * tokens;
  return RoundUp(pairs * 8 + 2 * tokens * extent.experts * 4, 256) + 4 * 256;
}

void RoutingMirror::Read(const MoeModelSpec& model, int layer, int64_t tokens,
                         RoutingResult* routing) const {
  routing->tokens = tokens;
  routing->top_k = model.layers[layer].routing.top_k;
  routing->num_experts = model.layers[layer].num_experts;
  routing->ids.assign(ids, ids + pairs);
  routing->weights.assign(weights, weights + pairs);
  routing->scores.assign(scores, scores + num_scores);
  routing->next_scores.assign(next_scores, next_scores + num_next_scores);
  routing->top_score.clear();
  routing->substituted = 0;
  routing->mass = routing->mass_substituted = 0;
  for (size_t slot = 0; slot < routing->ids.size(); ++slot) {
    if (routing->ids[slot] >= 0) routing->mass += routing->weights[slot];
  }
  GroupByExpert(routing);
}

RoutingReturn::~RoutingReturn() {
  if (awaited_.arrived != nullptr) cudaEventDestroy(awaited_.arrived);
  for (Mirror& mirror : late_) {
    if (mirror.arrived != nullptr) cudaEventDestroy(mirror.arrived);
  }
}

absl::Status RoutingReturn::Init(const MoeModelSpec* model, const Extent& extent) {
  model_ = model;
  constexpr int64_t kLate = 64;
  const int64_t copied = RoutingMirror::Bytes(extent, extent.tokens);
  Carver count;
  RuleMirror::Carve(extent.pairs, &count);
  const int64_t bytes = copied + count.used();
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Pinned((1 + kLate) * bytes));
  late_.resize(kLate);
  const auto make = [&](int64_t i, Mirror* mirror) -> absl::Status {
    mirror->at = memory_.data() + i * bytes;
    Carver rule(mirror->at + copied);
    mirror->rule = RuleMirror::Carve(extent.pairs, &rule);
    return MOERT_CUDA_STATUS(cudaEventCreateWithFlags(&mirror->arrived, cudaEventDisableTiming));
  };
  MOERT_RETURN_IF_ERROR(make(kLate, &awaited_));
  for (int64_t i = 0; i < kLate; ++i) MOERT_RETURN_IF_ERROR(make(i, &late_[i]));
  return absl::OkStatus();
}

absl::Status RoutingReturn::Enqueue(const Workspace& w, Mirror* mirror, cudaStream_t stream) const {
  const RoutingMirror host = At(*mirror);
  const auto bring = [&](void* to, const void* from, int64_t count) {
    return cudaMemcpyAsync(to, from, static_cast<size_t>(count) * 4, cudaMemcpyDeviceToHost,
                           stream);
  };
  MOERT_CUDA_RETURN_IF_ERROR(bring(host.ids, w.ids, host.pairs));
  MOERT_CUDA_RETURN_IF_ERROR(bring(host.weights, w.weights, host.pairs));
  if (!mirror->given) MOERT_CUDA_RETURN_IF_ERROR(bring(host.scores, w.scores, host.num_scores));
  if (mirror->next_gate) {
    MOERT_CUDA_RETURN_IF_ERROR(bring(host.next_scores, w.next_scores, host.num_next_scores));
  }
  return MOERT_CUDA_STATUS(cudaEventRecord(mirror->arrived, stream));
}

void RoutingReturn::Read(const Mirror& mirror, RoutingResult* routing) {
  At(mirror).Read(*model_, mirror.context.layer, mirror.tokens, routing);
  if (mirror.given) routing->scores.clear();
  if (mirror.ruled) ReadRule(mirror.rule, routing);
}

void RoutingReturn::ReadRule(const RuleMirror& rule, RoutingResult* routing) {
  const ExpertCacheReport& report = *rule.report;
  const auto has = [](const uint32_t* words, int e) { return words[e / 32] >> (e % 32) & 1; };
  routing->mass = 0;
  std::vector<uint8_t> chosen(routing->num_experts, 0);
  for (size_t slot = 0; slot < routing->ids.size(); ++slot) {
    const int32_t own = rule.own_ids[slot];
    const float weight = rule.own_weights[slot];
    chosen[own] = 1;
    routing->mass += weight;
    if (own == routing->ids[slot]) continue;
    ++routing->substituted;
    routing->mass_substituted += weight;
  }
  routing->top_score.resize(routing->num_experts);
  routing->model_lookups = routing->model_hits = 0;
  for (int e = 0; e < routing->num_experts; ++e) {
    routing->top_score[e] = static_cast<uint8_t>(has(report.top_score, e));
    routing->model_lookups += chosen[e];
    routing->model_hits += chosen[e] && has(report.resident, e);
  }
  worst_slot_share_ = report.worst_slot_share;
  worst_mass_share_ = report.worst_mass_share;
}

RuleMirror RoutingReturn::RuleOf(bool late) {
  if (!late) return awaited_.rule;
  return count_ == late_.size() ? RuleMirror{} : late_[(first_ + count_) % late_.size()].rule;
}

absl::Status RoutingReturn::Bring(const Workspace& w, int layer, int64_t tokens, bool next_gate,
                                  bool ruled, cudaStream_t stream) {
  awaited_.context.layer = layer;
  awaited_.tokens = tokens;
  awaited_.next_gate = next_gate;
  awaited_.ruled = ruled;
  awaited_.given = false;
  return Enqueue(w, &awaited_, stream);
}

absl::Status RoutingReturn::Wait(RoutingResult* routing) {
  MOERT_CUDA_RETURN_IF_ERROR(AwaitEvent(awaited_.arrived));
  Read(awaited_, routing);
  return absl::OkStatus();
}

absl::Status RoutingReturn::BringLate(const Workspace& w, const PolicyContext& context,
                                      int64_t tokens, bool ruled, cudaStream_t stream, bool given) {
  if (count_ == late_.size()) return absl::OkStatus();
  Mirror& mirror = late_[(first_ + count_) % late_.size()];
  mirror.context = context;
  mirror.context.request_ids = {};  // their step may have ended by the time this arrives
  mirror.tokens = tokens;
  mirror.ruled = ruled;
  mirror.given = given;
  MOERT_RETURN_IF_ERROR(Enqueue(w, &mirror, stream));
  ++count_;
  return absl::OkStatus();
}

bool RoutingReturn::Take(PolicyContext* context, RoutingResult* routing) {
  if (count_ == 0) return false;
  const Mirror& mirror = late_[first_];
  if (QueryEvent(mirror.arrived) != cudaSuccess) return false;
  Read(mirror, routing);
  *context = mirror.context;
  first_ = (first_ + 1) % late_.size();
  --count_;
  return true;
}

}  // namespace moert::cuda
