// The routed experts of a MoE block over many rows. Rows and their sums stay on the device: each
// row is copied there once and back once, and each expert's weights are copied once for all rows
// that the device holds.
#ifndef MOERT_LIB_OFFLINE_CUDA_BLOCK_FORWARD_H_
#define MOERT_LIB_OFFLINE_CUDA_BLOCK_FORWARD_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "exec/cuda/cuda_api.h"
#include "moert/thread_pool.h"
#include "offline/cuda/device_expert.h"
#include "offline/cuda/lanes.h"
#include "offline/offline_device.h"

namespace moert::offline {

/// Sizes of the data on the device at once.
struct BlockLimits {
  int64_t row_bytes = int64_t{16} << 30;   // inputs and residual; fewer where less is free
  int64_t set_bytes = int64_t{512} << 20;  // weights of one of two sets
  int64_t product_rows = 16384;            // of an expert in a product: full waves of CTAs
};

class BlockForward {
 public:
  /// Borrows everything but `device` and `limits`; `lanes` are used for copies.
  BlockForward(int device, const BlockRows& block, const ExpertReader& read, ThreadPool* pool,
               Lanes<ExpertLane>* lanes, const BlockLimits& limits = BlockLimits());

  /// OfflineDevice::AddExperts, once; an error is the device's, or a reader's.
  absl::Status Run(std::vector<uint8_t>* done);
  /// The first error of a reader.
  const absl::Status& read_error() const { return read_error_; }

 private:
  /// Experts whose weights are on the device together. There are two sets: one is filled while the
  /// other is used for products.
  struct WeightSet {
    ~WeightSet() {
      if (used != nullptr) cudaEventDestroy(used);
    }
    cuda::Buffer weights;        // bf16
    cudaEvent_t used = nullptr;  // the products by what was there before have ended
  };
  /// The rows on the device that chose an expert: a range of the routing's grouped rows.
  struct Choice {
    int expert;
    int64_t begin, count;
  };

  absl::Status RunOnDevice(std::vector<uint8_t>* done);
  absl::Status Allocate();
  absl::Status AllocateRows();
  absl::Status UploadChoice();
  absl::Status RunPart(int64_t first, int64_t count, std::vector<uint8_t>* done);
  absl::Status RunExperts(int64_t first, int64_t count);
  absl::Status Multiply(const Choice& choice, const uint16_t* weights, int64_t first);
  Choice ChoiceOf(int expert, int64_t first, int64_t count) const;

  /// Runs jobs on the threads, each with a lane whose work has ended when the job ends.
  absl::Status OnLanes(int64_t jobs,
                       absl::FunctionRef<absl::Status(int64_t job, ExpertLane* lane)> work);

  const int device_;
  const BlockRows& block_;
  const ExpertReader& read_;
  ThreadPool* const pool_;
  Lanes<ExpertLane>& lanes_;
  const BlockLimits limits_;
  const int64_t hidden_, intermediate_, tokens_;
  int64_t rows_at_once_ = 0;
  int64_t experts_at_once_ = 0;

  LaneStream stream_;  // of the products
  cuda::Buffer rows_, scratch_;
  float *inputs_ = nullptr, *residual_ = nullptr;  // [rows_at_once_, hidden]
  int32_t* chosen_rows_ = nullptr;                 // by expert
  float* chosen_weights_ = nullptr;
  float* weights_ = nullptr;  // of one expert: gate, up, down
  float *x_ = nullptr, *y_ = nullptr, *gate_ = nullptr, *up_ = nullptr, *h_ = nullptr;  // its rows
  WeightSet sets_[2];
  absl::Status read_error_;
};

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_CUDA_BLOCK_FORWARD_H_
