#include "chunks.h"

#include <algorithm>
#include <string>

namespace moert_ggml {

ggml_status Chunks::Run(Store* store) {
  if (!KeepInputs()) return GGML_STATUS_ALLOC_FAILED;
  if (const ggml_status status = runner_.Flush(); status != GGML_STATUS_SUCCESS) return status;
  const std::vector<int32_t>& named = runner_.named_;
  ggml_status status = GGML_STATUS_SUCCESS;
  size_t lot = (named.size() + 1) / 2;
  for (size_t first = 0; first < named.size() && status == GGML_STATUS_SUCCESS;) {
    const size_t count = std::min(lot, named.size() - first);
    const std::span<const int32_t> experts(named.data() + first, count);
    std::vector<int32_t> slot_ids(count);
    moert_slots slots;
    std::string error;
    const Store::Result result =
        store->Fetch(call_.experts->layer, experts, {}, slot_ids, &slots, &error);
    if (result == Store::Result::kTooMany && count > 1) {
      lot = (count + 1) / 2;
      continue;
    }
    if (result != Store::Result::kOk) {
      Say("%s: %s", call_.experts->model->stem().c_str(), error.c_str());
      status = GGML_STATUS_FAILED;
      break;
    }
    NamePairs(experts, slot_ids);
    status = RunLot(slots);
    store->Release();
    first += count;
  }
  runner_.kept_.Reset();
  return status;
}

bool Chunks::KeepInputs() {
  for (int i = call_.first; i <= call_.last; ++i) {
    const ggml_tensor* node = call_.node(i);
    // Factors count as weights.
    if (IsView(node) || node->op == GGML_OP_REPEAT || node->op == GGML_OP_GET_ROWS) continue;
    const bool product = node->op == GGML_OP_MUL_MAT_ID;
    for (int s = 0; s < GGML_MAX_SRC; ++s) {
      const ggml_tensor* source = node->src[s];
      // Weights stay where they are, and ids have been read already.
      const bool activation = product ? s == 1 : node->op == GGML_OP_ADD_ID ? s == 0 : true;
      if (source == nullptr || !activation || call_.Makes(source)) continue;
      if (!Keep(source)) return false;
    }
  }
  return true;
}

bool Chunks::Keep(const ggml_tensor* tensor) {
  if (kept_.contains(tensor)) return true;
  Workspace& kept = runner_.kept_;
  ggml_tensor* copy = kept.New(GGML_TYPE_F32, tensor->ne[0], tensor->ne[1], tensor->ne[2]);
  if (copy == nullptr) return false;
  kept_[tensor] = copy;
  Append(ggml_cpy(runner_.nodes_.context(), const_cast<ggml_tensor*>(tensor), copy));
  return true;
}

void Chunks::NamePairs(std::span<const int32_t> experts, std::span<const int32_t> slots) {
  std::vector<int32_t>& slot_of = runner_.slot_of_expert_;
  std::fill(slot_of.begin(), slot_of.end(), -1);
  for (size_t i = 0; i < experts.size(); ++i) slot_of[experts[i]] = slots[i];
  pair_.clear();
  expert_.clear();
  slot_.clear();
  for (size_t pair = 0; pair < runner_.ids_.size(); ++pair) {
    const int32_t expert = runner_.ids_[pair];
    if (slot_of[expert] < 0) continue;
    pair_.push_back(static_cast<int32_t>(pair));
    expert_.push_back(expert);
    slot_.push_back(slot_of[expert]);
  }
}

ggml_status Chunks::RunLot(const moert_slots& slots) {
  Workspace& nodes = runner_.nodes_;
  const auto pairs = static_cast<int64_t>(pair_.size());
  made_.clear();
  expert_ids_ = nodes.New(GGML_TYPE_I32, expert_.data(), 1, pairs);
  slot_ids_ = nodes.New(GGML_TYPE_I32, slot_.data(), 1, pairs);
  if (expert_ids_ == nullptr || slot_ids_ == nullptr) return GGML_STATUS_ALLOC_FAILED;
  for (int i = call_.first; i <= call_.last; ++i) {
    ggml_tensor* node = call_.node(i);
    if (!call_.Makes(node)) continue;  // a view of something else, or factors for all tokens
    ggml_tensor* made = MakeNode(node, slots);
    if (made == nullptr) return GGML_STATUS_ALLOC_FAILED;
    made_[node] = made;
    const bool result = !UsedInCall(node) || UsedBehindCall(node);
    if (!IsView(node) && result && !PutBack(node, made)) {
      return GGML_STATUS_ALLOC_FAILED;
    }
  }
  return runner_.Flush();
}

ggml_tensor* Chunks::MakeNode(ggml_tensor* node, const moert_slots& slots) {
  if (node->op == GGML_OP_MUL_MAT_ID) return MakeProduct(node, slots);
  if (node->op == GGML_OP_GET_ROWS) return MakeFactors(node);
  return IsView(node) ? MakeView(node) : MakeElementWise(node);
}

ggml_tensor* Chunks::MakeProduct(const ggml_tensor* node, const moert_slots& slots) {
  ggml_tensor* rows = Rows(node->src[1]);
  if (rows == nullptr) return nullptr;
  const ExpertTensor* experts = ExpertsOf(node);  // else of an adapter, which is all there
  ggml_tensor* all =
      experts != nullptr ? runner_.SlotTensor(node->src[0], slots, experts->part) : node->src[0];
  ggml_tensor* made = ggml_mul_mat_id(runner_.nodes_.context(), all, rows,
                                      experts != nullptr ? slot_ids_ : expert_ids_);
  std::copy(std::begin(node->op_params), std::end(node->op_params), made->op_params);
  if (!runner_.nodes_.Place(made)) return nullptr;
  Append(made);
  return made;
}

// Creates a view of a part of a row, such as the gate half.
ggml_tensor* Chunks::MakeView(const ggml_tensor* node) {
  ggml_tensor* source = made_.at(node->src[0]);
  const auto offset =
      static_cast<const char*>(node->data) - static_cast<const char*>(node->src[0]->data);
  ggml_tensor* made = ggml_view_3d(runner_.nodes_.context(), source, node->ne[0], 1, source->ne[2],
                                   source->nb[1], source->nb[2], static_cast<size_t>(offset));
  made->buffer = source->buffer;
  return made;
}

ggml_tensor* Chunks::MakeFactors(const ggml_tensor* node) {
  return Gather(FactorsOf(node, call_.ids), expert_);
}

ggml_tensor* Chunks::MakeElementWise(const ggml_tensor* node) {
  ggml_tensor* made = runner_.nodes_.Copy(node);
  made->ne[1] = 1;
  made->ne[2] = static_cast<int64_t>(pair_.size());
  made->nb[1] = made->nb[2] = ggml_row_size(made->type, made->ne[0]);
  made->nb[3] = made->nb[2] * static_cast<size_t>(made->ne[2]);
  made->view_src = nullptr;
  made->view_offs = 0;
  for (int s = 0; s < GGML_MAX_SRC; ++s) {
    if (made->src[s] == nullptr) continue;
    if (node->op == GGML_OP_ADD_ID && s > 0) {
      if (s == 2) made->src[s] = expert_ids_;
      continue;
    }
    made->src[s] = Rows(node->src[s]);
    if (made->src[s] == nullptr) return nullptr;
  }
  if (!runner_.nodes_.Place(made)) return nullptr;
  Append(made);
  return made;
}

ggml_tensor* Chunks::Rows(const ggml_tensor* tensor) {
  if (const auto made = made_.find(tensor); made != made_.end()) return made->second;
  ggml_tensor* all = kept_.at(tensor);
  std::vector<int32_t> rows(pair_.size());
  const int64_t top_k = call_.top_k();
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t token = pair_[i] / top_k;
    const int64_t choice = pair_[i] % top_k;
    rows[i] = static_cast<int32_t>(token * all->ne[1] + choice % all->ne[1]);
  }
  ggml_tensor* made = Gather(all, rows);
  if (made != nullptr) made_[tensor] = made;
  return made;
}

ggml_tensor* Chunks::Gather(const ggml_tensor* from, const std::vector<int32_t>& rows) {
  Workspace& nodes = runner_.nodes_;
  ggml_context* context = nodes.context();
  const auto count = static_cast<int64_t>(rows.size());
  ggml_tensor* index = nodes.New(GGML_TYPE_I32, rows.data(), count);
  if (index == nullptr) return nullptr;
  ggml_tensor* flat = ggml_reshape_2d(context, const_cast<ggml_tensor*>(from), from->ne[0],
                                      from->ne[1] * from->ne[2]);
  flat->buffer = from->view_src != nullptr ? from->view_src->buffer : from->buffer;
  ggml_tensor* gathered = ggml_get_rows(context, flat, index);
  if (!nodes.Place(gathered)) return nullptr;
  Append(gathered);
  ggml_tensor* made = ggml_reshape_3d(context, gathered, from->ne[0], 1, count);
  made->buffer = gathered->buffer;
  return made;
}

bool Chunks::PutBack(ggml_tensor* node, ggml_tensor* lot) {
  Workspace& nodes = runner_.nodes_;
  ggml_context* context = nodes.context();
  const auto pairs = static_cast<int64_t>(pair_.size());
  ggml_tensor* index = nodes.New(GGML_TYPE_I32, pair_.data(), pairs);
  if (index == nullptr) return false;
  ggml_tensor* rows = ggml_reshape_2d(context, node, node->ne[0], node->ne[1] * node->ne[2]);
  rows->buffer = node->view_src ? node->view_src->buffer : node->buffer;
  ggml_tensor* from = ggml_reshape_2d(context, lot, lot->ne[0], pairs);
  from->buffer = lot->buffer;
  ggml_tensor* put = ggml_set_rows(context, rows, from, index);
  put->buffer = rows->buffer;
  Append(put);
  return true;
}

bool Chunks::UsedInCall(const ggml_tensor* tensor) const {
  for (int i = call_.first; i <= call_.last; ++i) {
    const ggml_tensor* node = call_.node(i);
    if (!call_.Makes(node)) continue;
    if (std::find(std::begin(node->src), std::end(node->src), tensor) != std::end(node->src)) {
      return true;
    }
  }
  return false;
}

bool Chunks::UsedBehindCall(const ggml_tensor* tensor) const {
  for (int i = call_.last + 1; i < ggml_graph_n_nodes(call_.graph); ++i) {
    const ggml_tensor* node = call_.node(i);
    if (std::find(std::begin(node->src), std::end(node->src), tensor) != std::end(node->src)) {
      return true;
    }
  }
  return false;
}

void Chunks::Append(ggml_tensor* node) {
  node->flags |= GGML_TENSOR_FLAG_COMPUTE;
  runner_.Append(node);
}

}  // namespace moert_ggml
