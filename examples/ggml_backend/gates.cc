#include "gates.h"

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>

namespace moert_ggml {

void Gates::Find(const std::string& path) {
  if (path.empty() || !seen_.insert(path).second) return;
  ggml_context* context = nullptr;
  gguf_context* file = gguf_init_from_file(path.c_str(), {/*no_alloc=*/true, &context});
  if (file == nullptr) return;
  const int64_t architecture = gguf_find_key(file, "general.architecture");
  if (architecture >= 0 && gguf_get_kv_type(file, architecture) == GGUF_TYPE_STRING) {
    const std::string key =
        gguf_get_val_str(file, architecture) + std::string(".expert_used_count");
    const int64_t used = gguf_find_key(file, key.c_str());
    if (used >= 0 && gguf_get_kv_type(file, used) == GGUF_TYPE_UINT32) {
      top_k_ = static_cast<int>(gguf_get_val_u32(file, used));
    }
  }
  for (const ggml_tensor* t = ggml_get_first_tensor(context); t != nullptr;
       t = ggml_get_next_tensor(context, const_cast<ggml_tensor*>(t))) {
    int block = -1, end = 0;
    std::sscanf(t->name, "blk.%d.ffn_gate_inp.weight%n", &block, &end);
    if (end == 0 || t->name[end] != '\0') continue;
    const int64_t index = gguf_find_tensor(file, t->name);
    const bool readable =
        t->type == GGML_TYPE_F32 || ggml_get_type_traits(t->type)->to_float != nullptr;
    if (index < 0 || !readable) continue;
    const auto offset =
        static_cast<int64_t>(gguf_get_data_offset(file) + gguf_get_tensor_offset(file, index));
    gates_[block] = {path, offset, t->type, t->ne[0], t->ne[1]};
  }
  gguf_free(file);
  ggml_free(context);
}

bool Gates::Has(int block, int64_t hidden, int64_t experts) const {
  const auto gate = gates_.find(block);
  return gate != gates_.end() && gate->second.hidden == hidden && gate->second.experts == experts;
}

bool Gates::Read(int block, float* out) const {
  const Gate& gate = gates_.at(block);
  const auto type = static_cast<ggml_type>(gate.type);
  const size_t row = ggml_row_size(type, gate.hidden);
  std::vector<char> bytes(row * static_cast<size_t>(gate.experts));
  std::ifstream file(gate.path, std::ios::binary);
  if (!file.seekg(gate.offset) ||
      !file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    return false;
  }
  for (int64_t e = 0; e < gate.experts; ++e) {
    const char* from = bytes.data() + static_cast<size_t>(e) * row;
    float* to = out + e * gate.hidden;
    if (type == GGML_TYPE_F32) {
      std::copy_n(reinterpret_cast<const float*>(from), gate.hidden, to);
    } else {
      ggml_get_type_traits(type)->to_float(from, to, gate.hidden);
    }
  }
  return true;
}

}  // namespace moert_ggml
