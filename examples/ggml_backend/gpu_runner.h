// Carries out our part of a graph on the GPU, in the order of the context's own CUDA backend. The
// graph is computed as llama.cpp made it, with slots in place of the tensors of all experts: the
// same kernels run as if experts were on the GPU.
//
// A few tokens: the device looks their experts up and brings those that are missing, and no host
// waits. Many tokens: layers stream through the GPU. In between, the host reads the ids. Experts
// that do not fit in the slots at once are brought beside the cache. Where the host has the ids it
// computes experts itself that would be late.
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
#include "worker.h"
#include "workspace.h"

namespace moert_ggml {

/// Whether CUDA would launch anything for these nodes.
bool AnyWork(const ggml_cgraph* graph, int begin, int end);

inline constexpr char kNoStreamOrder[] = "the driver refuses to order streams";

class GpuRunner final : public Worker {
 public:
  explicit GpuRunner(Gpu* gpu);
  ~GpuRunner() override;

  ggml_status Compute(ggml_cgraph* graph) override;
  void Synchronize() override;
  void Plan(const ggml_cgraph* part) override;
  bool BeginCopy(ggml_backend_t from, const ggml_tensor* tensor, ggml_tensor* copy) override;

 private:
  // Nodes of a graph with products of one layer at most, all by the same ids.
  struct Piece {
    int begin = 0;
    int first = -1;  // product; -1: none
    ExpertTensor* experts = nullptr;
    ggml_tensor* ids = nullptr;
  };

  // The CUDA backend that orders everything. False: there is none.
  bool FindBackend();
  void UseBackend(ggml_backend_t cuda);

  // Copies inputs that the part was to read where they were made.
  void MakeSkippedCopies();
  ggml_status ComputePieces(ggml_cgraph* graph);
  ggml_status ComputePiece(ggml_cgraph* graph, Piece piece, int end);
  ggml_status RunLayer(ggml_cgraph* graph, const Piece& piece);
  // Beside the cache. *staged: false: nothing can be brought there, which was said, and nothing was
  // done. Runs a batch that streams the layers; or the experts that the ids name, and no more.
  ggml_status RunStreamed(ggml_cgraph* graph, const Piece& piece, Store* store, bool* staged);
  ggml_status RunBeside(ggml_cgraph* graph, const Piece& piece, Store* store, bool* staged);
  // *for_gpu: the named experts; those that the CPU takes leave it, and are job_'s then. False:
  // none.
  bool Share(const LayerCall& call, Store* store, bool streams, std::vector<int32_t>* for_gpu);
  // `shares`: all but the pairs of job_.
  ggml_status LaunchStaged(ggml_cgraph* graph, const Piece& piece, Store* store,
                           std::span<const int32_t> experts, bool shares, bool streams,
                           bool* staged);
  ggml_status LaunchBehindCpu(ggml_cgraph* rest, const Piece& piece, Store* store,
                              const ggml_tensor* out);
  void StageNext(const Piece& piece, Store* store);
  // Into generic_, when all before is done. False: they cannot be read, or one is out of range.
  bool ReadIds(ggml_cgraph* graph, const Piece& piece);
  // *too_many: they do not fit at once, and nothing was done.
  ggml_status RunInSlots(ggml_cgraph* graph, const Piece& piece, Store* store, bool* too_many);
  ggml_status RunServed(ggml_cgraph* graph, const Piece& piece, Store* store, bool* too_many);
  ggml_status RunNamed(ggml_cgraph* graph, const Piece& piece, Store* store, bool* too_many);
  // Why there are no slots.
  ggml_status NotFetched(const Piece& piece, Store::Result result, const std::string& error,
                         bool* too_many);
  // The products, then the rows that the CPU has taken of them, then what follows.
  ggml_status LaunchShared(ggml_cgraph* graph, const Piece& piece, const LayerCall& call,
                           Store* store);
  void LeaveSlots(Store* store);
  ggml_status LaunchInSlots(ggml_cgraph* graph, const moert_slots& slots, ggml_tensor* ids,
                            Store* store);
  ggml_status Launch(ggml_cgraph* graph);
  ggml_status Fail(const Piece& piece, const std::string& error);

  // Sources of nodes are replaced while a graph is launched. Tensors in their place live as long as
  // this: CUDA remembers graphs by addresses.
  void Replace(ggml_tensor** source, ggml_tensor* by);
  void Restore();
  // Inputs that were not copied; weights beside the experts, such as their biases, that are in our
  // buffers.
  bool ReplaceSources(ggml_cgraph* graph);
  ggml_tensor* OnDevice(ggml_tensor* weight);
  void ReplaceExperts(ggml_cgraph* graph, const moert_slots& slots, ggml_tensor* ids);
  ggml_tensor* SlotIds(int64_t top_k, int64_t tokens);
  // The ids one behind the other, in the order of the GPU's stream; null: that cannot be had.
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
  bool watched_ = false;  // an evaluation callback reads what nodes compute
  std::unordered_map<const ggml_tensor*, ggml_tensor> slots_;     // of a tensor of all experts
  std::unordered_map<const ggml_tensor*, ggml_tensor*> weights_;  // copies on the device
  std::unordered_map<int64_t, ggml_tensor*> slot_ids_;            // by their shape
  ggml_tensor* packed_ids_ = nullptr;                             // of the call
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_GPU_RUNNER_H_
