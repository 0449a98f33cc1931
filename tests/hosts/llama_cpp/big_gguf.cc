// Writes a GGUF in the shape of Qwen3-30B-A3B with random weights, fast: experts in q4_0, the rest
// in q8_0 and f32.
//   g++ -std=c++20 -O2 -IGGML/include big_gguf.cc made_model.cc -LLIBRARIES -lggml-base -lpthread
//   big_gguf FILE LAYERS recorded|uniform|SKEW [THREADS [WORD ...]]
// Words: q4_k_m, mxfp4 or bf16, of experts; gpt-oss, the shape of gpt-oss-20b, in mxfp4;
// gpt-oss-120b; deepseek-v3, the shape of its experts; routers, of a file that is there, those
// alone. `recorded` routes as trained models were recorded to (made_model.h); `uniform` is the hard
// case.
#include <fcntl.h>
#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "made_model.h"

namespace {

using made::Shape;
using made::Tensor;

ggml_type GgmlOf(made::Type type) {
  switch (type) {
    case made::Type::kF32:
      return GGML_TYPE_F32;
    case made::Type::kQ8:
      return GGML_TYPE_Q8_0;
    case made::Type::kQ4:
      return GGML_TYPE_Q4_0;
    case made::Type::kQ4K:
      return GGML_TYPE_Q4_K;
    case made::Type::kQ6K:
      return GGML_TYPE_Q6_K;
    case made::Type::kBf16:
      return GGML_TYPE_BF16;
    default:
      return GGML_TYPE_MXFP4;
  }
}

// Bytes, and words that no text has: a server takes every text.
void SetVocabulary(gguf_context* file, int64_t size) {
  constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6;  // llama.cpp's numbers
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> kinds = {kUnknown, kControl, kControl};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
    tokens.emplace_back(text);
  }
  kinds.resize(tokens.size(), kByte);
  while (std::ssize(tokens) < size) tokens.push_back("word" + std::to_string(tokens.size()));
  kinds.resize(tokens.size(), kNormal);
  std::vector<const char*> texts;
  for (const std::string& token : tokens) texts.push_back(token.c_str());
  const std::vector<float> scores(tokens.size());
  gguf_set_val_str(file, "tokenizer.ggml.model", "llama");
  gguf_set_arr_str(file, "tokenizer.ggml.tokens", texts.data(), texts.size());
  gguf_set_arr_data(file, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
  gguf_set_arr_data(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, kinds.data(), kinds.size());
  gguf_set_val_u32(file, "tokenizer.ggml.bos_token_id", 1);
  gguf_set_val_u32(file, "tokenizer.ggml.eos_token_id", 2);
}

void SetValues(const Shape& of, gguf_context* file, int layers) {
  const auto key = [&](const char* name) { return std::string(of.architecture) + "." + name; };
  const auto number = [&](const char* name, int64_t value) {
    gguf_set_val_u32(file, key(name).c_str(), static_cast<uint32_t>(value));
  };
  gguf_set_val_str(file, "general.architecture", of.architecture);
  SetVocabulary(file, of.vocabulary);
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

struct Task {
  size_t tensor;
  int64_t first, count;  // rows
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
  if (argc < 4) {
    return std::fprintf(stderr,
                        "big_gguf FILE LAYERS recorded|uniform|SKEW [THREADS [WORD ...]]\n"),
           1;
  }
  const int layers = std::atoi(argv[2]);
  made::Routing routing = made::kRecorded;
  if (std::string(argv[3]) != "recorded") routing.skew = std::strtof(argv[3], nullptr);
  const int threads = argc > 4 ? std::atoi(argv[4]) : 16;
  Shape shape;
  bool routers = false;
  for (int i = 5; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "gpt-oss") shape = made::GptOss();
    if (word == "gpt-oss-120b") shape = made::GptOss(128);
    if (word == "deepseek-v3") shape = made::DeepSeekV3Experts();
    if (word == "q4_k_m") shape.type = made::Type::kQ4K;
    if (word == "mxfp4") shape.type = made::Type::kMxfp4;
    if (word == "bf16") shape.type = made::Type::kBf16;
    if (word == "routers") routers = true;
  }
  const std::vector<Tensor> tensors = made::Tensors(shape, layers, routing);

  gguf_context* file = gguf_init_empty();
  SetValues(shape, file, layers);
  ggml_context* context =
      ggml_init({tensors.size() * ggml_tensor_overhead() + (1 << 20), nullptr, true});
  for (const Tensor& tensor : tensors) {
    ggml_tensor* t = ggml_new_tensor(context, GgmlOf(tensor.type),
                                     static_cast<int>(tensor.shape.size()), tensor.shape.data());
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
    for (int64_t r = 0; r < rows && (!routers || tensors[i].kind == made::Kind::kRouter);
         r += each) {
      tasks.push_back({i, r, std::min(each, rows - r), at + static_cast<off_t>(r * row)});
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
        made::Filler(tensors[task.tensor], static_cast<uint64_t>(task.at))
            .Fill(task.first, task.count, &bytes);
        if (!Write(fd, bytes, task.at)) ok = false;
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  close(fd);
  return ok ? 0 : 1;
}
