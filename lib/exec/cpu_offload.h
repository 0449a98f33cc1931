// CpuOffload: a CPU that multiplies misses beside the fast tier of an executor.
#ifndef MOERT_LIB_EXEC_CPU_OFFLOAD_H_
#define MOERT_LIB_EXEC_CPU_OFFLOAD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "exec/executor_call.h"
#include "moert/policy.h"
#include "moert/router.h"

namespace moert {

class CpuOffload {
 public:
  virtual ~CpuOffload() = default;
  /// Whether it can multiply an expert of a call of `tokens` rows, in the best version served.
  virtual bool CpuCanCompute(ExpertKey key, int64_t tokens) const = 0;
  /// Begins multiplying such experts, beside everything else. Behind Route or SetRouting; needs a
  /// JoinCpu, whatever happens in between.
  virtual absl::Status BeginCpu(const ExecutorCall& call, const RoutingResult& routing,
                                absl::Span<const int32_t> experts) = 0;
  /// Waits for the CPU and hands its outputs to Combine. *took_ns: what the multiplication took; 0:
  /// not measured.
  virtual absl::Status JoinCpu(const ExecutorCall& call, int64_t* took_ns) = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_EXEC_CPU_OFFLOAD_H_
