// A language model as generation and scoring see it, wherever its dense parts run.
#ifndef MOERT_EXAMPLES_HOST_TOKEN_MODEL_H_
#define MOERT_EXAMPLES_HOST_TOKEN_MODEL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/moe_runner.h"
#include "moert/offline/hf_config.h"

namespace moert::host {

/// A model's state of one sequence, such as a KV cache, in a type of the model's own.
class Sequence {
 public:
  /// rewinds: the state keeps positions apart, so that Rewind can drop the last ones.
  Sequence(int64_t max_tokens, int64_t capacity, bool rewinds)
      : max_tokens_(max_tokens), capacity_(capacity), rewinds_(rewinds) {}
  virtual ~Sequence() = default;
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  /// Tokens stored, that is the position of the next one.
  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  /// The length that the sequence may grow to: some kinds of RoPE depend on it.
  int64_t max_tokens() const { return max_tokens_; }
  /// Drops all but the first `length` tokens, or all tokens if the state cannot be truncated.
  void Rewind(int64_t length) {
    if (length < length_) length_ = rewinds_ ? length : 0;
  }

 protected:
  void set_length(int64_t length) { length_ = length; }

 private:
  const int64_t max_tokens_;
  const int64_t capacity_;
  const bool rewinds_;
  int64_t length_ = 0;
};

/// The tokens that a step appends to one sequence.
struct SequenceInput {
  Sequence* cache = nullptr;  // a sequence may occur only once in a step
  int64_t request_id = 0;
  absl::Span<const int32_t> tokens;
};

/// Checks the tokens, the capacities and the number of rows of a step.
absl::Status CheckInputs(const HfConfig& config, absl::Span<const SequenceInput> inputs,
                         int64_t max_rows);

/// One thread at a time.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  virtual const HfConfig& config() const = 0;
  /// Room for `max_tokens` tokens. Sequences may not outlive the model.
  virtual absl::StatusOr<std::unique_ptr<Sequence>> NewSequence(int64_t max_tokens) = 0;

  /// Runs all tokens of all inputs and appends them to their sequences; rows are in the order of
  /// the inputs. On an error the sequences keep their lengths and the step can be repeated. May
  /// return before the device has finished.
  virtual absl::Status Run(StepPhase phase, absl::Span<const SequenceInput> inputs) = 0;

  // Results for the rows of the last Run. These functions wait for it.

  /// logits: [rows, vocabulary], of the rows from `first` on.
  virtual absl::Status RowLogits(int64_t first, int64_t rows, float* logits) = 0;
  /// The likeliest token, the lowest id among equals. Internal if the logits are not finite.
  virtual absl::StatusOr<int32_t> Best(int64_t row) = 0;
  /// nll[i] = -ln p(targets[i] | row first + i).
  virtual absl::Status Score(int64_t first, absl::Span<const int32_t> targets, double* nll) = 0;
  /// Returns when the last Run is done.
  virtual absl::Status Wait() = 0;

  /// Most rows that one step may have.
  virtual int64_t max_rows() const = 0;
  /// The clock that latencies are reported in.
  virtual double NowMs() const = 0;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_TOKEN_MODEL_H_
