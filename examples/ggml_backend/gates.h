// Routers of a model, for strategies that predict the next layer's experts: read from its GGUF.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_GATES_H_
#define MOERT_EXAMPLES_GGML_BACKEND_GATES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace moert_ggml {

class Gates {
 public:
  /// Finds the routers ("blk.3.ffn_gate_inp.weight") in one of a model's files; what cannot be read
  /// is left out.
  void Find(const std::string& path);

  /// Whether the block's router is there, with this shape.
  bool Has(int block, int64_t hidden, int64_t experts) const;
  /// [experts, hidden]. False: the file cannot be read any more.
  bool Read(int block, float* out) const;
  /// Experts a token uses; 0: not said.
  int top_k() const { return top_k_; }

 private:
  struct Gate {
    std::string path;
    int64_t offset = 0;
    int type = 0;  // ggml_type
    int64_t hidden = 0, experts = 0;
  };

  std::set<std::string> seen_;
  std::map<int, Gate> gates_;
  int top_k_ = 0;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_GATES_H_
