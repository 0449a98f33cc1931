// Rows of ranks on devices: gathered, so that every rank has all of them, and the ranks' parts of
// the output added up. All sizes are known to the host, so that nothing waits for a count and calls
// can be captured. With the two to eight GPUs of a machine nearly every row has experts on nearly
// every rank: sending a row only where it is wanted would spare little.
#ifndef MOERT_LIB_PARALLEL_ROW_EXCHANGE_H_
#define MOERT_LIB_PARALLEL_ROW_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "exec/row_kernels.h"
#include "moert/engine.h"
#include "moert/model.h"
#include "moert/parallel/collectives.h"

namespace moert {

/// Calls are enqueued on a stream, one at a time. `narrow`: parts travel as bf16, else as floats.
class RowExchange {
 public:
  /// `group` is borrowed. max_rows: of all ranks together. Memory is taken by the first call.
  RowExchange(const MoeModelSpec& model, std::unique_ptr<RowKernels> kernels, Collectives* group,
              int64_t max_rows);

  /// Rows of all ranks, in their order, each as many as `hidden` has, and their routing.
  absl::Status Gather(const MatrixView& hidden, const RoutedInput& routing, void* stream,
                      MatrixView* all, RoutedInput* all_routing);
  /// Where this rank's part of the output goes.
  absl::StatusOr<MutableMatrixView> Part(int64_t rows, int64_t cols, bool narrow);
  /// out gets the sum over the ranks of this rank's block: of as many rows for each rank, in their
  /// order, the last of them may have fewer.
  absl::Status AddOwn(const MutableMatrixView& part, void* stream, const MutableMatrixView& out);
  /// out gets the sum over the ranks of all rows, on each of them the same bits.
  absl::Status AddAll(const MutableMatrixView& part, void* stream, const MutableMatrixView& out);

  /// Between dtypes and strides.
  absl::Status Copy(const MutableMatrixView& rows, void* stream, const MutableMatrixView& out) {
    return kernels_->Add({rows.data, rows.dtype, 1}, out, stream);
  }

  int64_t bytes() const { return bytes_; }  // of memory, once taken

 private:
  /// How many rows a rank's block has.
  int64_t BlockOf(int64_t rows, int rank) const;
  absl::Status Reserve();

  const std::unique_ptr<RowKernels> kernels_;
  Collectives* const group_;
  const int64_t max_rows_;
  int64_t hidden_ = 0, top_k_ = 0;  // the most of a layer

  int64_t bytes_ = 0;
  std::byte* gathered_ = nullptr;  // records of all ranks; or sums, of all ranks
  std::byte* part_ = nullptr;
  std::byte* parts_ = nullptr;  // of all ranks, of this one's block
  int32_t* ids_ = nullptr;
  float* weights_ = nullptr;
  std::vector<int64_t> send_, receive_;  // scratch
};

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_ROW_EXCHANGE_H_
