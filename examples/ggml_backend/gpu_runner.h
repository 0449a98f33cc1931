// Computes our part of a graph on the GPU, in the order of the context's own CUDA backend. The
// graph runs as llama.cpp made it, with slots in place of the tensors of all experts: the same
// kernels run as if the experts were on the GPU.
//
// A runner that takes whole graphs also gets the nodes around the experts. It records graphs of a
// few tokens (token_graphs.h), and replays them.
//
// A few tokens: the device looks their experts up and loads the missing ones without a wait on the
// host. Many tokens: layers stream through the GPU. In between, the host reads the ids. Experts
// that do not fit in the slots together are loaded outside of the cache. If the host has the ids,
// it computes experts itself that the link would bring too late.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_GPU_RUNNER_H_
#define MOERT_EXAMPLES_GGML_BACKEND_GPU_RUNNER_H_

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu.h"
#include "input_use.h"
#include "layer_call.h"
#include "models.h"
#include "prompt_job.h"
#include "runner.h"
#include "token_graphs.h"
#include "worker.h"
#include "workspace.h"

namespace moert_ggml {

/// Whether CUDA would launch anything for these nodes.
bool AnyWork(const ggml_cgraph* graph, int begin, int end);

inline constexpr char kNoStreamOrder[] = "the driver refuses to order streams";
inline constexpr char kNotOnGpu[] =
    "its experts are not on the GPU, as they were when the context was made";

class GpuRunner final : public Worker {
 public:
  explicit GpuRunner(Gpu* gpu);
  ~GpuRunner() override;

  /// Call it before the first Compute. False: CUDA's backend cannot be made.
  bool TakeWholeGraphs();
  /// The CUDA backend that computes; null before the first Compute.
  ggml_backend_t cuda() const { return cuda_; }

  ggml_status Compute(ggml_cgraph* graph) override;
  void Synchronize() override;
  void Plan(const ggml_cgraph* part) override;
  bool BeginCopy(ggml_backend_t from, const ggml_tensor* tensor, ggml_tensor* copy) override;

 private:
  // Nodes of a graph that contain products of at most one layer, all by the same ids.
  struct Piece {
    int begin = 0;
    int first = -1;  // product; -1: none
    ExpertTensor* experts = nullptr;
    ggml_tensor* ids = nullptr;
  };

  // Finds the CUDA backend that orders all work. False: there is none.
  bool FindBackend();
  void UseBackend(ggml_backend_t cuda);

  // Makes the copies of inputs that were skipped because the part was to read the originals.
  void MakeSkippedCopies();
  // A graph that tokens_ knows: replays its recording, which is made if there is none.
  ggml_status ComputeKnown(ggml_cgraph* graph);
  // Does what layer calls do on the host. *recording null: the graph is to be computed by itself.
  ggml_status BeginKnown(void** recording, bool* shares);
  // Null: the graph cannot be recorded (tokens_ knows it no more).
  void* Record(ggml_cgraph* graph);
  bool ComputeForRecord(ggml_cgraph* graph);
  ggml_status LaunchApart(ggml_cgraph* graph);
  // After a layer call in slots.
  void NoteServed(const ggml_cgraph* graph, const Piece& piece, bool shares);

  ggml_status ComputePieces(ggml_cgraph* graph);
  ggml_status ComputePiece(ggml_cgraph* graph, Piece piece, int end);
  ggml_status RunLayer(ggml_cgraph* graph, const Piece& piece);
  // Computes the piece with experts outside of the cache: all experts of the layer for a batch that
  // streams layers, else those that the ids name. *staged false: they cannot be loaded there
  // (reported), and nothing was done.
  ggml_status RunStreamed(ggml_cgraph* graph, const Piece& piece, Store* store, bool* staged);
  ggml_status RunBeside(ggml_cgraph* graph, const Piece& piece, Store* store, bool* staged);
  // *for_gpu: the named experts; those that the CPU takes are moved from it to job_. False: the CPU
  // takes none.
  bool Share(const LayerCall& call, Store* store, bool streams, std::vector<int32_t>* for_gpu);
  // `shares`: computes all pairs but those of job_.
  ggml_status LaunchStaged(ggml_cgraph* graph, const Piece& piece, Store* store,
                           std::span<const int32_t> experts, bool shares, bool streams,
                           bool* staged);
  ggml_status LaunchBehindCpu(ggml_cgraph* rest, const Piece& piece, Store* store,
                              const ggml_tensor* out);
  void StageNext(const Piece& piece, Store* store);
  // Reads the ids into generic_ after all earlier work. False: unreadable, or an id is out of
  // range.
  bool ReadIds(ggml_cgraph* graph, const Piece& piece);
  // *too_many: the experts do not fit at once, and nothing was done.
  ggml_status RunInSlots(ggml_cgraph* graph, const Piece& piece, Store* store, bool* too_many);
  ggml_status RunServed(ggml_cgraph* graph, const Piece& piece, Store* store, bool* too_many);
  ggml_status RunNamed(ggml_cgraph* graph, const Piece& piece, Store* store, bool* too_many);
  // Reports why there are no slots.
  ggml_status NotFetched(const Piece& piece, Store::Result result, const std::string& error,
                         bool* too_many);
  // Launches the products, then the rows of them that the CPU has computed, then the nodes after
  // them.
  ggml_status LaunchShared(ggml_cgraph* graph, const Piece& piece, const LayerCall& call,
                           Store* store);
  void LeaveSlots(Store* store);
  ggml_status LaunchInSlots(ggml_cgraph* graph, const moert_slots& slots, ggml_tensor* ids,
                            Store* store);
  ggml_status Launch(ggml_cgraph* graph);
  // Nodes behind products, if there is anything to compute.
  ggml_status LaunchRest(ggml_cgraph* rest);
  ggml_status Fail(const Piece& piece, const std::string& error);

  // Sources of nodes are replaced while a graph is launched. The replacing tensors live as long as
  // this object, because CUDA identifies graphs by addresses.
  void Replace(ggml_tensor** source, ggml_tensor* by);
  void Restore();
  // Replaces inputs that were not copied, and weights beside the experts (such as their biases)
  // that are in our buffers.
  bool ReplaceSources(ggml_cgraph* graph);
  ggml_tensor* OnDevice(ggml_tensor* weight);
  void ReplaceExperts(ggml_cgraph* graph, const moert_slots& slots, ggml_tensor* ids);
  ggml_tensor* SlotIds(int64_t top_k, int64_t tokens);
  // The ids, packed, in the order of the GPU's stream; null: not available.
  const int32_t* PackedIds(const ggml_tensor* ids);

  Gpu* const gpu_;
  ggml_backend_t cuda_ = nullptr;  // the context's, or own_
  ggml_backend_t own_ = nullptr;
  std::unique_ptr<Runner> generic_;  // over cuda_: parts that do not fit at once
  Workspace kept_;
  Workspace host_;  // of the host, pinned: ids on their way
  PromptJob job_;
  std::vector<std::pair<ggml_tensor**, ggml_tensor*>> replaced_;
  InputUse inputs_;
  bool watched_ = false;                 // an evaluation callback reads what nodes compute
  std::unique_ptr<TokenGraphs> tokens_;  // of whole graphs; else null
  bool counted_ = false;                 // BeginKnown has counted this graph's layer calls
  bool recording_ = false;
  // A node without work, before those of a graph, that differs every time.
  ggml_tensor apart_ = {};
  std::vector<ggml_tensor*> nodes_;
  std::unordered_map<const ggml_tensor*, ggml_tensor> slots_;     // of a tensor of all experts
  std::unordered_map<const ggml_tensor*, ggml_tensor*> weights_;  // copies on the device
  std::unordered_map<int64_t, ggml_tensor*> slot_ids_;            // by their shape
  ggml_tensor* packed_ids_ = nullptr;                             // of the call
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_GPU_RUNNER_H_
