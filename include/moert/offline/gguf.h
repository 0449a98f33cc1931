// The header of a GGUF file: what `doctor` has to know to tell how the model fits. Weights are not
// read; in llama.cpp the plug-in runs them (docs/guide/llama-cpp.md).
#ifndef MOERT_OFFLINE_GGUF_H_
#define MOERT_OFFLINE_GGUF_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/tools/env.h"

namespace moert {

struct GgufTensor {
  std::string name = {};
  std::string type = {};            // as ggml calls it: "Q4_K", "MXFP4", ...
  std::vector<int64_t> shape = {};  // fastest dimension first
  int64_t bytes = 0;
};

/// 0 and empty: the file does not say.
struct GgufInfo {
  std::string architecture = {}, name = {};
  int64_t layers = 0, hidden = 0, context = 0;
  int64_t experts = 0, experts_used = 0, expert_width = 0;
  int64_t heads = 0, kv_heads = 0, key_length = 0, value_length = 0;
  int64_t kv_rank = 0;  // latent attention: channels kept a position, beside the rotated key
  int files = 1;
  std::vector<GgufTensor> tensors = {};  // of all files

  /// Whether a tensor holds routed experts.
  static bool IsExpert(const GgufTensor& tensor);
};

/// Reads `path` and, of a split model (NAME-00001-of-00003.gguf), the files beside it. Everything
/// is checked against the files' real sizes; errors name file, field and legal range.
absl::StatusOr<GgufInfo> ReadGguf(const std::string& path, Env* env = Env::Default());

}  // namespace moert

#endif  // MOERT_OFFLINE_GGUF_H_
