// Layer calls in which the host multiplies the experts itself (Engine::Fetch). The library may
// score gates for prediction, but multiplies nothing.
#ifndef MOERT_LIB_EXEC_CPU_FETCH_EXECUTOR_H_
#define MOERT_LIB_EXEC_CPU_FETCH_EXECUTOR_H_

#include <cstdint>
#include <vector>

#include "base/aligned_array.h"
#include "exec/backend.h"
#include "exec/executor.h"
#include "moert/source/opaque_source.h"

namespace moert {

/// Serves opaque records. Refuses Engine::Forward and ForwardRouted.
class FetchExecutor : public Executor {
 public:
  explicit FetchExecutor(const ExecutorParts& parts);

  absl::Status Check(const ExecutorCall& call, const MoeLayerSpec& layer,
                     bool routed) const override;
  absl::Status Route(const ExecutorCall& call, const RoutingRequest& request,
                     RoutingResult* routing) override;
  absl::Status SetRouting(const ExecutorCall& call, const RoutingResult& routing) override;
  absl::Status Multiply(const ExecutorCall& call, const RoutingResult& routing,
                        absl::Span<const ReadyExpert> experts, bool first) override;
  absl::Status Combine(const ExecutorCall& call, const RoutingResult& routing) override;
  absl::Status ScoreNext(const ExecutorCall& call, bool filled,
                         std::vector<float>* scores) override;
  absl::Status CopyRecords(const ExecutorCall& call, const VersionedStore& store,
                           absl::Span<const int32_t> experts, std::byte* to,
                           int64_t stride) override;
  absl::Status MultiplyOnCpu(const VersionedStore& store, int64_t epoch,
                             const OpaqueProduct& given) override;

 protected:
  /// The record's address in the library's RAM; null: the record is elsewhere.
  virtual const std::byte* RecordInRam(const VersionedStore& store, int64_t epoch,
                                       ExpertKey key) const;
  const ExecutorParts& parts() const { return parts_; }
  float* x() { return x_.data(); }

 private:
  void FindParts(const std::byte* record, int layer, OpaqueProduct::Expert* expert) const;

  const ExecutorParts parts_;
  AlignedArray<float> x_;  // [T, hidden]; empty if no layer has a gate
};

/// Whether a source's records are opaque. Either all of them are, or none.
bool IsOpaque(const ExpertSource& source);

/// Bytes that calls of this executor take in addition to the expert pools.
int64_t FetchWorkspaceBytes(const ExecutorSize& size, int io_threads);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_CPU_FETCH_EXECUTOR_H_
