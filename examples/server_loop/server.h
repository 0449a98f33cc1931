// The loop of an inference server: requests come and go, and what runs is batched anew at every
// step (continuous batching). One thread owns the decoder; everything public may be called from any
// thread.
#ifndef MOERT_EXAMPLES_SERVER_LOOP_SERVER_H_
#define MOERT_EXAMPLES_SERVER_LOOP_SERVER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "host/engine_runner.h"
#include "host/model.h"

namespace moert::server {

/// The engine as the decoder's MoE, with a way to interrupt the step in progress from another
/// thread.
class InterruptibleRunner : public host::EngineRunner {
 public:
  InterruptibleRunner(Engine* engine, int64_t max_rows)
      : EngineRunner(engine, max_rows), engine_(engine) {}

  absl::Status BeginStep(host::StepPhase phase, const host::StepRows& rows) override;
  absl::Status EndStep() override;
  /// The step in progress, if any, fails with Cancelled as soon as it can.
  void Interrupt();

 private:
  Engine* const engine_;
  std::mutex mutex_;
  bool open_ = false;
};

struct Request {
  int64_t id = 0;
  std::vector<int32_t> prompt;
  int64_t max_tokens = 1;
};

struct Reply {
  int64_t id = 0;
  absl::Status status;  // Cancelled if it was; then `tokens` are those made until then
  std::vector<int32_t> tokens;
  double queue_ms = 0;         // submitted to admitted
  double ttft_ms = 0;          // submitted to first token; 0 if there is none
  std::vector<double> gap_ms;  // between tokens
};

struct ServerOptions {
  int64_t max_sequences = 8;      // that run at the same time
  int64_t max_prefill_rows = 64;  // prompt tokens a step, so that decoding never waits long
  /// Called from the server's thread.
  std::function<void(Reply)> on_reply;
};

class Server {
 public:
  /// `decoder` and `runner` are borrowed; no one else uses them meanwhile.
  Server(host::Decoder* decoder, InterruptibleRunner* runner, ServerOptions options);
  ~Server() { Drain(); }

  void Submit(Request request);
  /// The client is gone. Its sequence leaves the batch before the next step; a prefill that it is
  /// part of is interrupted, and repeated without it.
  void Cancel(int64_t id);
  /// Serves what was submitted, then stops.
  void Drain();

  /// Steps that were interrupted, steps in all, rows of decode steps in all.
  struct Counters {
    int64_t interrupted = 0, prefills = 0, decodes = 0, decoded_rows = 0;
  };
  Counters counters() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Sequence {
    Request request;
    Reply reply;
    Clock::time_point submitted, last_token;
    std::unique_ptr<host::Sequence> cache;
    int64_t prefilled = 0;  // prompt tokens in the cache
  };

  void Loop();
  void DropCancelledAndAdmit();
  void Prefill();
  void Decode();
  /// True: the step ran. An interrupted step loses nothing; any other error ends its sequences.
  bool RunStep(host::StepPhase phase, const std::vector<Sequence*>& members,
               const std::vector<host::SequenceInput>& inputs);
  void TakeToken(Sequence* sequence, const float* hidden);
  void Finish(Sequence* sequence, absl::Status status);

  host::Decoder* const decoder_;
  InterruptibleRunner* const runner_;
  const ServerOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::set<int64_t> cancelled_;   // ids to drop
  std::set<int64_t> in_prefill_;  // ids in the prefill step in progress
  Counters counters_;
  bool draining_ = false;

  // The loop's own.
  std::vector<std::unique_ptr<Sequence>> running_;
  host::AlignedVector<float> hidden_, logits_;
  std::thread thread_;
};

}  // namespace moert::server

#endif  // MOERT_EXAMPLES_SERVER_LOOP_SERVER_H_
