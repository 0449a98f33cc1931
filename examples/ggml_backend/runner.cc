#include "runner.h"

#include <algorithm>
#include <string>

#include "buffers.h"
#include "chunks.h"
#include "claims.h"

namespace moert_ggml {
namespace {

constexpr int kGraphNodes = 1024;

}  // namespace

Runner::Runner(std::unique_ptr<Inner> inner)
    : inner_(std::move(inner)), nodes_(inner_->buffer_type()), kept_(inner_->buffer_type()) {}

ggml_status Runner::Compute(ggml_cgraph* graph) {
  const int count = ggml_graph_n_nodes(graph);
  for (int i = 0; i < count; ++i) {
    ggml_tensor* node = ggml_graph_node(graph, i);
    if (ExpertsOf(node) == nullptr || ggml_is_empty(node)) {
      SayIfNotMapped(node);
      Append(node);
      if (nodes_.room() && ggml_graph_n_nodes(pending_) < kGraphNodes) continue;
      if (const ggml_status status = Flush(); status != GGML_STATUS_SUCCESS) return status;
      continue;
    }
    // Appended nodes may compute the ids, and have to run before an expert is evicted.
    if (const ggml_status status = Flush(); status != GGML_STATUS_SUCCESS) return status;
    const LayerCall call(graph, i);
    if (const ggml_status status = Run(call, &i); status != GGML_STATUS_SUCCESS) return status;
  }
  return Flush();
}

// Sets ids_ and named_. False: an id is out of range.
bool Runner::ReadIds(const LayerCall& call) {
  const ggml_tensor* ids = call.ids;
  std::vector<char> copy;
  const char* data = static_cast<const char*>(ids->data);
  if (!ggml_backend_buffer_is_host(ids->view_src ? ids->view_src->buffer : ids->buffer)) {
    copy.resize(ggml_nbytes(ids));
    ggml_backend_tensor_get(ids, copy.data(), 0, copy.size());
    data = copy.data();
  }
  return TakeIds(call, data);
}

bool Runner::TakeIds(const LayerCall& call, const char* data) {
  const ggml_tensor* ids = call.ids;
  const auto experts = static_cast<int32_t>(call.experts->tensor->ne[2]);
  ids_.clear();
  named_.clear();
  slot_of_expert_.assign(static_cast<size_t>(experts), -1);
  for (int64_t t = 0; t < ids->ne[1]; ++t) {
    for (int64_t j = 0; j < ids->ne[0]; ++j) {
      const int32_t id = *reinterpret_cast<const int32_t*>(data + t * ids->nb[1] + j * ids->nb[0]);
      if (id < 0 || id >= experts) return false;
      ids_.push_back(id);
      if (slot_of_expert_[id] == 0) continue;
      slot_of_expert_[id] = 0;
      named_.push_back(id);
    }
  }
  return true;
}

ggml_status Runner::Run(const LayerCall& call, int* last) {
  *last = call.last;
  const std::lock_guard<std::mutex> lock(call.experts->model->mutex());
  Store* store = call.experts->model->store();
  if (store == nullptr) {  // in place, from the mapped file
    for (int i = call.first; i <= call.last; ++i) Append(call.node(i));
    return Flush();
  }
  if (!ReadIds(call)) {
    Say("%s: %s names an expert that is not there", call.experts->model->stem().c_str(),
        call.ids->name);
    return GGML_STATUS_FAILED;
  }
  const ggml_tensor* x = call.node(call.first)->src[1];
  std::span<const float> hidden;  // of one token, for prediction
  if (ids_.size() == named_.size() && ggml_nelements(x) == x->ne[0] && x->type == GGML_TYPE_F32 &&
      ggml_backend_buffer_is_host(x->view_src ? x->view_src->buffer : x->buffer)) {
    hidden = {static_cast<const float*>(x->data), static_cast<size_t>(x->ne[0])};
  }
  call.experts->model->Count(call.experts->layer, call.tokens());
  moert_slots slots;
  std::string error;
  switch (FetchNamed(store, call.experts->layer, hidden, &slots, &error)) {
    case Store::Result::kOk: {
      *last = call.reach;
      const ggml_status status = RunAtOnce(call, slots);
      store->Release();
      return status;
    }
    case Store::Result::kTooMany:
      return RunInChunks(call, store);
    case Store::Result::kFailed:
      Say("%s: %s", call.experts->model->stem().c_str(), error.c_str());
      return GGML_STATUS_FAILED;
  }
  return GGML_STATUS_FAILED;
}

Store::Result Runner::FetchNamed(Store* store, int layer, std::span<const float> hidden,
                                 moert_slots* slots, std::string* error) {
  slot_of_named_.resize(named_.size());
  return store->Fetch(layer, named_, hidden, slot_of_named_, slots, error);
}

std::vector<int32_t> Runner::NamedSlots() {
  for (size_t i = 0; i < named_.size(); ++i) slot_of_expert_[named_[i]] = slot_of_named_[i];
  std::vector<int32_t> slot_ids(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) slot_ids[i] = slot_of_expert_[ids_[i]];
  return slot_ids;
}

ggml_status Runner::RunAtOnce(const LayerCall& call, const moert_slots& slots) {
  const std::vector<int32_t> slot_ids = NamedSlots();
  ggml_tensor* ids = nodes_.New(GGML_TYPE_I32, slot_ids.data(), call.ids->ne[0], call.ids->ne[1]);
  if (ids == nullptr) return GGML_STATUS_ALLOC_FAILED;
  for (int i = call.first; i <= call.reach; ++i) {
    ggml_tensor* node = call.node(i);
    if (const ExpertTensor* experts = ExpertsOf(node)) {
      node = nodes_.Copy(node);
      node->src[0] = SlotTensor(node->src[0], slots, experts->part);
      node->src[2] = ids;
    }
    Append(node);
  }
  return Flush();
}

ggml_status Runner::RunInChunks(const LayerCall& call, Store* store) {
  Chunks chunks(this, call);
  return chunks.Run(store);
}

ggml_tensor* Runner::SlotTensor(const ggml_tensor* all, const moert_slots& slots, int part) {
  ggml_tensor* tensor = nodes_.Copy(all);
  PutInSlots(all, slots, part, inner_->slot_buffer(), tensor);
  return tensor;
}

void PutInSlots(const ggml_tensor* all, const moert_slots& slots, int part,
                ggml_backend_buffer_t buffer, ggml_tensor* tensor) {
  *tensor = *all;
  tensor->data = const_cast<void*>(slots.base[part]);
  tensor->ne[2] = slots.slots;
  tensor->nb[2] = static_cast<size_t>(slots.stride[part]);
  tensor->nb[3] = tensor->nb[2] * static_cast<size_t>(slots.slots);
  tensor->extra = nullptr;
  tensor->buffer = buffer;
}

void Runner::Append(ggml_tensor* node) {
  // ggml treats a tensor with `extra` as one that another of its kernels has rearranged.
  if (ExpertsOf(node) != nullptr) {
    node = nodes_.Copy(node);
    node->src[0] = nodes_.Copy(node->src[0]);
    node->src[0]->extra = nullptr;
  }
  if (pending_ == nullptr) {
    pending_ = ggml_new_graph_custom(nodes_.context(), kGraphNodes, /*grads=*/false);
  }
  ggml_graph_add_node(pending_, node);
}

ggml_status Runner::Flush() {
  const bool empty = pending_ == nullptr;
  const ggml_status status = empty ? GGML_STATUS_SUCCESS : inner_->Compute(pending_);
  pending_ = nullptr;
  nodes_.Reset();
  return status;
}

}  // namespace moert_ggml
