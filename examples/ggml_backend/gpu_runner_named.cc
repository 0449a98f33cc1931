// Layer calls whose ids the host reads, and those that stream whole layers.
#include <ggml-impl.h>

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "cpu_product.h"
#include "gpu_runner.h"

namespace moert_ggml {
namespace {

constexpr char kBadIds[] = "an id names an expert that is not there, or cannot be read";

}  // namespace

ggml_status GpuRunner::RunStreamed(ggml_cgraph* graph, const Piece& piece, Store* store,
                                   bool* staged) {
  const int layer = piece.experts->layer;
  StreamPlan* const plan = store->plan();
  if (!plan->ReadsIds(layer, piece.ids->ne[1])) {
    return LaunchStaged(graph, piece, store, plan->All(layer), /*shares=*/false, /*streams=*/true,
                        staged);
  }
  const auto begin = std::chrono::steady_clock::now();
  if (!ReadIds(graph, piece)) return Fail(piece, kBadIds);
  std::vector<int32_t> experts(generic_->named().begin(), generic_->named().end());
  plan->Named(layer, experts, gpu_->stream()->Idle(), std::chrono::steady_clock::now() - begin);
  const bool shares = Share(LayerCall(graph, piece.first), store, /*streams=*/true, &experts);
  return LaunchStaged(graph, piece, store, experts, shares, /*streams=*/true, staged);
}

ggml_status GpuRunner::RunBeside(ggml_cgraph* graph, const Piece& piece, Store* store,
                                 bool* staged) {
  if (!ReadIds(graph, piece)) return Fail(piece, kBadIds);
  std::vector<int32_t> experts(generic_->named().begin(), generic_->named().end());
  const bool shares = Share(LayerCall(graph, piece.first), store, /*streams=*/false, &experts);
  return LaunchStaged(graph, piece, store, experts, shares, /*streams=*/false, staged);
}

bool GpuRunner::Share(const LayerCall& call, Store* store, bool streams,
                      std::vector<int32_t>* for_gpu) {
  CpuProduct* const product = watched_ ? nullptr : store->product(call.tokens());
  if (product == nullptr || !product->Learn(call)) return false;
  std::vector<int32_t> pairs(static_cast<size_t>(call.experts->tensor->ne[2]), 0);
  for (const int32_t e : generic_->ids()) ++pairs[static_cast<size_t>(e)];
  const std::vector<int32_t> taken =
      store->TakeForCpu(call.experts->layer, call.tokens(), streams, pairs);
  if (taken.empty() || !job_.Begin(call, generic_->ids(), taken)) return false;
  for (const int32_t e : taken) pairs[static_cast<size_t>(e)] = 0;
  std::erase_if(*for_gpu, [&](int32_t e) { return pairs[static_cast<size_t>(e)] == 0; });
  return true;
}

// The order of work when the CPU shares. CUDA's stream is idle when the ids are here. The copy
// stream loads this layer's experts, then the next layer's; CUDA's stream multiplies after the
// former. Meanwhile the host computes its pairs; only then CUDA gets the work that replaces their
// rows and reads them. The place is released to the layer after the next behind the products, since
// nothing later reads it.
ggml_status GpuRunner::LaunchStaged(ggml_cgraph* graph, const Piece& piece, Store* store,
                                    std::span<const int32_t> experts, bool shares, bool streams,
                                    bool* staged) {
  const int layer = piece.experts->layer;
  const LayerCall call(graph, piece.first);
  // A whole graph's piece goes on to the next layer's products.
  const bool apart = shares || tokens_ != nullptr;
  const int last = shares ? call.last : call.reach;
  std::string error;
  *staged = store->Stage(layer, experts, &error);
  if (!*staged) {
    store->GiveUpStaging(error);
    return GGML_STATUS_SUCCESS;
  }
  if (shares) gpu_->stream()->Set(CudaStream::kLayerCopied);
  if (shares && !job_.ReadInput()) return Fail(piece, "the input of experts cannot be read");
  if (!gpu_->stream()->Lead(cuda_)) return Fail(piece, kNoStreamOrder);
  ReplaceExperts(graph, *store->staging()->slots(layer), nullptr);
  ggml_cgraph products = *graph, rest = *graph;
  if (apart) products.n_nodes = last + 1;
  rest.nodes += products.n_nodes;
  rest.n_nodes -= products.n_nodes;
  const ggml_status status = Launch(&products);
  store->staging()->Leave(cuda_, layer);
  if (streams) StageNext(piece, store);
  if (!apart || status != GGML_STATUS_SUCCESS) return status;
  if (shares) return LaunchBehindCpu(&rest, piece, store, graph->nodes[last]);
  return LaunchRest(&rest);
}

void GpuRunner::StageNext(const Piece& piece, Store* store) {
  const int next = piece.experts->layer + 1;
  std::string error;  // or in its turn
  if (!store->plan()->ComesAhead(next)) return;
  store->Stage(next, store->Ahead(next, piece.ids->ne[1]), &error);
}

ggml_status GpuRunner::LaunchBehindCpu(ggml_cgraph* rest, const Piece& piece, Store* store,
                                       const ggml_tensor* out) {
  std::string error;
  if (!job_.Multiply(store, piece.experts->layer, &error)) return Fail(piece, error);
  const ggml_status status = job_.Put(cuda_, out);
  return status == GGML_STATUS_SUCCESS ? LaunchRest(rest) : status;
}

bool GpuRunner::ReadIds(ggml_cgraph* graph, const Piece& piece) {
  ggml_backend_synchronize(cuda_);
  const LayerCall call(graph, piece.first);
  const size_t bytes = ggml_nbytes(call.ids);
  host_.Reset();
  ggml_tensor* read = host_.New(GGML_TYPE_I8, static_cast<int64_t>(bytes));
  if (read == nullptr) return false;
  if (!gpu_->Read(read->data, call.ids->data, bytes)) return false;
  return generic_->TakeIds(call, static_cast<const char*>(read->data));
}

ggml_status GpuRunner::RunNamed(ggml_cgraph* graph, const Piece& piece, Store* store,
                                bool* too_many) {
  if (!ReadIds(graph, piece)) return Fail(piece, kBadIds);
  ggml_tensor* slot_ids = SlotIds(piece.ids->ne[0], piece.ids->ne[1]);
  if (slot_ids == nullptr) return GGML_STATUS_ALLOC_FAILED;
  moert_slots slots;
  std::string error;
  const Store::Result fetched =
      generic_->FetchNamed(store, piece.experts->layer, {}, &slots, &error);
  if (fetched != Store::Result::kOk) return NotFetched(piece, fetched, error, too_many);
  const std::vector<int32_t> ids = generic_->NamedSlots();
  ggml_backend_tensor_set(slot_ids, ids.data(), 0, ids.size() * sizeof ids[0]);
  return LaunchInSlots(graph, slots, slot_ids, store);
}

ggml_status GpuRunner::LaunchInSlots(ggml_cgraph* graph, const moert_slots& slots, ggml_tensor* ids,
                                     Store* store) {
  ReplaceExperts(graph, slots, ids);
  const ggml_status status = Launch(graph);
  LeaveSlots(store);
  return status;
}

}  // namespace moert_ggml
