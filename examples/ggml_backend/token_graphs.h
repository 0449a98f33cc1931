// Recordings (CUDA graphs) of whole graphs of a few tokens: one launch in place of several for each
// layer. A graph of llama.cpp is computed once by itself, then recorded, then replayed for as long
// as llama.cpp reuses it.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_TOKEN_GRAPHS_H_
#define MOERT_EXAMPLES_GGML_BACKEND_TOKEN_GRAPHS_H_

#include <ggml-backend-impl.h>

#include <array>
#include <cstdint>
#include <vector>

#include "cuda_stream.h"
#include "models.h"

namespace moert_ggml {

/// One thread at a time.
class TokenGraphs {
 public:
  explicit TokenGraphs(CudaStream* stream) : stream_(stream) {}
  ~TokenGraphs() { Drop(); }
  TokenGraphs(const TokenGraphs&) = delete;
  TokenGraphs& operator=(const TokenGraphs&) = delete;

  // A graph that is computed by itself.

  /// It begins.
  void Begin(uint64_t uid);
  /// One of its layer calls begins.
  void Call() { ++calls_; }
  /// Most tokens of a recorded product over experts of this quantized type: up to here ggml's CUDA
  /// kernels do not wait for the host, however ggml was built (its get_mmvq_mmid_max_batch).
  static int64_t MostTokens(ggml_type type, bool turing);
  /// The layer call is such that it can be recorded: the host had no part in it.
  void Add(Model* model, int layer, int64_t tokens, bool shares);

  // The same graph again.

  /// Whether it can be recorded and replayed.
  bool Knows(uint64_t uid) const {
    return uid == uid_ && fits_ && calls_ > 0 && calls_ == layers_.size();
  }
  /// It cannot be recorded after all.
  void Refuse() { refused_ = uid_; }
  Model* model() const { return model_; }
  int64_t tokens() const { return tokens_; }
  const std::vector<int>& layers() const { return layers_; }
  /// Whether it has run in this way before, so that all its kernels are loaded.
  bool Ran(bool shares) const { return ran_[shares ? 1 : 0]; }
  /// Its recording; null: there is none. Drops those of another generation (Store::generation).
  void* Find(bool shares, int64_t generation);
  void Keep(bool shares, void* recording) { recordings_[shares ? 1 : 0] = recording; }
  /// Drops all recordings.
  void Drop();

 private:
  CudaStream* const stream_;
  uint64_t uid_ = 0, refused_ = 0;
  bool fits_ = false;
  size_t calls_ = 0;
  Model* model_ = nullptr;
  int64_t tokens_ = 0;
  std::vector<int> layers_;  // of the model's store, as they were called
  int64_t generation_ = 0;
  std::array<bool, 2> ran_{};
  std::array<void*, 2> recordings_{};
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_TOKEN_GRAPHS_H_
