// A GGUF model's experts and routers, read from its files before and while llama.cpp loads them.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_GGUF_MODEL_H_
#define MOERT_EXAMPLES_GGML_BACKEND_GGUF_MODEL_H_

#include <ggml.h>
#include <moert.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace moert_ggml {

/// A tensor in a file: experts, or a router.
struct GgufTensor {
  std::string path;
  int64_t offset = 0;
  ggml_type type = GGML_TYPE_F32;
  int64_t ne[3] = {};
  int64_t bytes = 0;
};

/// One model in one file, or in several.
class GgufModel {
 public:
  /// Reads one file; tensors that cannot be read are left out.
  static GgufModel Read(const std::string& path);
  /// The models whose files this process has open, as llama.cpp has them while it loads one.
  static std::vector<std::shared_ptr<const GgufModel>> Open();

  /// The path of its first file.
  const std::string& path() const { return path_; }
  bool HasFile(const std::string& path) const;
  /// By name; null: it is not there.
  const GgufTensor* Find(const std::string& name) const;
  /// The bytes of all tensors of experts.
  int64_t expert_bytes() const { return expert_bytes_; }
  int64_t file_bytes() const { return file_bytes_; }

  /// Experts that a token uses in a block; 0: unknown.
  int UsedExperts(int block) const;
  /// Whether UsedExperts differs from block to block.
  bool used_by_block() const { return used_.size() > 1; }
  /// Stores in `spec` how the router of a block chooses (kind, groups, biases) if the library
  /// supports it. MOERT_ROUTING_EXTERNAL: unknown or not supported.
  void Route(int block, moert_layer_spec* spec) const;
  /// Reads a router's tensor as floats: MOERT_PART_ROUTER, _SELECTION_BIAS or _LOGIT_BIAS. False:
  /// the file cannot be read any more.
  bool ReadRouter(int block, int32_t part, float* out) const;

 private:
  /// A file of a split model, in the order of their numbers.
  struct File {
    std::string path;
    int number = 0, count = 1;  // "split.no" of "split.count"
    int64_t tensors = 0;        // of all files
  };

  void Add(const std::string& path);
  bool Joins(const GgufModel& other) const;
  void Join(const GgufModel& other);

  std::vector<File> files_;
  std::string path_;
  std::string architecture_;
  std::vector<int64_t> used_;  // of all blocks, or of each
  int gating_ = 0;             // llama.cpp's number; 0: not said
  int groups_ = 1, top_groups_ = 1;
  int64_t expert_bytes_ = 0, file_bytes_ = 0;
  std::map<std::string, GgufTensor> tensors_;
};

/// Block of "blk.3.ffn_up_exps.weight": 3; -1: not a tensor of experts.
int BlockOfExperts(const char* name);
/// Whether a name is that of per-expert factors: "blk.3.ffn_up_exps.scale".
bool AreFactorsOfExperts(const char* name);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_GGUF_MODEL_H_
