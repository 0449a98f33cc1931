// The tensors of a made-up model and their random values, without ggml: big_gguf.cc writes them,
// and made_model_test.cc runs them on the CPU.
//
// Routers see what trained ones see. Every layer adds so much to the residual stream that the input
// of the next gate has turned by `change`, and the first element of every embedding, the same for
// all tokens and never added to, makes routers favour some experts by `skew`.
//
// | means over layers | next gate on this input | LRU hits, 25, 50, 75 % of a layer's experts |
// | tiny-moe, recorded | 82 % | 55, 83, 96 % |
// | small-moe, recorded | 79 % | 60, 87, 97 % |
// | kRecorded | 80 % | 57, 87, 97 % |
// | skew 0, uniform | 75 % | 23, 49, 74 % |
// The second column: of the experts that a layer chooses, those that its gate names on the input of
// the layer before.
#ifndef TESTS_HOSTS_LLAMA_CPP_MADE_MODEL_H_
#define TESTS_HOSTS_LLAMA_CPP_MADE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace made {

struct Routing {
  float skew = 0;       // deviation of an expert's favour, over that of the rest of its logits
  float change = 0.2f;  // norm of what a layer adds, over that of the residual stream
};
inline constexpr Routing kRecorded{.skew = 0.8f};

enum class Type { kF32, kQ8, kQ4, kQ4K, kQ6K, kMxfp4, kBf16 };

struct Shape {
  const char* architecture = "qwen3moe";
  int64_t hidden = 2048, intermediate = 768, experts = 128, top_k = 8;
  int64_t vocabulary = 151936, head = 128, heads = 32, kv_heads = 4;
  Type type = Type::kQ4;  // of the experts; kQ4K: of some layers' down projections kQ6K, as Q4_K_M
  bool gpt_oss = false;
};
Shape GptOss(int64_t experts = 32);  // 128: of gpt-oss-120b
Shape DeepSeekV3Experts();           // and their router, in qwen3moe's decoder

inline constexpr float kCommon = 20;  // first element of every embedding; the others are N(0, 1)

// How the values of a tensor are drawn. Additions to the residual stream leave its first element
// alone.
enum class Kind { kOnes, kZeros, kEmbedding, kRouter, kAdded, kNormal };

struct Tensor {
  std::string name;
  Type type;
  std::vector<int64_t> shape;  // columns first
  Kind kind = Kind::kNormal;
  float deviation = 0.02f;
  float common = 0;  // of a router: deviation of its first column
};

std::vector<Tensor> Tensors(const Shape& shape, int layers, const Routing& routing);

size_t RowBytes(Type type, int64_t columns);

// Values of a tensor's rows from `first` on. Quantized blocks have random bits and one scale each.
class Filler {
 public:
  Filler(const Tensor& tensor, uint64_t seed);

  void Fill(int64_t first, int64_t count, std::vector<char>* out);

 private:
  void FillFloats(int64_t count, float* out);
  void FillBlocks(std::vector<char>* out);
  void FillBf16(float scale, size_t bytes, char* out);
  void SetCommon(int64_t count, char* out) const;
  void ClearFirst(int64_t first, int64_t count, char* out) const;

  const Tensor& tensor_;
  uint64_t state_;
  std::mt19937_64 random_;
};

}  // namespace made

#endif  // TESTS_HOSTS_LLAMA_CPP_MADE_MODEL_H_
