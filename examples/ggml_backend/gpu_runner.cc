#include "gpu_runner.h"

#include <ggml-impl.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <span>

#include "buffers.h"
#include "cpu_product.h"

namespace moert_ggml {
namespace {

// From this many tokens on, nearly all experts of a layer are used: 87 % of 128, if each token uses
// 8 of them. llama.cpp's own offloading begins at the same number.
constexpr int64_t kStreamTokens = 32;

}  // namespace

bool AnyWork(const ggml_cgraph* graph, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    if (!IsView(graph->nodes[i]) && !ggml_is_empty(graph->nodes[i])) return true;
  }
  return false;
}

GpuRunner::GpuRunner(Gpu* gpu)
    : gpu_(gpu), kept_(gpu->compute_type()), host_(gpu->host_type()), job_(gpu) {}

GpuRunner::~GpuRunner() {
  gpu_->stream()->SynchronizeDevice();
  generic_.reset();
  if (own_ != nullptr) ggml_backend_free(own_);
}

void GpuRunner::UseBackend(ggml_backend_t cuda) {
  if (cuda == cuda_) return;
  if (cuda_ != nullptr) ggml_backend_synchronize(cuda_);
  cuda_ = cuda;
  generic_ =
      std::make_unique<Runner>(Inner::Borrow(cuda, gpu_->compute_type(), gpu_->any_memory()));
}

bool GpuRunner::FindBackend() {
  if (cuda_ != nullptr) return true;
  own_ = ggml_backend_dev_init(gpu_->device(), nullptr);
  if (own_ != nullptr) UseBackend(own_);
  return own_ != nullptr;
}

// The scheduler calls this after every part. The context's own backend computes later work in
// order.
void GpuRunner::Synchronize() {
  const bool alone = ggml_backend_reg_dev_count(ggml_backend_dev_backend_reg(gpu_->device())) == 1;
  if (cuda_ != nullptr && (cuda_ == own_ || !alone)) ggml_backend_synchronize(cuda_);
}

bool GpuRunner::BeginCopy(ggml_backend_t from, const ggml_tensor* tensor, ggml_tensor* copy) {
  if (!gpu_->Runs(from) || from->iface.cpy_tensor_async == nullptr) return false;
  UseBackend(from);
  if (inputs_.Once(copy)) {
    inputs_.Skip(copy, const_cast<ggml_tensor*>(tensor));
    return true;
  }
  return from->iface.cpy_tensor_async(from, from, tensor, copy);
}

void GpuRunner::MakeSkippedCopies() {
  for (const auto& [copy, input] : inputs_.TakeSkipped()) {
    if (cuda_->iface.cpy_tensor_async(cuda_, cuda_, input, copy)) continue;
    ggml_backend_synchronize(cuda_);
    ggml_backend_tensor_copy(input, copy);
  }
}

void GpuRunner::Plan(const ggml_cgraph* part) { inputs_.Plan(part); }

ggml_status GpuRunner::Compute(ggml_cgraph* graph) {
  const std::lock_guard<std::mutex> lock(gpu_->mutex());
  if (!FindBackend()) return GGML_STATUS_FAILED;
  // A graph without a uid is a piece of a part: llama.cpp has an evaluation callback, which reads
  // the nodes' inputs where the graph has them, and so do later pieces.
  watched_ = graph->uid == 0;
  if (watched_) MakeSkippedCopies();
  const bool known = tokens_ != nullptr && tokens_->Knows(graph->uid);
  if (!known && tokens_ != nullptr) tokens_->Begin(graph->uid);
  const ggml_status status = known ? ComputeKnown(graph) : ComputePieces(graph);
  inputs_.EndPart();
  return status;
}

ggml_status GpuRunner::ComputePieces(ggml_cgraph* graph) {
  Piece piece;
  for (int i = 0; i < graph->n_nodes; ++i) {
    ggml_tensor* node = graph->nodes[i];
    ExpertTensor* experts = ExpertsOf(node);
    if (experts == nullptr || ggml_is_empty(node)) continue;
    if (piece.experts != nullptr && piece.experts->model == experts->model &&
        piece.experts->block == experts->block && piece.ids == node->src[2]) {
      continue;
    }
    // Earlier nodes may compute the ids.
    if (piece.experts != nullptr || AnyWork(graph, piece.begin, i)) {
      const ggml_status status = ComputePiece(graph, piece, i);
      if (status != GGML_STATUS_SUCCESS) return status;
      piece.begin = i;
    }
    piece.first = i - piece.begin;
    piece.experts = experts;
    piece.ids = node->src[2];
  }
  return ComputePiece(graph, piece, graph->n_nodes);
}

ggml_status GpuRunner::ComputePiece(ggml_cgraph* graph, Piece piece, int end) {
  ggml_cgraph part = *graph;
  part.nodes += piece.begin;
  part.n_nodes = end - piece.begin;
  // CUDA replays a graph by its uid without checking it. The same graph's experts may be in slots
  // now and beside them next time, so a part is identified by its nodes and the addresses it reads.
  part.uid = 0;
  if (!AnyWork(&part, 0, part.n_nodes)) return GGML_STATUS_SUCCESS;
  const struct AtEnd {
    GpuRunner* runner;
    ~AtEnd() { runner->Restore(); }
  } restores{this};
  if (!ReplaceSources(&part)) return GGML_STATUS_ALLOC_FAILED;
  if (piece.experts != nullptr) piece.ids = part.nodes[piece.first]->src[2];
  // Without experts CUDA computes the graph as it would without us.
  const bool as_it_is = piece.experts == nullptr && replaced_.empty();
  if (as_it_is && part.n_nodes == graph->n_nodes) part.uid = graph->uid;
  return piece.experts == nullptr ? Launch(&part) : RunLayer(&part, piece);
}

ggml_status GpuRunner::RunLayer(ggml_cgraph* graph, const Piece& piece) {
  bool too_many = false;
  {
    const std::lock_guard<std::mutex> lock(piece.experts->model->mutex());
    Store* store = piece.experts->model->store();
    if (store == nullptr || !store->on_device()) {
      return Fail(piece, kNotOnGpu);
    }
    const int layer = piece.experts->layer;
    const int64_t tokens = piece.ids->ne[1];
    if (recording_) {
      const ggml_status recorded = RunServed(graph, piece, store, &too_many);
      return too_many ? GGML_STATUS_FAILED : recorded;
    }
    if (!counted_) {
      piece.experts->model->Count(layer, tokens);
      store->BeginCall(layer, tokens);
    }
    if (tokens_ != nullptr) tokens_->Call();
    const bool streams = tokens >= kStreamTokens;
    // If experts are loaded beside the cache, the CPU helps, provided that enough are missing.
    const bool shares =
        tokens > Store::kFewTokens && store->product(tokens) != nullptr && !store->holds_most();
    const bool slots_first = !streams && !shares && !store->small();
    ggml_status status = GGML_STATUS_SUCCESS;
    if (slots_first) {
      status = RunInSlots(graph, piece, store, &too_many);
      if (!too_many) return status;
      if (tokens == 1) store->set_small();
    }
    if (store->Reserve(layer)) {
      bool staged = true;
      status = streams ? RunStreamed(graph, piece, store, &staged)
                       : RunBeside(graph, piece, store, &staged);
      if (staged) return status;
    }
    if (!slots_first) {
      status = RunInSlots(graph, piece, store, &too_many);
      if (!too_many) return status;
    }
  }
  ggml_backend_synchronize(cuda_);  // the host reads ids
  return generic_->Compute(graph);
}

ggml_status GpuRunner::RunInSlots(ggml_cgraph* graph, const Piece& piece, Store* store,
                                  bool* too_many) {
  const int64_t top_k = piece.ids->ne[0], tokens = piece.ids->ne[1];
  const bool few = tokens <= Store::kFewTokens && top_k == store->top_k(piece.experts->layer);
  return few ? RunServed(graph, piece, store, too_many) : RunNamed(graph, piece, store, too_many);
}

ggml_status GpuRunner::RunServed(ggml_cgraph* graph, const Piece& piece, Store* store,
                                 bool* too_many) {
  const auto begin = std::chrono::steady_clock::now();
  const int64_t tokens = piece.ids->ne[1];
  ggml_tensor* slot_ids = SlotIds(piece.ids->ne[0], tokens);
  if (slot_ids == nullptr) return GGML_STATUS_ALLOC_FAILED;
  if (!gpu_->stream()->Follow(cuda_)) return Fail(piece, kNoStreamOrder);
  const int32_t* ids = PackedIds(piece.ids);
  if (ids == nullptr) return GGML_STATUS_ALLOC_FAILED;
  moert_slots slots;
  std::string error;
  const ggml_tensor* x = graph->nodes[piece.first]->src[1];
  const LayerCall call(graph, piece.first);
  // The CPU's share appears only in the rows of the last product.
  CpuProduct* const product = watched_ ? nullptr : store->product(tokens);
  const bool shares = product != nullptr && product->Learn(call);
  const auto* const rows = static_cast<const float*>(x->data);
  CpuRows shared;
  if (shares) shared = {rows, static_cast<int64_t>(x->nb[2] / sizeof(float))};
  const Store::Result fetched =
      store->FetchOnDevice(piece.experts->layer, tokens, ids, rows,
                           static_cast<int32_t*>(slot_ids->data), &slots, &error, shared);
  if (fetched != Store::Result::kOk) return NotFetched(piece, fetched, error, too_many);
  if (!gpu_->stream()->Lead(cuda_)) return Fail(piece, kNoStreamOrder);
  ReplaceExperts(graph, slots, slot_ids);
  const ggml_status status = shares ? LaunchShared(graph, piece, call, store) : Launch(graph);
  LeaveSlots(store);
  if (status == GGML_STATUS_SUCCESS) NoteServed(graph, piece, shares);
  store->CountCall(std::chrono::steady_clock::now() - begin);
  return status;
}

ggml_status GpuRunner::LaunchShared(ggml_cgraph* graph, const Piece& piece, const LayerCall& call,
                                    Store* store) {
  ggml_cgraph products = *graph, rest = *graph;
  products.n_nodes = call.last + 1;
  rest.nodes += products.n_nodes;
  rest.n_nodes -= products.n_nodes;
  const ggml_status status = Launch(&products);
  if (status != GGML_STATUS_SUCCESS) return status;
  std::string error;
  const ggml_tensor* out = call.node(call.last);
  if (!gpu_->stream()->Follow(cuda_)) return Fail(piece, kNoStreamOrder);
  if (!store->TakeCpuRows(static_cast<float*>(out->data), ggml_nrows(out), &error)) {
    return Fail(piece, error);
  }
  if (!gpu_->stream()->Lead(cuda_)) return Fail(piece, kNoStreamOrder);
  return LaunchRest(&rest);
}

void GpuRunner::LeaveSlots(Store* store) {
  gpu_->stream()->Follow(cuda_);
  store->Release();
}

ggml_status GpuRunner::NotFetched(const Piece& piece, Store::Result result,
                                  const std::string& error, bool* too_many) {
  *too_many = result == Store::Result::kTooMany;
  return *too_many ? GGML_STATUS_SUCCESS : Fail(piece, error);
}

ggml_status GpuRunner::Launch(ggml_cgraph* graph) {
  return recording_ ? LaunchApart(graph) : ggml_backend_graph_compute_async(cuda_, graph);
}

ggml_status GpuRunner::LaunchRest(ggml_cgraph* rest) {
  return AnyWork(rest, 0, rest->n_nodes) ? Launch(rest) : GGML_STATUS_SUCCESS;
}

ggml_status GpuRunner::Fail(const Piece& piece, const std::string& error) {
  if (!recording_) Say("%s: %s", piece.experts->model->stem().c_str(), error.c_str());
  return GGML_STATUS_FAILED;
}

void GpuRunner::Replace(ggml_tensor** source, ggml_tensor* by) {
  replaced_.emplace_back(source, *source);
  *source = by;
}

void GpuRunner::Restore() {
  for (auto it = replaced_.rbegin(); it != replaced_.rend(); ++it) *it->first = it->second;
  replaced_.clear();
}

bool GpuRunner::ReplaceSources(ggml_cgraph* graph) {
  for (int i = 0; i < graph->n_nodes; ++i) {
    ggml_tensor* node = graph->nodes[i];
    for (int s = 0; s < GGML_MAX_SRC; ++s) {
      ggml_tensor* source = node->src[s];
      if (source == nullptr) continue;
      ggml_tensor* by = inputs_.InputOf(source);
      const bool weight = IsOurs(source->buffer) && ExpertsOf(node) == nullptr && !IsView(node);
      if (by == nullptr && weight) {
        by = OnDevice(source);
        if (by == nullptr) return false;
      }
      if (by != nullptr) Replace(&node->src[s], by);
    }
  }
  return true;
}

ggml_tensor* GpuRunner::OnDevice(ggml_tensor* weight) {
  // Graphs and their views are temporary, weights are not.
  ggml_tensor*& copy = weights_[weight->view_src != nullptr ? weight->view_src : weight];
  if (copy != nullptr) return copy;
  ggml_tensor* made = kept_.Copy(weight);
  made->op = GGML_OP_NONE;
  made->src[0] = made->view_src = nullptr;
  if (!kept_.Place(made)) return nullptr;
  made->extra = nullptr;
  ggml_backend_tensor_set(made, weight->data, 0, ggml_nbytes(weight));
  return copy = made;
}

void GpuRunner::ReplaceExperts(ggml_cgraph* graph, const moert_slots& slots, ggml_tensor* ids) {
  for (int i = 0; i < graph->n_nodes; ++i) {
    ggml_tensor* node = graph->nodes[i];
    const ExpertTensor* experts = ExpertsOf(node);
    if (experts == nullptr || ggml_is_empty(node)) continue;
    ggml_tensor* slot = &slots_[node->src[0]];
    PutInSlots(node->src[0], slots, experts->part, gpu_->any_memory(), slot);
    Replace(&node->src[0], slot);
    if (ids != nullptr) Replace(&node->src[2], ids);
  }
}

const int32_t* GpuRunner::PackedIds(const ggml_tensor* ids) {
  const auto bytes = static_cast<size_t>(ids->ne[0]) * sizeof(int32_t);
  const auto rows = static_cast<size_t>(ids->ne[1]);
  if (rows == 1 || ids->nb[1] == bytes) return static_cast<const int32_t*>(ids->data);
  if (packed_ids_ == nullptr || ggml_nbytes(packed_ids_) < bytes * rows) {
    packed_ids_ = kept_.New(GGML_TYPE_I32, ids->ne[0], Store::kFewTokens);
  }
  if (packed_ids_ == nullptr) return nullptr;
  auto* const to = static_cast<int32_t*>(packed_ids_->data);
  if (gpu_->in_host_memory()) {
    for (size_t row = 0; row < rows; ++row) {
      std::memcpy(to + row * static_cast<size_t>(ids->ne[0]),
                  static_cast<const char*>(ids->data) + row * ids->nb[1], bytes);
    }
    return to;
  }
  return gpu_->stream()->Gather(to, ids->data, bytes, ids->nb[1], rows) ? to : nullptr;
}

ggml_tensor* GpuRunner::SlotIds(int64_t top_k, int64_t tokens) {
  ggml_tensor*& ids = slot_ids_[tokens * 65536 + top_k];
  if (ids == nullptr) ids = kept_.New(GGML_TYPE_I32, top_k, tokens);
  return ids;
}

}  // namespace moert_ggml
