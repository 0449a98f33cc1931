// One layer call, as executors and what stands beside them see it.
#ifndef MOERT_LIB_EXEC_EXECUTOR_CALL_H_
#define MOERT_LIB_EXEC_EXECUTOR_CALL_H_

#include <cstdint>

#include "absl/types/span.h"
#include "moert/tensor.h"

namespace moert {

/// The matrices lie where the backend computes.
struct ExecutorCall {
  int layer = 0;
  int64_t epoch = 0;  // of the step, see VersionedStore::OpenStep
  int64_t tokens = 0;
  MatrixView hidden;  // [tokens, hidden]
  MutableMatrixView out;
  void* stream = nullptr;               // orders the call on a device
  absl::Span<const int32_t> token_ids;  // [tokens], or empty: not told
  bool capturing = false;               // DevicePath::Capturing of the stream
};

}  // namespace moert

#endif  // MOERT_LIB_EXEC_EXECUTOR_CALL_H_
