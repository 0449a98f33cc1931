// How often a run used each expert, kept for the next one to begin with.
#ifndef MOERT_EXAMPLES_CLI_RUN_WARM_H_
#define MOERT_EXAMPLES_CLI_RUN_WARM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moert/model.h"
#include "moert/tools/trace.h"

namespace moert::cli {

using UseCounts = std::vector<std::vector<int64_t>>;  // [MoE layer][expert]

/// Counts the experts of every call, and passes calls on to a trace, if there is one.
class UseCounter final : public TraceSink {
 public:
  UseCounter(const MoeModelSpec& model, std::shared_ptr<TraceSink> next);
  void OnCall(const TraceCall& call) override;
  void OnSpan(const TimelineSpan& span) override;
  bool wants_next_scores() const override { return next_ != nullptr && next_->wants_next_scores(); }

  /// After the run.
  const UseCounts& counts() const { return counts_; }

 private:
  const std::shared_ptr<TraceSink> next_;
  UseCounts counts_;
};

/// Where the counts of the experts that `source` names are kept: beside a pack, or, for experts
/// that are read in place, in the cache folder. Empty if there is no such folder.
std::string UseCountsPath(const std::string& source, bool is_pack, const std::string& cache);

/// NotFound if there is no file; InvalidArgument if it is not of this model.
absl::StatusOr<UseCounts> ReadUseCounts(const std::string& path, const MoeModelSpec& model);
/// The selections of a calibration file.
absl::StatusOr<UseCounts> CalibratedCounts(const std::string& path, const MoeModelSpec& model);
/// Replaces the file.
absl::Status WriteUseCounts(const std::string& path, const UseCounts& counts);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_RUN_WARM_H_
