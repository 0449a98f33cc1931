// Trace files that the host can complete while the engine keeps running.
#ifndef MOERT_CAPI_SRC_CLOSABLE_TRACE_H_
#define MOERT_CAPI_SRC_CLOSABLE_TRACE_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "moert/tools/trace.h"

namespace moert::capi {

/// Writes the files, and passes everything on to the host's own sink, if it has one.
class ClosableTrace final : public TraceSink {
 public:
  ClosableTrace(std::unique_ptr<TraceFile> file, std::shared_ptr<TraceSink> host)
      : host_(std::move(host)), file_(std::move(file)) {}

  void OnCall(const TraceCall& call) override {
    if (host_ != nullptr) host_->OnCall(call);
    const MutexLock lock(&mu_);
    if (file_ != nullptr) file_->OnCall(call);
  }
  void OnSpan(const TimelineSpan& span) override {
    if (host_ != nullptr) host_->OnSpan(span);
    const MutexLock lock(&mu_);
    if (file_ != nullptr) file_->OnSpan(span);
  }
  /// The second and later calls return OK.
  absl::Status Close() {
    const MutexLock lock(&mu_);
    const std::unique_ptr<TraceFile> file = std::move(file_);
    return file == nullptr ? absl::OkStatus() : file->Close();
  }

 private:
  const std::shared_ptr<TraceSink> host_;  // null: none
  Mutex mu_;
  std::unique_ptr<TraceFile> file_ ABSL_GUARDED_BY(mu_);
};

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_CLOSABLE_TRACE_H_
