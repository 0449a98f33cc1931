#include "cli/bench/decoder_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_split.h"
#include "cli/bench/device_bench.h"
#include "cli/common/budget_flag.h"
#include "cli/common/progress.h"
#include "cli/common/report.h"
#include "cli/workload/random_vectors.h"
#include "cli/workload/synthetic_experts.h"
#include "host/cuda/device_decoder.h"
#include "host/cuda/device_weights.h"
#include "moert/engine.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using Clock = std::chrono::steady_clock;
using host::SequenceInput;
using host::StepPhase;
using nlohmann::json;

/// Bytes of records that are copied to the device: more than the caches of a CPU hold.
constexpr int64_t kPinnedBytes = int64_t{1} << 30;
/// Steps before the first that counts: code is loaded, graphs are recorded.
constexpr int64_t kWarmSteps = 8;

double MsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

class DecoderBench {
 public:
  explicit DecoderBench(const DecoderBenchOptions& options) : o_(options) {}

  absl::Status Open();
  absl::StatusOr<json> Run();

 private:
  absl::StatusOr<json> Decode(int64_t batch);
  absl::StatusOr<json> Prompt(int64_t tokens);
  /// Runs a step of these tokens; `next` receives the next token of each sequence.
  absl::Status Step(StepPhase phase, absl::Span<const SequenceInput> inputs,
                    std::vector<int32_t>* next);
  std::vector<int32_t> RandomTokens(int64_t count);

  const DecoderBenchOptions& o_;
  uint64_t drawn_ = 0;
  std::unique_ptr<DeviceBench> device_;
  std::shared_ptr<const ExpertSource> experts_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<host::DeviceDecoder> decoder_;
};

absl::Status DecoderBench::Open() {
  MOERT_ASSIGN_OR_RETURN(const Shape shape, ParseShape(o_.synthetic));
  MOERT_ASSIGN_OR_RETURN(const HfConfig config, DecoderConfig(shape));
  MOERT_ASSIGN_OR_RETURN(device_, MakeCudaBench());
  const auto seed = static_cast<uint64_t>(o_.seed);
  SyntheticOptions synthetic;
  synthetic.schemes = absl::StrSplit(o_.schemes, ',');
  synthetic.memory_bytes = kPinnedBytes;
  synthetic.pin = [this](std::byte* data, int64_t bytes) { return device_->Pin(data, bytes); };
  MOERT_ASSIGN_OR_RETURN(const Workload gates,
                         Workload::Create("uniform", shape.spec, shape.common_share, seed));
  Progress progress("writing experts", !o_.quiet);
  synthetic.progress = [&](int64_t done, int64_t total) { progress.Update(done, total); };
  MOERT_ASSIGN_OR_RETURN(experts_, MakeSyntheticExperts(shape, gates, seed, synthetic));

  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = o_.strategy;
  MOERT_ASSIGN_OR_RETURN(options.budget, ParseBudget(o_.budget));
  options.max_tokens_per_forward =
      std::max<int64_t>(*std::max_element(o_.batch.begin(), o_.batch.end()), o_.context);
  for (const int tokens : o_.prompt) {
    options.max_tokens_per_forward = std::max<int64_t>(options.max_tokens_per_forward, tokens);
  }
  MOERT_ASSIGN_OR_RETURN(engine_, Engine::Create(experts_, options));
  MOERT_ASSIGN_OR_RETURN(host::DeviceWeights weights, host::DeviceWeights::Random(config, seed));
  host::DeviceDecoderOptions decoder;
  decoder.max_rows = options.max_tokens_per_forward;
  decoder.graphs = !o_.eager;
  MOERT_ASSIGN_OR_RETURN(
      decoder_, host::DeviceDecoder::Create(std::move(weights), config, engine_.get(), decoder));
  return absl::OkStatus();
}

std::vector<int32_t> DecoderBench::RandomTokens(int64_t count) {
  const auto vocabulary = static_cast<uint64_t>(decoder_->config().vocab_size);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(MixKey(static_cast<uint64_t>(o_.seed), ++drawn_) % vocabulary);
  }
  return tokens;
}

absl::Status DecoderBench::Step(StepPhase phase, absl::Span<const SequenceInput> inputs,
                                std::vector<int32_t>* next) {
  MOERT_RETURN_IF_ERROR(decoder_->Run(phase, inputs));
  next->clear();
  int64_t row = -1;
  for (const SequenceInput& input : inputs) {
    row += static_cast<int64_t>(input.tokens.size());
    MOERT_ASSIGN_OR_RETURN(const int32_t token, decoder_->Best(row));
    next->push_back(token);
  }
  return absl::OkStatus();
}

absl::StatusOr<json> DecoderBench::Decode(int64_t batch) {
  std::vector<std::unique_ptr<host::Sequence>> sequences;
  std::vector<int32_t> tokens(batch), next;
  const int64_t steps = kWarmSteps + o_.repeats * o_.steps;
  for (int64_t b = 0; b < batch; ++b) {
    MOERT_ASSIGN_OR_RETURN(auto sequence, decoder_->NewSequence(o_.context + steps));
    const std::vector<int32_t> prompt = RandomTokens(o_.context);
    const SequenceInput input = {sequence.get(), b, prompt};
    MOERT_RETURN_IF_ERROR(Step(StepPhase::kPrefill, {&input, 1}, &next));
    tokens[b] = next.front();
    sequences.push_back(std::move(sequence));
  }
  std::vector<double> all, medians;
  for (int64_t s = 0; s < steps; ++s) {
    std::vector<SequenceInput> inputs;
    for (int64_t b = 0; b < batch; ++b) {
      inputs.push_back({sequences[b].get(), b, absl::MakeConstSpan(tokens).subspan(b, 1)});
    }
    const auto begin = Clock::now();
    MOERT_RETURN_IF_ERROR(Step(StepPhase::kDecode, inputs, &next));
    if (s >= kWarmSteps) all.push_back(MsSince(begin));
    tokens = next;
  }
  for (int64_t r = 0; r < o_.repeats; ++r) {
    const auto first = all.begin() + r * o_.steps;
    medians.push_back(SpreadOf({first, first + o_.steps}).median);
  }
  const Spread spread = SpreadOf(medians);
  return json{{"batch", batch},
              {"context", o_.context},
              {"steps", o_.repeats * o_.steps},
              {"step_ms", ToJson(spread)},  // medians of the repetitions
              {"step_max_ms", *std::max_element(all.begin(), all.end())},
              {"tokens_per_s", 1e3 * static_cast<double>(batch) / spread.median},
              {"replays", decoder_->replays()}};
}

absl::StatusOr<json> DecoderBench::Prompt(int64_t count) {
  std::vector<double> ms;
  std::vector<int32_t> next;
  for (int64_t r = -2; r < o_.repeats; ++r) {  // two to warm up
    MOERT_ASSIGN_OR_RETURN(const auto sequence, decoder_->NewSequence(count));
    const std::vector<int32_t> tokens = RandomTokens(count);
    const SequenceInput input = {sequence.get(), r, tokens};
    const auto begin = Clock::now();
    MOERT_RETURN_IF_ERROR(Step(StepPhase::kPrefill, {&input, 1}, &next));
    if (r >= 0) ms.push_back(MsSince(begin));
  }
  const Spread spread = SpreadOf(ms);
  return json{{"tokens", count},
              {"ms", ToJson(spread)},
              {"tokens_per_s", 1e3 * static_cast<double>(count) / spread.median}};
}

absl::StatusOr<json> DecoderBench::Run() {
  json result = device_->Describe();
  result["shape"] = o_.synthetic;
  result["schemes"] = o_.schemes;
  result["strategy"] = o_.strategy;
  result["budget"] = o_.budget;
  result["graphs"] = decoder_->graphs();
  result["note"] = decoder_->note();
  result["decode"] = json::array();
  result["prompts"] = json::array();
  for (const int batch : o_.batch) {
    MOERT_ASSIGN_OR_RETURN(json row, Decode(batch));
    result["decode"].push_back(std::move(row));
  }
  for (const int tokens : o_.prompt) {
    MOERT_ASSIGN_OR_RETURN(json row, Prompt(tokens));
    result["prompts"].push_back(std::move(row));
  }
  return result;
}

}  // namespace

absl::StatusOr<json> RunDecoderBench(const DecoderBenchOptions& options) {
  DecoderBench bench(options);
  MOERT_RETURN_IF_ERROR(bench.Open());
  return bench.Run();
}

}  // namespace moert::cli
