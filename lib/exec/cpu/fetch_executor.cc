#include "exec/cpu/fetch_executor.h"

#include <algorithm>
#include <cstring>

#include "base/aligned_buffer.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/rows.h"
#include "base/status_macros.h"

namespace moert {
namespace {

bool HasGates(const MoeModelSpec& model) {
  return std::any_of(model.layers.begin(), model.layers.end(),
                     [](const MoeLayerSpec& layer) { return !layer.routing.external(); });
}

}  // namespace

absl::Status FetchExecutor::CopyRecords(const ExecutorCall& call, const VersionedStore& store,
                                        absl::Span<const int32_t> experts, std::byte* to,
                                        int64_t stride) {
  const ExpertSource& source = *parts_.source;
  const int version = parts_.versions[0];
  for (const int32_t e : experts) {
    const std::byte* there = store.Resolve({call.layer, e}, call.epoch).record;
    const auto bytes = static_cast<size_t>(source.layout(call.layer, e, version).bytes);
    std::byte* const place = to + e * stride;
    if (there != nullptr) {
      std::memcpy(place, there, bytes);
    } else {
      MOERT_RETURN_IF_ERROR(source.ReadRecord(call.layer, e, version, {place, bytes}));
    }
  }
  return absl::OkStatus();
}

const std::byte* FetchExecutor::RecordInRam(const VersionedStore& store, int64_t epoch,
                                            ExpertKey key) const {
  return store.Resolve(key, epoch).record;
}

void FetchExecutor::FindParts(const std::byte* record, int layer,
                              OpaqueProduct::Expert* expert) const {
  const ExpertSource& source = *parts_.source;
  const int version = parts_.versions[0];
  const RecordLayout& layout = source.layout(layer, expert->expert, version);
  for (size_t p = 0; p < layout.parts.size(); ++p) {
    expert->parts[p] = record != nullptr
                           ? record + layout.parts[p].offset
                           : source.HostPart(layer, expert->expert, version, static_cast<int>(p));
  }
}

absl::Status FetchExecutor::MultiplyOnCpu(const VersionedStore& store, int64_t epoch,
                                          const OpaqueProduct& given) {
  if (parts_.source->product() == nullptr) {
    return FailedPrecondition("{} has no product on the CPU (OpaqueWeights::product)",
                              parts_.source->name());
  }
  const ExpertSource& source = *parts_.source;
  const int version = parts_.versions[0];
  std::vector<OpaqueProduct::Expert> experts(given.experts.begin(), given.experts.end());
  std::vector<AlignedBuffer> read;
  read.reserve(experts.size());
  for (OpaqueProduct::Expert& expert : experts) {
    FindParts(RecordInRam(store, epoch, {given.layer, expert.expert}), given.layer, &expert);
    const RecordLayout& layout = source.layout(given.layer, expert.expert, version);
    const auto end = expert.parts.begin() + static_cast<std::ptrdiff_t>(layout.parts.size());
    if (std::find(expert.parts.begin(), end, nullptr) == end) continue;
    AlignedBuffer& record = read.emplace_back();
    const int64_t bytes = RoundUp(layout.bytes, kRecordAlignment);
    MOERT_RETURN_IF_ERROR(record.Reset(bytes));
    MOERT_RETURN_IF_ERROR(source.ReadRecord(given.layer, expert.expert, version,
                                            {record.data(), static_cast<size_t>(bytes)}));
    FindParts(record.data(), given.layer, &expert);
  }
  OpaqueProduct product = given;
  product.experts = experts;
  product.pool = parts_.pool;
  return (*source.product())(product);
}

bool IsOpaque(const ExpertSource& source) { return source.layout(0, 0, 0).opaque(); }

int64_t FetchWorkspaceBytes(const ExecutorSize& size, int io_threads) {
  const MoeModelSpec& model = size.source->model();
  const int64_t tokens = size.max_tokens;
  int64_t bytes = 0;
  for (const MoeLayerSpec& layer : model.layers) {
    // Ids, weights and two groupings of each pair; slots; scores and logits of this and the next
    // layer.
    bytes = std::max(bytes, tokens * layer.routing.top_k * 16 + tokens * 8 +
                                int64_t{layer.num_experts} * 4 +
                                tokens * int64_t{model.max_experts()} * 16);
  }
  if (HasGates(model)) bytes += tokens * model.layers[0].hidden * 4;
  return bytes + io_threads * size.source->scratch_bytes();
}

FetchExecutor::FetchExecutor(const ExecutorParts& parts) : parts_(parts) {
  const MoeModelSpec& model = parts.source->model();
  if (HasGates(model)) x_ = AlignedArray<float>(parts.max_tokens * model.layers[0].hidden);
}

absl::Status FetchExecutor::Check(const ExecutorCall& /*call*/, const MoeLayerSpec& /*layer*/,
                                  bool /*routed*/) const {
  return FailedPrecondition("the records of {} are opaque, their product is the host's: use Fetch",
                            parts_.source->name());
}

absl::Status FetchExecutor::Route(const ExecutorCall& call, const RoutingRequest& /*request*/,
                                  RoutingResult* /*routing*/) {
  return Check(call, {}, false);
}

absl::Status FetchExecutor::SetRouting(const ExecutorCall& call, const RoutingResult&) {
  // The rows are only needed to score gates.
  if (call.hidden.data != nullptr && x_.size() > 0) WidenRows(call.hidden, x_.data());
  return absl::OkStatus();
}

absl::Status FetchExecutor::Multiply(const ExecutorCall& call, const RoutingResult&,
                                     absl::Span<const ReadyExpert>, bool) {
  return Check(call, {}, false);
}

absl::Status FetchExecutor::Combine(const ExecutorCall& call, const RoutingResult&) {
  return Check(call, {}, false);
}

absl::Status FetchExecutor::ScoreNext(const ExecutorCall& call, bool /*filled*/,
                                      std::vector<float>* scores) {
  return parts_.router->Score(call.layer + 1, x_.data(), call.tokens, scores);
}

}  // namespace moert
