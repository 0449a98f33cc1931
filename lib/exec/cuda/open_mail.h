// The mailbox between a device whose stream waits and the thread that serves its misses.
//
// An open call shows its routing here and rings; behind its first wave the stream waits until the
// release word is 1. By then the thread has left here what changed in the residency table. Letting
// the stream go is a store into mapped memory, no call of the driver: it works whatever other
// threads of the process hold up in the driver.
#ifndef MOERT_LIB_EXEC_CUDA_OPEN_MAIL_H_
#define MOERT_LIB_EXEC_CUDA_OPEN_MAIL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/device_rule.h"
#include "exec/cuda/workspace.h"
#include "kernels/cuda/open_call.h"
#include "moert/model.h"
#include "moert/router.h"

namespace moert::cuda {

class OpenMail {
 public:
  /// Calls of more rows are not left open: prefill needs most experts of a layer anyway.
  static constexpr int64_t kMaxTokens = 64;
  static constexpr int64_t kCounters = 3;

  /// Unavailable where the driver has no stream memory operations. Loads the kernels of open calls.
  /// `counters`: kCounters words of device memory.
  static absl::StatusOr<std::unique_ptr<OpenMail>> Create(const MoeModelSpec* model,
                                                          const Extent& extent, uint32_t* counters);
  int64_t max_tokens() const { return max_tokens_; }
  /// Where the rule of a call leaves what it has to say, before Publish.
  const RuleMirror& rule() const { return rule_; }

  // The thread that enqueues.

  absl::Status Publish(const Workspace& w, int layer, int64_t tokens, bool next_gate,
                       uint32_t call_id, cudaStream_t stream);
  /// Only the doorbell.
  absl::Status PublishMark(uint32_t call_id, cudaStream_t stream);
  absl::Status WaitForRelease(cudaStream_t stream) const;
  /// Behind the wait.
  absl::Status ApplyChanges(ExpertHandle* table, cudaStream_t stream) const;
  /// Rows that the CPU computed, in device memory, behind ApplyChanges.
  const int32_t* cpu_rows() const { return reinterpret_cast<int32_t*>(counters_ + 2); }

  // The thread that serves. Between a ring and Release everything here is its own.

  /// Publications so far.
  uint32_t rings() const { return *static_cast<const volatile uint32_t*>(&words()->doorbell); }
  /// Of publication `number`, one of the last kRing.
  uint32_t call_id(uint32_t number) const {
    return *static_cast<const volatile uint32_t*>(&words()->calls[number % PublishArgs::kRing]);
  }
  void Read(int layer, int64_t tokens, bool next_gate, RoutingResult* routing) const;
  /// Room for every row of the residency table.
  TableChange* changes() const { return reinterpret_cast<TableChange*>(change_memory_.data()); }
  void Release(int num_changes, int cpu_rows);

 private:
  struct alignas(64) Words {
    uint32_t calls[PublishArgs::kRing];
    alignas(64) uint32_t doorbell;
    alignas(64) uint32_t release;
    OpenCounts counts;
  };

  OpenMail(const MoeModelSpec* model, int64_t max_tokens, uint32_t* counters)
      : model_(model), max_tokens_(max_tokens), counters_(counters) {}
  absl::Status Init(const Extent& extent);
  PublishArgs Args(uint32_t call_id) const;
  Words* words() const { return reinterpret_cast<Words*>(words_memory_.data()); }

  const MoeModelSpec* const model_;
  const int64_t max_tokens_;
  uint32_t* const counters_;  // blocks arrived, publications, CPU rows
  Buffer words_memory_, mirror_memory_, rule_memory_, change_memory_;  // pinned, mapped
  RuleMirror rule_;
  void* wait_value_ = nullptr;  // cuStreamWaitValue32
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_OPEN_MAIL_H_
