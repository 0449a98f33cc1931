// Whole graphs of a few tokens: recorded, and replayed in one launch.
#include <ggml-impl.h>

#include <exception>
#include <mutex>
#include <string>

#include "gpu_runner.h"

namespace moert_ggml {
namespace {

// Sets a flag for its own lifetime.
class Raised {
 public:
  explicit Raised(bool* flag) : flag_(flag) { *flag_ = true; }
  ~Raised() { *flag_ = false; }

 private:
  bool* const flag_;
};

}  // namespace

bool GpuRunner::TakeWholeGraphs() {
  tokens_ = std::make_unique<TokenGraphs>(gpu_->stream());
  return FindBackend();
}

void GpuRunner::NoteServed(const ggml_cgraph* graph, const Piece& piece, bool shares) {
  const int64_t tokens = piece.ids->ne[1];
  if (tokens_ == nullptr || recording_) return;
  for (int i = 0; i < graph->n_nodes; ++i) {
    const ggml_tensor* node = graph->nodes[i];
    if (node->op != GGML_OP_MUL_MAT_ID) continue;
    const ggml_type type = node->src[0]->type;
    if (!ggml_is_quantized(type)) return;
    if (tokens > TokenGraphs::MostTokens(type, gpu_->stream()->turing())) return;
  }
  tokens_->Add(piece.experts->model, piece.experts->layer, tokens, shares);
}

ggml_status GpuRunner::ComputeKnown(ggml_cgraph* graph) {
  void* recording = nullptr;
  bool shares = false;
  if (const auto begun = BeginKnown(&recording, &shares); begun != GGML_STATUS_SUCCESS) {
    return begun;
  }
  if (recording == nullptr && tokens_->Ran(shares)) {
    recording = Record(graph);
    tokens_->Keep(shares, recording);
  }
  if (recording == nullptr) {
    tokens_->Begin(graph->uid);
    const Raised counted(&counted_);
    return ComputePieces(graph);
  }
  const bool launched = gpu_->stream()->Follow(cuda_) && gpu_->stream()->Replay(recording) &&
                        gpu_->stream()->Lead(cuda_);
  const std::lock_guard<std::mutex> lock(tokens_->model()->mutex());
  if (Store* store = tokens_->model()->store(); store != nullptr) store->EndRecorded();
  if (!launched) Say("%s: the driver refuses a recorded graph", tokens_->model()->stem().c_str());
  return launched ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
}

ggml_status GpuRunner::BeginKnown(void** recording, bool* shares) {
  Model* const model = tokens_->model();
  const std::lock_guard<std::mutex> lock(model->mutex());
  Store* const store = model->store();
  const auto fail = [model](const char* error) {
    Say("%s: %s", model->stem().c_str(), error);
    return GGML_STATUS_FAILED;
  };
  if (store == nullptr || !store->on_device()) return fail(kNotOnGpu);
  const int64_t tokens = tokens_->tokens();
  for (const int layer : tokens_->layers()) model->Count(layer, tokens);
  store->BeginCall(/*layer=*/0, tokens);
  *shares = store->product(tokens) != nullptr;
  std::string error;
  const Store::Result begun = store->BeginRecorded(tokens, &error);
  *recording = tokens_->Find(*shares, store->generation());
  return begun == Store::Result::kFailed ? fail(error.c_str()) : GGML_STATUS_SUCCESS;
}

void* GpuRunner::Record(ggml_cgraph* graph) {
  CudaStream* const stream = gpu_->stream();
  void* recording = nullptr;
  if (stream->BeginRecording()) {
    const bool done = ComputeForRecord(graph);
    recording = stream->EndRecording();
    if (!done && recording != nullptr) {
      stream->Drop(recording);
      recording = nullptr;
    }
  }
  if (recording == nullptr) tokens_->Refuse();
  return recording;
}

// CUDA's stream takes part from the Lead on, until the recording ends. After a failure it must not
// be given any more work.
bool GpuRunner::ComputeForRecord(ggml_cgraph* graph) try {
  const Raised recording(&recording_);
  return gpu_->stream()->Lead(cuda_) && ComputePieces(graph) == GGML_STATUS_SUCCESS &&
         gpu_->stream()->Follow(cuda_);
} catch (const std::exception&) {  // no memory
  return false;
}

// ggml's CUDA backend makes graphs of its own of what it is given twice, which is not possible
// within a recording. So it gets nothing twice.
ggml_status GpuRunner::LaunchApart(ggml_cgraph* graph) {
  apart_.type = GGML_TYPE_F32;
  apart_.op = GGML_OP_NONE;
  ++apart_.op_params[0];
  nodes_.assign(1, &apart_);
  nodes_.insert(nodes_.end(), graph->nodes, graph->nodes + graph->n_nodes);
  ggml_cgraph apart = *graph;
  apart.nodes = nodes_.data();
  apart.n_nodes = static_cast<int>(nodes_.size());
  return ggml_backend_graph_compute_async(cuda_, &apart);
}

}  // namespace moert_ggml
