#include "token_graphs.h"

#include <algorithm>

namespace moert_ggml {

int64_t TokenGraphs::MostTokens(ggml_type type, bool turing) {
  constexpr int64_t kAny = 4, kUsual = 8;
  if (!turing) return kAny;
  switch (type) {
    case GGML_TYPE_Q4_0:
    case GGML_TYPE_Q4_1:
    case GGML_TYPE_Q5_0:
    case GGML_TYPE_Q5_1:
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
    case GGML_TYPE_Q6_K:
      return kUsual;
    default:
      return kAny;
  }
}

void TokenGraphs::Begin(uint64_t uid) {
  if (uid != uid_) {
    Drop();
    ran_ = {};
  }
  uid_ = uid;
  fits_ = uid != 0 && uid != refused_;
  calls_ = 0;
  model_ = nullptr;
  layers_.clear();
}

void TokenGraphs::Add(Model* model, int layer, int64_t tokens, bool shares) {
  // A step of the store is one pass of the same tokens over its layers.
  fits_ = fits_ &&
          (layers_.empty() || (model == model_ && tokens == tokens_ && layer > layers_.back()));
  model_ = model;
  tokens_ = tokens;
  layers_.push_back(layer);
  ran_[shares ? 1 : 0] = true;
}

void* TokenGraphs::Find(bool shares, int64_t generation) {
  if (generation != generation_) {
    Drop();
    ran_ = {};  // the device gets the slots again when the graph is computed by itself
  }
  generation_ = generation;
  return recordings_[shares ? 1 : 0];
}

void TokenGraphs::Drop() {
  if (std::any_of(recordings_.begin(), recordings_.end(), [](void* r) { return r != nullptr; })) {
    stream_->Synchronize();  // one may be running
  }
  for (void*& recording : recordings_) {
    if (recording != nullptr) stream_->Drop(recording);
    recording = nullptr;
  }
}

}  // namespace moert_ggml
