#include "prompt_job.h"

#include <ggml-impl.h>

#include <cstring>

namespace moert_ggml {

PromptJob::PromptJob(Gpu* gpu) : gpu_(gpu), host_(gpu->host_type()), device_(gpu->compute_type()) {}

bool PromptJob::Begin(const LayerCall& call, std::span<const int32_t> ids,
                      std::span<const int32_t> experts) {
  host_.Reset();
  device_.Reset();
  const std::vector<int32_t> rows = Gather(call, ids, experts);
  const auto count = static_cast<int64_t>(rows.size());
  input_ = call.node(call.first)->src[1];
  out_ = host_.New(GGML_TYPE_F32, call.node(call.last)->ne[0], count);
  rows_ = device_.New(GGML_TYPE_I32, count);
  ggml_tensor* numbers = host_.New(GGML_TYPE_I32, count);
  ggml_tensor* x = host_.New(GGML_TYPE_F32, input_->ne[0], input_->ne[2]);
  if (out_ == nullptr || rows_ == nullptr || numbers == nullptr || x == nullptr) return false;
  const bool one_by_one = input_->nb[2] == static_cast<size_t>(input_->ne[0]) * sizeof(float);
  if (!one_by_one || !gpu_->Reaches(out_) || !gpu_->Reaches(numbers)) return false;
  pairs_.x = static_cast<float*>(x->data);
  pairs_.rows = input_->ne[2];
  pairs_.out = static_cast<float*>(out_->data);
  std::memcpy(numbers->data, rows.data(), ggml_nbytes(numbers));
  // In the stream's order: the products follow it, and so does the work that Put launches.
  return gpu_->Write(rows_->data, numbers->data, ggml_nbytes(numbers));
}

std::vector<int32_t> PromptJob::Gather(const LayerCall& call, std::span<const int32_t> ids,
                                       std::span<const int32_t> experts) {
  const auto all = static_cast<size_t>(call.experts->tensor->ne[2]);
  constexpr int32_t kNone = -1;
  std::vector<int32_t> place(all, kNone);  // of an expert among those of the job
  pairs_.experts.assign(experts.begin(), experts.end());
  pairs_.pairs.assign(experts.size(), 0);
  for (size_t i = 0; i < experts.size(); ++i) {
    place[static_cast<size_t>(experts[i])] = static_cast<int32_t>(i);
  }
  const auto place_of = [&](size_t pair) { return place[static_cast<size_t>(ids[pair])]; };
  for (size_t i = 0; i < ids.size(); ++i) {
    if (place_of(i) != kNone) ++pairs_.pairs[static_cast<size_t>(place_of(i))];
  }
  std::vector<size_t> next(experts.size(), 0);  // pair of each expert
  size_t pairs = 0;
  for (size_t i = 0; i < experts.size(); ++i) {
    next[i] = pairs;
    pairs += static_cast<size_t>(pairs_.pairs[i]);
  }
  std::vector<int32_t> rows(pairs);
  pairs_.row_of.resize(pairs);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (place_of(i) == kNone) continue;
    const size_t at = next[static_cast<size_t>(place_of(i))]++;
    rows[at] = static_cast<int32_t>(i);
    pairs_.row_of[at] = static_cast<int32_t>(static_cast<int64_t>(i) / call.top_k());
  }
  return rows;
}

bool PromptJob::ReadInput() {
  const auto bytes = static_cast<size_t>(pairs_.rows * input_->ne[0]) * sizeof(float);
  return gpu_->Read(pairs_.x, input_->data, bytes);
}

bool PromptJob::Multiply(Store* store, int layer, std::string* error) {
  return store->Multiply(layer, pairs_, error);
}

// The kernel reads the results over the link itself: a copy would wait behind the copies of the
// next layer's experts.
ggml_status PromptJob::Put(ggml_backend_t backend, const ggml_tensor* out) {
  ggml_tensor* all = device_.Copy(out);
  all->ne[1] *= all->ne[2];
  all->ne[2] = 1;
  all->nb[2] = all->nb[3] = all->nb[1] * static_cast<size_t>(all->ne[1]);
  ggml_tensor* results = device_.Copy(out_);
  results->buffer = gpu_->any_memory();
  ggml_tensor* node = ggml_set_rows(device_.context(), all, results, rows_);
  node->buffer = out->buffer;
  node->flags |= GGML_TENSOR_FLAG_COMPUTE;
  ggml_cgraph* graph = ggml_new_graph_custom(device_.context(), /*size=*/8, /*grads=*/false);
  ggml_graph_add_node(graph, node);
  return ggml_backend_graph_compute_async(backend, graph);
}

}  // namespace moert_ggml
