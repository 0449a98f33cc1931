#include "workspace.h"

#include <algorithm>

namespace moert_ggml {

Workspace::Workspace(ggml_backend_buffer_type_t buffer_type)
    : buffer_type_(buffer_type), context_(ggml_init({kContextBytes, nullptr, /*no_alloc=*/true})) {}

Workspace::~Workspace() {
  ggml_free(context_);
  for (const Block& block : blocks_) ggml_backend_buffer_free(block.buffer);
}

ggml_tensor* Workspace::New(ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
  ggml_tensor* tensor = ggml_new_tensor_3d(context_, type, ne0, ne1, ne2);
  return Place(tensor) ? tensor : nullptr;
}

ggml_tensor* Workspace::New(ggml_type type, const void* contents, int64_t ne0, int64_t ne1) {
  ggml_tensor* tensor = New(type, ne0, ne1);
  if (tensor != nullptr) ggml_backend_tensor_set(tensor, contents, 0, ggml_nbytes(tensor));
  return tensor;
}

ggml_tensor* Workspace::Copy(const ggml_tensor* tensor) {
  ggml_tensor* copy = ggml_new_tensor_1d(context_, tensor->type, ggml_blck_size(tensor->type));
  *copy = *tensor;
  return copy;
}

bool Workspace::Place(ggml_tensor* tensor) {
  const size_t alignment = ggml_backend_buft_get_alignment(buffer_type_);
  const size_t size = GGML_PAD(ggml_backend_buft_get_alloc_size(buffer_type_, tensor), alignment);
  auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) {
    return b.used + size <= ggml_backend_buffer_get_size(b.buffer);
  });
  if (block == blocks_.end()) {
    const size_t least = size_t{1} << 20;
    ggml_backend_buffer_t buffer =
        ggml_backend_buft_alloc_buffer(buffer_type_, std::max(size, least));
    if (buffer == nullptr) return false;
    block = blocks_.insert(blocks_.end(), Block{buffer});
  }
  tensor->buffer = block->buffer;
  tensor->data = static_cast<char*>(ggml_backend_buffer_get_base(block->buffer)) + block->used;
  block->used += size;
  return true;
}

void Workspace::Reset() {
  ggml_reset(context_);
  for (Block& block : blocks_) block.used = 0;
}

}  // namespace moert_ggml
