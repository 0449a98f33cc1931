// Writes a GGUF in the shape of Qwen3-30B-A3B with random weights, fast: experts in q4_0, the rest
// in q8_0 and f32.
//   big_gguf FILE LAYERS SKEW [THREADS [WORD ...]]
// Words: mxfp4, the experts' format; gpt-oss, the shape of gpt-oss-20b, in mxfp4; routers, of a
// file that is there, those alone.
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

struct Shape {
  const char* architecture = "qwen3moe";
  int64_t hidden = 2048, intermediate = 768, experts = 128, top_k = 8;
  int64_t vocabulary = 151936, head = 128, heads = 32, kv_heads = 4;
  ggml_type type = GGML_TYPE_Q4_0;  // of the experts
  bool gpt_oss = false;
};
Shape GptOss() {
  Shape shape{"gpt-oss", 2880, 2880, 32, 4, 201088, 64, 64, 8, GGML_TYPE_MXFP4, true};
  return shape;
}
constexpr float kCommon = 20;  // first element of every embedding; the others are N(0, 1)

// How the values of a tensor are drawn.
enum class Kind { kOnes, kZeros, kEmbedding, kRouter, kNormal };

struct Tensor {
  std::string name;
  ggml_type type;
  std::vector<int64_t> shape;
  Kind kind = Kind::kNormal;
  float deviation = 0.02f;
};

std::vector<Tensor> Tensors(const Shape& of, int layers) {
  std::vector<Tensor> all = {
      {"token_embd.weight", GGML_TYPE_Q8_0, {of.hidden, of.vocabulary}, Kind::kEmbedding, 1},
      {"output_norm.weight", GGML_TYPE_F32, {of.hidden}, Kind::kOnes},
      {"output.weight", GGML_TYPE_Q8_0, {of.hidden, of.vocabulary}}};
  for (int l = 0; l < layers; ++l) {
    const std::string block = "blk." + std::to_string(l) + ".";
    const auto add = [&](const char* name, ggml_type type, std::vector<int64_t> shape,
                         Kind kind = Kind::kNormal, float deviation = 0.02f) {
      all.push_back({block + name + ".weight", type, std::move(shape), kind, deviation});
    };
    const auto add_bias = [&](const char* name, std::vector<int64_t> shape) {
      if (!of.gpt_oss) return;
      all.push_back({block + name + ".bias", GGML_TYPE_F32, std::move(shape), Kind::kZeros});
    };
    const auto add_both = [&](const char* name, ggml_type type, int64_t columns, int64_t rows,
                              int64_t of_them, float deviation) {
      const bool one = of_them == 1;
      add(name, type,
          one ? std::vector<int64_t>{columns, rows} : std::vector<int64_t>{columns, rows, of_them},
          Kind::kNormal, deviation);
      add_bias(name, one ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, of_them});
    };
    add("attn_norm", GGML_TYPE_F32, {of.hidden}, Kind::kOnes);
    add_both("attn_q", GGML_TYPE_Q8_0, of.hidden, of.heads * of.head, 1, 0.02f);
    add_both("attn_k", GGML_TYPE_Q8_0, of.hidden, of.kv_heads * of.head, 1, 0.02f);
    add_both("attn_v", GGML_TYPE_Q8_0, of.hidden, of.kv_heads * of.head, 1, 0.02f);
    // What layers add is small beside the embedding.
    add_both("attn_output", GGML_TYPE_Q8_0, of.heads * of.head, of.hidden, 1, 0.001f);
    if (of.gpt_oss) {
      add("attn_sinks", GGML_TYPE_F32, {of.heads}, Kind::kZeros);
      add("post_attention_norm", GGML_TYPE_F32, {of.hidden}, Kind::kOnes);
    } else {
      add("attn_q_norm", GGML_TYPE_F32, {of.head}, Kind::kOnes);
      add("attn_k_norm", GGML_TYPE_F32, {of.head}, Kind::kOnes);
      add("ffn_norm", GGML_TYPE_F32, {of.hidden}, Kind::kOnes);
    }
    add("ffn_gate_inp", GGML_TYPE_F32, {of.hidden, of.experts}, Kind::kRouter);
    add_bias("ffn_gate_inp", {of.experts});
    add_both("ffn_gate_exps", of.type, of.hidden, of.intermediate, of.experts, 0.02f);
    add_both("ffn_down_exps", of.type, of.intermediate, of.hidden, of.experts, 0.002f);
    add_both("ffn_up_exps", of.type, of.hidden, of.intermediate, of.experts, 0.02f);
  }
  return all;
}

void SetValues(const Shape& of, gguf_context* file, int layers) {
  const auto key = [&](const char* name) { return std::string(of.architecture) + "." + name; };
  const auto number = [&](const char* name, int64_t value) {
    gguf_set_val_u32(file, key(name).c_str(), static_cast<uint32_t>(value));
  };
  gguf_set_val_str(file, "general.architecture", of.architecture);
  gguf_set_val_str(file, "tokenizer.ggml.model", "no_vocab");
  number("vocab_size", of.vocabulary);
  number("block_count", layers);
  number("context_length", 32768);
  number("embedding_length", of.hidden);
  number("feed_forward_length", of.gpt_oss ? of.intermediate : 6144);
  number("expert_feed_forward_length", of.intermediate);
  number("expert_count", of.experts);
  number("expert_used_count", of.top_k);
  number("attention.head_count", of.heads);
  number("attention.head_count_kv", of.kv_heads);
  number("attention.key_length", of.head);
  number("attention.value_length", of.head);
  if (of.gpt_oss) number("attention.sliding_window", 128);
  gguf_set_val_f32(file, key("attention.layer_norm_rms_epsilon").c_str(), 1e-6f);
  gguf_set_val_f32(file, key("rope.freq_base").c_str(), 1e6f);
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
        out[c] = tensor_.kind == Kind::kOnes    ? 1
                 : tensor_.kind == Kind::kZeros ? 0
                                                : tensor_.deviation * normal(random_);
      }
      if (tensor_.kind != Kind::kRouter) continue;
      const float others = tensor_.deviation * std::sqrt(static_cast<float>(columns));
      out[0] = skew_ * others / kCommon * normal(random_);
    }
  }

  // Nibbles and bytes are uniform: their deviations are 4.6 and 73 scales, and 2.9 in MXFP4.
  void FillBlocks(int64_t elements, char* out) {
    if (tensor_.type == GGML_TYPE_MXFP4) return FillMxfp4(elements, out);
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

  // A scale of one byte, a power of two, and 16 of nibbles.
  void FillMxfp4(int64_t elements, char* out) {
    const auto scale = static_cast<char>(127 + std::lround(std::log2(tensor_.deviation / 2.9f)));
    for (int64_t b = 0; b < elements / 32; ++b, out += 17) {
      out[0] = scale;
      for (int at = 1; at < 17; at += 8) {
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
  if (argc < 4) return std::fprintf(stderr, "big_gguf FILE LAYERS SKEW [THREADS [WORD ...]]\n"), 1;
  const int layers = std::atoi(argv[2]);
  const float skew = std::strtof(argv[3], nullptr);
  const int threads = argc > 4 ? std::atoi(argv[4]) : 16;
  Shape shape;
  bool routers = false;
  for (int i = 5; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "gpt-oss") shape = GptOss();
    if (word == "mxfp4") shape.type = GGML_TYPE_MXFP4;
    if (word == "routers") routers = true;
  }
  const std::vector<Tensor> tensors = Tensors(shape, layers);

  gguf_context* file = gguf_init_empty();
  SetValues(shape, file, layers);
  ggml_context* context =
      ggml_init({tensors.size() * ggml_tensor_overhead() + (1 << 20), nullptr, true});
  for (const Tensor& tensor : tensors) {
    ggml_tensor* t = ggml_new_tensor(context, tensor.type, static_cast<int>(tensor.shape.size()),
                                     tensor.shape.data());
    ggml_set_name(t, tensor.name.c_str());
    gguf_add_tensor(file, t);
  }
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
