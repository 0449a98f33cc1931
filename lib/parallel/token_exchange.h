// Sends rows to the ranks that own their experts, and brings the results back.
#ifndef MOERT_LIB_PARALLEL_TOKEN_EXCHANGE_H_
#define MOERT_LIB_PARALLEL_TOKEN_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "exec/row_kernels.h"
#include "moert/engine.h"
#include "moert/model.h"
#include "moert/parallel/collectives.h"
#include "moert/parallel/placement.h"
#include "source/shard_source.h"

namespace moert {

/// Exchanges rows of ranks on devices: every rank gathers all rows, and the ranks' parts of the
/// output are added up. All sizes are known to the host, so nothing waits for a count and calls can
/// be captured. With the two to eight GPUs of a machine nearly every row has experts on nearly
/// every rank, so sending rows only to ranks that need them would save little. Calls are enqueued
/// on a stream, one at a time. `narrow`: parts are sent as bf16, else as floats.
class RowExchange {
 public:
  /// `group` is borrowed. max_rows: of all ranks together. The first call allocates memory.
  RowExchange(const MoeModelSpec& model, std::unique_ptr<RowKernels> kernels, Collectives* group,
              int64_t max_rows);

  /// Gathers the rows and routing of all ranks, in their order. Each rank has as many rows as
  /// `hidden`.
  absl::Status Gather(const MatrixView& hidden, const RoutedInput& routing, void* stream,
                      MatrixView* all, RoutedInput* all_routing);
  /// The memory for this rank's part of the output.
  absl::StatusOr<MutableMatrixView> Part(int64_t rows, int64_t cols, bool narrow);
  /// Writes the sum over the ranks of this rank's block of rows into out. Blocks follow in the
  /// order of ranks and have equally many rows; the last may have fewer.
  absl::Status AddOwn(const MutableMatrixView& part, void* stream, const MutableMatrixView& out);
  /// Writes the sum over the ranks of all rows into out, with the same bits on every rank.
  absl::Status AddAll(const MutableMatrixView& part, void* stream, const MutableMatrixView& out);

  /// Memory for the rows of all ranks, [rows, cols], equally many for each.
  absl::StatusOr<MutableMatrixView> Gathered(int64_t rows, int64_t cols, bool narrow);

  /// Copies rows, converting dtype and stride.
  absl::Status Copy(const MutableMatrixView& rows, void* stream, const MutableMatrixView& out) {
    return kernels_->Add({rows.data, rows.dtype, 1}, out, stream);
  }

  int64_t bytes() const { return bytes_; }  // of memory, once allocated

 private:
  /// The number of rows in a rank's block.
  int64_t BlockOf(int64_t rows, int rank) const;
  absl::Status Reserve();

  const std::unique_ptr<RowKernels> kernels_;
  Collectives* const group_;
  const int64_t max_rows_;
  int64_t hidden_ = 0, top_k_ = 0;  // the most of a layer

  int64_t bytes_ = 0;
  std::byte* gathered_ = nullptr;  // records, or sums, of all ranks
  std::byte* part_ = nullptr;
  std::byte* parts_ = nullptr;  // the parts of all ranks for this rank's block
  int32_t* ids_ = nullptr;
  float* weights_ = nullptr;
  std::vector<int64_t> send_, receive_;  // scratch
};

/// Rows that this rank computes with, its own and others': hidden states in fp32, ids over the
/// whole model, weights.
struct ExchangedRows {
  int64_t rows = 0;
  std::vector<float> hidden;  // [rows, hidden]
  std::vector<int32_t> ids;   // [rows, k]
  std::vector<float> weights;
};

/// Exchanges rows in host memory. One call at a time: Dispatch, then Combine.
class TokenExchange {
 public:
  /// `group` is borrowed. `plans`: one per rank.
  TokenExchange(const MoeModelSpec& model, const std::vector<ShardPlan>& plans, Collectives* group);

  /// Sets the owners from now on. If an expert has several owners, each token goes to one of them.
  void Place(const ExpertPlacement& placement) {
    owners_ = placement.owners;
    one_of_ = true;
  }

  /// Sends each of the `rows` rows to every rank that owns a part of one of its experts, or of the
  /// shared ones. Ranks first exchange the numbers of rows. hidden: [rows, hidden] fp32.
  absl::Status Dispatch(int layer, int64_t rows, const float* hidden, absl::Span<const int32_t> ids,
                        absl::Span<const float> weights, ExchangedRows* received);
  /// Sends back the results of the received rows ([received, hidden] fp32), and adds the results
  /// for this rank's own rows, in the order of the ranks, into out: [rows, hidden].
  absl::Status Combine(const float* computed, float* out);

  int64_t sent_rows() const { return sent_rows_; }
  int64_t received_rows() const { return received_rows_; }

 private:
  /// Whether `rank` computes an expert for a token of this rank.
  bool Computes(size_t rank, size_t layer, int32_t expert, int64_t token) const;
  void ChooseRanks(int layer, int64_t rows, absl::Span<const int32_t> ids, int64_t k);
  int64_t CountOthers(absl::Span<const int64_t> counts) const;

  Collectives* const group_;
  const size_t ranks_;
  const int64_t hidden_;        // of every layer
  std::vector<int64_t> top_k_;  // [L]
  // [L][E]: the ranks that own a part of an expert; [L]: of the shared ones.
  std::vector<std::vector<std::vector<int32_t>>> owners_;
  std::vector<std::vector<int32_t>> shared_owners_;
  bool one_of_ = false;  // one owner computes a token; else each owner computes its channels

  // The rows of the call.
  int64_t rows_ = 0;
  std::vector<std::vector<int64_t>> to_;  // [ranks]: rows that go there, ascending
  std::vector<int64_t> send_, receive_;   // [ranks]: rows
  int64_t sent_rows_ = 0, received_rows_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_TOKEN_EXCHANGE_H_
