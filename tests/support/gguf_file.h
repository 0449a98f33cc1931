// Small GGUF files.
#ifndef MOERT_TESTS_SUPPORT_GGUF_FILE_H_
#define MOERT_TESTS_SUPPORT_GGUF_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace moert::test {

struct GgufFile {
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    uint32_t type = 0;
    std::optional<uint64_t> offset = {};  // else behind the one before
  };
  std::string architecture, name;
  std::vector<std::pair<std::string, uint32_t>> numbers;
  std::vector<uint32_t> kv_heads;  // a list
  uint64_t strings = 3;            // as many a list of texts claims to have; three are written
  std::vector<Tensor> tensors;

  std::string Bytes() const {
    std::string out = "GGUF";
    const auto put = [&](auto value) {
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    const auto text = [&](const std::string& s) {
      put(static_cast<uint64_t>(s.size()));
      out += s;
    };
    put(uint32_t{3});
    put(static_cast<uint64_t>(tensors.size()));
    put(static_cast<uint64_t>(numbers.size() + 4));
    const auto key = [&](const std::string& k, uint32_t type) {
      text(k);
      put(type);
    };
    key("general.architecture", 8);
    text(architecture);
    key("general.name", 8);
    text(name);
    for (const auto& [k, value] : numbers) {
      key(architecture + "." + k, 4);
      put(value);
    }
    key(architecture + ".attention.head_count_kv", 9);
    put(uint32_t{4});
    put(static_cast<uint64_t>(kv_heads.size()));
    for (const uint32_t heads : kv_heads) put(heads);
    key("tokenizer.ggml.tokens", 9);
    put(uint32_t{8});
    put(strings);
    for (int i = 0; i < 3; ++i) text("token");
    uint64_t end = 0;
    for (const Tensor& t : tensors) {
      text(t.name);
      put(static_cast<uint32_t>(t.shape.size()));
      uint64_t bytes = t.type == 2 ? 18 : 4;  // Q4_0, else F32
      for (const int64_t size : t.shape) {
        put(static_cast<uint64_t>(size));
        bytes *= static_cast<uint64_t>(size);
      }
      put(t.type);
      put(t.offset.value_or(end));
      end += t.type == 2 ? bytes / 32 : bytes;
    }
    if (end < (1 << 24)) out.append(end, '\0');
    return out;
  }
};

/// Two layers of eight experts in Q4_0, two of them a token.
inline GgufFile TinyGguf() {
  GgufFile file;
  file.architecture = "qwen3moe";
  file.name = "tiny";
  file.numbers = {{"block_count", 2},          {"embedding_length", 64},
                  {"expert_count", 8},         {"expert_used_count", 2},
                  {"context_length", 512},     {"expert_feed_forward_length", 32},
                  {"attention.head_count", 4}, {"attention.key_length", 16}};
  file.kv_heads = {2, 4};
  file.tensors = {{"token_embd.weight", {64, 100}, 0}, {"output.weight", {64, 100}, 0}};
  for (int l = 0; l < 2; ++l) {
    const std::string block = "blk." + std::to_string(l) + ".ffn_";
    file.tensors.push_back({block + "gate_exps.weight", {64, 32, 8}, 2});
    file.tensors.push_back({block + "up_exps.weight", {64, 32, 8}, 2});
    file.tensors.push_back({block + "down_exps.weight", {32, 64, 8}, 2});
    file.tensors.push_back({block + "gate_inp.weight", {64, 8}, 0});
  }
  return file;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_GGUF_FILE_H_
