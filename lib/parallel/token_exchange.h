// Rows to the ranks that own their experts, and what comes of them back.
#ifndef MOERT_LIB_PARALLEL_TOKEN_EXCHANGE_H_
#define MOERT_LIB_PARALLEL_TOKEN_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/parallel/collectives.h"
#include "moert/parallel/placement.h"
#include "source/shard_source.h"

namespace moert {

/// Rows that this rank computes with, its own and others': hidden states in fp32, ids over the
/// whole model, weights.
struct ExchangedRows {
  int64_t rows = 0;
  std::vector<float> hidden;  // [rows, hidden]
  std::vector<int32_t> ids;   // [rows, k]
  std::vector<float> weights;
};

/// In host memory. One call at a time: Dispatch, then Combine.
class TokenExchange {
 public:
  /// `group` is borrowed; one plan a rank.
  TokenExchange(const MoeModelSpec& model, const std::vector<ShardPlan>& plans, Collectives* group);

  /// From here on owners are these, of several of an expert one for each token.
  void Place(const ExpertPlacement& placement) {
    owners_ = placement.owners;
    one_of_ = true;
  }

  /// Sends each of the `rows` rows to every rank that owns a part of one of its experts, or of the
  /// shared ones. Each rank learns how many it gets first. hidden: [rows, hidden] fp32.
  absl::Status Dispatch(int layer, int64_t rows, const float* hidden, absl::Span<const int32_t> ids,
                        absl::Span<const float> weights, ExchangedRows* received);
  /// Sends back what was computed of the received rows ([received, hidden] fp32), and adds what
  /// comes for this rank's own, in the order of the ranks, into out: [rows, hidden].
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
  bool one_of_ = false;  // owners take turns; else each computes its channels

  // The rows of the call.
  int64_t rows_ = 0;
  std::vector<std::vector<int64_t>> to_;  // [ranks]: rows that go there, ascending
  std::vector<int64_t> send_, receive_;   // [ranks]: rows
  int64_t sent_rows_ = 0, received_rows_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_TOKEN_EXCHANGE_H_
