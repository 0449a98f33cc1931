// The host of one rank in moert-bench ranks: where the rows of a step are, and the group.
#ifndef MOERT_EXAMPLES_CLI_BENCH_RANK_HOST_H_
#define MOERT_EXAMPLES_CLI_BENCH_RANK_HOST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moert/engine.h"
#include "moert/parallel/collectives.h"

namespace moert::cli {

/// A step whose routing is known: every layer gets the same hidden states.
struct RoutedStep {
  int64_t rows = 0;
  std::vector<float> hidden;                // [rows, hidden]
  std::vector<std::vector<int32_t>> ids;    // [layers][rows, k]
  std::vector<std::vector<float>> weights;  // likewise
};

/// Used by one thread.
class RankHost {
 public:
  virtual ~RankHost() = default;

  /// Joins the group as this rank; once.
  virtual absl::StatusOr<std::unique_ptr<Collectives>> Join() = 0;
  /// Copies a step's rows to where x, y and routing point. All steps have the same number of rows.
  /// dtype: of hidden states and outputs; f32 in host memory.
  virtual absl::Status Place(const RoutedStep& step, DType dtype) = 0;
  virtual MatrixView x() const = 0;
  virtual MutableMatrixView y() const = 0;
  virtual RoutedInput routing(int layer) const = 0;
  virtual void* stream() const = 0;
  /// Records what `layers` enqueues, for Replay. Unimplemented in host memory.
  virtual absl::Status Capture(absl::FunctionRef<absl::Status()> layers) = 0;
  virtual absl::Status Replay() = 0;
  /// Drops the recording; to be called before the group is left.
  virtual void DropCapture() = 0;
};

/// The common part of ranks of a kind.
struct RankHosts {
  std::vector<std::unique_ptr<RankHost>> ranks;
  std::string device;  // their name
  /// See SyntheticOptions::pin; null: experts are not page-locked.
  std::function<absl::StatusOr<std::shared_ptr<void>>(std::byte* data, int64_t bytes)> pin;
};

/// Ranks that are threads and exchange host memory; `alone`: each is a group of its own.
absl::StatusOr<RankHosts> MakeHostRanks(int ranks, bool alone);
/// Ranks on devices 0 to ranks - 1 over NCCL; `alone` as above. Unavailable if there are fewer
/// devices, or no CUDA in the build.
absl::StatusOr<RankHosts> MakeCudaRanks(int ranks, bool alone);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_RANK_HOST_H_
