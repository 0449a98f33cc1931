// Writes a GGUF in the shape of Qwen3-30B-A3B with random weights, fast: experts in q4_0, the rest
// in q8_0 and f32.
//   big_gguf FILE LAYERS SKEW [THREADS [routers]]    routers: of a file that is there, those alone
// The residual stream stays near the token's embedding, whose first element is the same for all
// tokens. Through it routers favour some experts of a layer: SKEW is the standard deviation over
// experts of that favour, in those over tokens of the rest. 0: routing is uniform. Tokens drawn at
// random then hit an LRU cache of 25, 50 and 75 % of a layer's experts in (25, 50, 75) % of cases
// with SKEW 0, in (66, 93, 99) with 1 and in (85, 98, 100) with 1.25.
#include <fcntl.h>
#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kHidden = 2048, kIntermediate = 768, kExperts = 128, kTopK = 8,
                  kVocabulary = 151936, kHead = 128, kHeads = 32, kKvHeads = 4;
constexpr float kCommon = 20;  // first element of every embedding; the others are N(0, 1)

// How the values of a tensor are drawn.
enum class Kind { kOnes, kEmbedding, kRouter, kNormal };

struct Tensor {
  std::string name;
  ggml_type type;
  std::vector<int64_t> shape;
  Kind kind = Kind::kNormal;
  float deviation = 0.02f;
};

std::vector<Tensor> Tensors(int layers) {
  std::vector<Tensor> all = {
      {"token_embd.weight", GGML_TYPE_Q8_0, {kHidden, kVocabulary}, Kind::kEmbedding, 1},
      {"output_norm.weight", GGML_TYPE_F32, {kHidden}, Kind::kOnes},
      {"output.weight", GGML_TYPE_Q8_0, {kHidden, kVocabulary}}};
  for (int l = 0; l < layers; ++l) {
    const auto add = [&](const char* name, ggml_type type, std::vector<int64_t> shape,
                         Kind kind = Kind::kNormal, float deviation = 0.02f) {
      all.push_back({"blk." + std::to_string(l) + "." + name + ".weight", type, std::move(shape),
                     kind, deviation});
    };
    add("attn_norm", GGML_TYPE_F32, {kHidden}, Kind::kOnes);
    add("attn_q", GGML_TYPE_Q8_0, {kHidden, kHeads * kHead});
    add("attn_k", GGML_TYPE_Q8_0, {kHidden, kKvHeads * kHead});
    add("attn_v", GGML_TYPE_Q8_0, {kHidden, kKvHeads * kHead});
    // What layers add is small beside the embedding.
    add("attn_output", GGML_TYPE_Q8_0, {kHeads * kHead, kHidden}, Kind::kNormal, 0.001f);
    add("attn_q_norm", GGML_TYPE_F32, {kHead}, Kind::kOnes);
    add("attn_k_norm", GGML_TYPE_F32, {kHead}, Kind::kOnes);
    add("ffn_norm", GGML_TYPE_F32, {kHidden}, Kind::kOnes);
    add("ffn_gate_inp", GGML_TYPE_F32, {kHidden, kExperts}, Kind::kRouter);
    add("ffn_gate_exps", GGML_TYPE_Q4_0, {kHidden, kIntermediate, kExperts});
    add("ffn_down_exps", GGML_TYPE_Q4_0, {kIntermediate, kHidden, kExperts}, Kind::kNormal, 0.002f);
    add("ffn_up_exps", GGML_TYPE_Q4_0, {kHidden, kIntermediate, kExperts});
  }
  return all;
}

void SetValues(gguf_context* file, int layers) {
  const auto number = [&](const char* key, int64_t value) {
    gguf_set_val_u32(file, (std::string("qwen3moe.") + key).c_str(), static_cast<uint32_t>(value));
  };
  gguf_set_val_str(file, "general.architecture", "qwen3moe");
  gguf_set_val_str(file, "tokenizer.ggml.model", "no_vocab");
  number("vocab_size", kVocabulary);
  number("block_count", layers);
  number("context_length", 32768);
  number("embedding_length", kHidden);
  number("feed_forward_length", 6144);
  number("expert_feed_forward_length", kIntermediate);
  number("expert_count", kExperts);
  number("expert_used_count", kTopK);
  number("attention.head_count", kHeads);
  number("attention.head_count_kv", kKvHeads);
  number("attention.key_length", kHead);
  number("attention.value_length", kHead);
  gguf_set_val_f32(file, "qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f);
  gguf_set_val_f32(file, "qwen3moe.rope.freq_base", 1e6f);
}

uint64_t Next(uint64_t* state) {
  uint64_t x = *state;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return *state = x;
}

// Rows of a tensor, quantized blocks with random bits and one scale each.
class Filler {
 public:
  Filler(const Tensor& tensor, float skew, uint64_t seed)
      : tensor_(tensor), skew_(skew), state_(seed * 0x9e3779b97f4a7c15 + 1), random_(seed) {}

  void Fill(int64_t count, std::vector<char>* out) {
    const int64_t columns = tensor_.shape[0];
    out->resize(ggml_row_size(tensor_.type, columns) * static_cast<size_t>(count));
    if (tensor_.type == GGML_TYPE_F32) {
      FillFloats(columns, count, reinterpret_cast<float*>(out->data()));
    } else {
      FillBlocks(columns * count, out->data());
      if (tensor_.kind == Kind::kEmbedding) SetCommon(columns, count, out->data());
    }
  }

 private:
  void FillFloats(int64_t columns, int64_t count, float* out) {
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < count; ++r, out += columns) {
      for (int64_t c = 0; c < columns; ++c) {
        out[c] = tensor_.kind == Kind::kOnes ? 1 : tensor_.deviation * normal(random_);
      }
      if (tensor_.kind != Kind::kRouter) continue;
      const float others = tensor_.deviation * std::sqrt(static_cast<float>(columns));
      out[0] = skew_ * others / kCommon * normal(random_);
    }
  }

  // Nibbles and bytes are uniform: their deviations are 4.6 and 73 scales.
  void FillBlocks(int64_t elements, char* out) {
    const bool four = tensor_.type == GGML_TYPE_Q4_0;
    const size_t bytes = ggml_type_size(tensor_.type);
    const ggml_fp16_t scale = ggml_fp32_to_fp16(tensor_.deviation / (four ? 4.6f : 73.0f));
    for (int64_t b = 0; b < elements / 32; ++b, out += bytes) {
      std::memcpy(out, &scale, 2);
      for (size_t at = 2; at < bytes; at += 8) {
        const uint64_t bits = Next(&state_);
        std::memcpy(out + at, &bits, 8);
      }
    }
  }

  // The first block of every row: 127 scales are kCommon, so its others are small.
  void SetCommon(int64_t columns, int64_t count, char* out) {
    const ggml_fp16_t scale = ggml_fp32_to_fp16(kCommon / 127);
    for (int64_t r = 0; r < count; ++r, out += ggml_row_size(tensor_.type, columns)) {
      std::memcpy(out, &scale, 2);
      for (int i = 0; i < 32; ++i) out[2 + i] = static_cast<char>(i == 0 ? 127 : out[2 + i] / 16);
    }
  }

  const Tensor& tensor_;
  const float skew_;
  uint64_t state_;
  std::mt19937_64 random_;
};

struct Task {
  size_t tensor;
  int64_t count;  // rows
  off_t at;
};

bool Write(int fd, const std::vector<char>& bytes, off_t at) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n =
        pwrite(fd, bytes.data() + done, bytes.size() - done, at + static_cast<off_t>(done));
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "big_gguf FILE LAYERS SKEW [THREADS]\n"), 1;
  const int layers = std::atoi(argv[2]);
  const float skew = std::strtof(argv[3], nullptr);
  const int threads = argc > 4 ? std::atoi(argv[4]) : 16;
  const std::vector<Tensor> tensors = Tensors(layers);

  gguf_context* file = gguf_init_empty();
  SetValues(file, layers);
  ggml_context* context =
      ggml_init({tensors.size() * ggml_tensor_overhead() + (1 << 20), nullptr, true});
  for (const Tensor& tensor : tensors) {
    ggml_tensor* t = ggml_new_tensor(context, tensor.type, static_cast<int>(tensor.shape.size()),
                                     tensor.shape.data());
    ggml_set_name(t, tensor.name.c_str());
    gguf_add_tensor(file, t);
  }
  const bool routers = argc > 5;
  if (!routers && !gguf_write_to_file(file, argv[1], /*only_meta=*/true)) return 1;

  constexpr int64_t kPiece = 8 << 20;
  std::vector<Task> tasks;
  const auto data = static_cast<off_t>(gguf_get_meta_size(file));
  off_t end = data;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ggml_tensor* t = ggml_get_tensor(context, tensors[i].name.c_str());
    const auto row = static_cast<int64_t>(ggml_row_size(t->type, t->ne[0]));
    const int64_t rows = ggml_nrows(t), each = std::max<int64_t>(1, kPiece / row);
    const off_t at =
        data + static_cast<off_t>(gguf_get_tensor_offset(file, static_cast<int64_t>(i)));
    for (int64_t r = 0; r < rows && (!routers || tensors[i].kind == Kind::kRouter); r += each) {
      tasks.push_back({i, std::min(each, rows - r), at + static_cast<off_t>(r * row)});
    }
    end = std::max(end, at + static_cast<off_t>(GGML_PAD(rows * row, 32)));
  }
  const int fd = open(argv[1], O_WRONLY);
  if (fd < 0 || ftruncate(fd, end) != 0) return 1;
  std::atomic<size_t> next{0};
  std::atomic<bool> ok{true};
  std::vector<std::thread> workers;
  for (int w = 0; w < threads; ++w) {
    workers.emplace_back([&] {
      std::vector<char> bytes;
      for (size_t i; (i = next++) < tasks.size();) {
        const Task& task = tasks[i];
        Filler(tensors[task.tensor], skew, static_cast<uint64_t>(task.at)).Fill(task.count, &bytes);
        if (!Write(fd, bytes, task.at)) ok = false;
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  close(fd);
  return ok ? 0 : 1;
}
