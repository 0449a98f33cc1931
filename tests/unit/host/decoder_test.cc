// The decoder's promises: a token's result depends only on its own sequence, to the bit, however
// the sequence is cut into steps, whatever runs beside it, and on any number of threads.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "host/generate.h"
#include "host/perplexity.h"
#include "support/catch.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

using host::AlignedVector;
using host::SequenceInput;
using host::StepPhase;

bool SameBits(const AlignedVector<float>& a, const AlignedVector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Hidden states of all tokens, in steps of the given sizes.
AlignedVector<float> RunInSteps(TinyModel& model, absl::Span<const int32_t> tokens,
                                const std::vector<int64_t>& sizes) {
  const auto cache = model.decoder->MakeSequence(static_cast<int64_t>(tokens.size()));
  AlignedVector<float> all, hidden;
  int64_t at = 0;
  for (const int64_t size : sizes) {
    const SequenceInput input = {cache.get(), 7, tokens.subspan(at, size)};
    REQUIRE_OK(model.decoder->Step(StepPhase::kPrefill, {&input, 1}, &hidden));
    all.insert(all.end(), hidden.begin(), hidden.end());
    at += size;
  }
  REQUIRE(at == static_cast<int64_t>(tokens.size()));
  REQUIRE(cache->length() == at);
  return all;
}

TEST_CASE("one prefill, single tokens and ragged steps give the same bits, on 1 and 3 threads") {
  TinyModel one(1), three(3);
  const std::vector<int32_t> file = ReadEvalTokens("wikitext2");
  const auto tokens = absl::MakeSpan(file).subspan(1000, 150);
  const AlignedVector<float> full = RunInSteps(one, tokens, {150});
  REQUIRE(SameBits(full, RunInSteps(three, tokens, {150})));
  REQUIRE(SameBits(full, RunInSteps(three, tokens, std::vector<int64_t>(150, 1))));
  REQUIRE(SameBits(full, RunInSteps(one, tokens, {1, 15, 16, 17, 33, 2, 3, 63})));
}

TEST_CASE("sequences of different lengths in one step do not influence each other") {
  TinyModel model(2);
  const std::vector<int32_t> file = ReadEvalTokens("humaneval");
  const auto tokens = absl::MakeSpan(file);
  const int64_t width = model.config.hidden_size;
  // Sequence i: prefilled by 5 i tokens alone, then 3 tokens more together with the others.
  std::vector<std::unique_ptr<host::SequenceState>> caches;
  std::vector<SequenceInput> inputs;
  std::vector<AlignedVector<float>> alone;
  AlignedVector<float> hidden;
  for (int64_t i = 0; i < 5; ++i) {
    const auto sequence = tokens.subspan(100 * i, 5 * i + 3);
    const AlignedVector<float> full = RunInSteps(model, sequence, {5 * i + 3});
    alone.emplace_back(full.end() - 3 * width, full.end());
    caches.push_back(model.decoder->MakeSequence(40 + i));
    if (i > 0) {
      const SequenceInput prefix = {caches[i].get(), i, sequence.subspan(0, 5 * i)};
      REQUIRE_OK(model.decoder->Step(StepPhase::kPrefill, {&prefix, 1}, &hidden));
    }
    inputs.push_back({caches[i].get(), i, sequence.subspan(5 * i)});
  }
  REQUIRE_OK(model.decoder->Step(StepPhase::kDecode, inputs, &hidden));
  for (int64_t i = 0; i < 5; ++i) {
    INFO(i);
    const AlignedVector<float> mine(hidden.begin() + 3 * i * width,
                                    hidden.begin() + 3 * (i + 1) * width);
    REQUIRE(SameBits(mine, alone[i]));
  }
}

TEST_CASE("perplexity is the same to the bit as prefill and as decode in any batch") {
  TinyModel model(2);
  const std::vector<int32_t> file = ReadEvalTokens("gsm8k");
  const auto tokens = absl::MakeSpan(file).subspan(0, 5 * 48 + 20);
  host::PerplexityOptions options;
  options.window = 48;
  const auto prefill = host::Perplexity(model.decoder.get(), tokens, options);
  REQUIRE_OK(prefill.status());
  REQUIRE(prefill->tokens_scored == 5 * 47);
  REQUIRE(prefill->step_ms.size() == 5);
  for (const auto& [step, batch] : {std::pair{1, 1}, {1, 4}, {7, 2}, {48, 3}, {1000, 1000}}) {
    options.step_tokens = step;
    options.batch = batch;
    const auto decode = host::Perplexity(model.decoder.get(), tokens, options);
    REQUIRE_OK(decode.status());
    INFO(step << " tokens a step, " << batch << " sequences");
    REQUIRE(decode->nll == prefill->nll);
    REQUIRE(decode->window_nll == prefill->window_nll);
  }
  // A runner that takes fewer rows than a window: the window is prefilled in parts.
  options.step_tokens = 0;
  model.moe.rows_limit = 20;
  const auto parts = host::Perplexity(model.decoder.get(), tokens, options);
  REQUIRE_OK(parts.status());
  REQUIRE(parts->nll == prefill->nll);
  REQUIRE(parts->step_ms.size() == 15);
}

TEST_CASE("a failed step leaves the sequence as it was, and can be repeated") {
  TinyModel model(2);
  const std::vector<int32_t> file = ReadEvalTokens("gsm8k");
  const auto tokens = absl::MakeSpan(file).subspan(0, 30);
  const AlignedVector<float> full = RunInSteps(model, tokens, {30});
  const auto cache = model.decoder->MakeSequence(30);
  AlignedVector<float> hidden, all;
  const SequenceInput first = {cache.get(), 0, tokens.subspan(0, 10)};
  const SequenceInput second = {cache.get(), 0, tokens.subspan(10)};
  REQUIRE_OK(model.decoder->Step(StepPhase::kPrefill, {&first, 1}, &hidden));
  all = hidden;
  for (int layer = 0; layer < model.config.num_hidden_layers; ++layer) {
    model.moe.forwards_until_failure = layer;
    const absl::Status status = model.decoder->Step(StepPhase::kPrefill, {&second, 1}, &hidden);
    REQUIRE(status.code() == absl::StatusCode::kUnavailable);
    REQUIRE(cache->length() == 10);
    REQUIRE(model.moe.open_steps == 0);
  }
  model.moe.forwards_until_failure = -1;
  REQUIRE_OK(model.decoder->Step(StepPhase::kPrefill, {&second, 1}, &hidden));
  all.insert(all.end(), hidden.begin(), hidden.end());
  REQUIRE(SameBits(full, all));
}

TEST_CASE("bad input is refused with the value and the legal range") {
  TinyModel model(1);
  AlignedVector<float> hidden;
  const auto cache = model.decoder->MakeSequence(16);
  const auto step = [&](std::vector<int32_t> tokens) {
    const SequenceInput input = {cache.get(), 0, tokens};
    const absl::Status status = model.decoder->Step(StepPhase::kDecode, {&input, 1}, &hidden);
    REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  REQUIRE_THAT(step({1, 4096}), Catch::Contains("4096 is not in 0..4095"));
  REQUIRE_THAT(step({-1}), Catch::Contains("-1 is not in 0..4095"));
  REQUIRE_THAT(step(std::vector<int32_t>(17, 1)), Catch::Contains("17 tokens; its cache holds 16"));
  REQUIRE_THAT(step({}), Catch::Contains("a step of 0 tokens"));
  model.moe.rows_limit = 4;
  REQUIRE_THAT(step({1, 2, 3, 4, 5}), Catch::Contains("a step of 5 tokens; allowed are 1..4"));
  REQUIRE(cache->length() == 0);

  const std::vector<int32_t> tokens(100, 1);
  host::PerplexityOptions options;
  options.window = 1;
  REQUIRE_FALSE(host::Perplexity(model.decoder.get(), tokens, options).ok());
  options.window = 4096;
  REQUIRE_THAT(
      std::string(host::Perplexity(model.decoder.get(), tokens, options).status().message()),
      Catch::Contains("2..2048"));
  options.window = 101;
  REQUIRE_FALSE(host::Perplexity(model.decoder.get(), tokens, options).ok());

  host::GenerateOptions generate;
  REQUIRE_FALSE(host::Generate(model.decoder.get(), {}, generate).ok());
  generate.max_tokens = 1949;
  REQUIRE_THAT(
      std::string(host::Generate(model.decoder.get(), tokens, generate).status().message()),
      Catch::Contains("2048 positions"));
}

TEST_CASE("generation stops before a stop token, and with the callback's error") {
  TinyModel model(1);
  const nlohmann::json entry = ReadReference()["greedy"][0];
  const std::vector<int32_t> prompt = entry["prompt_ids"];
  const std::vector<int32_t> reference = entry["continuation_ids"];
  host::GenerateOptions options;
  options.max_tokens = 8;
  options.stop_tokens = {reference[3]};
  std::vector<int32_t> seen;
  options.on_token = [&](int32_t token) {
    seen.push_back(token);
    return absl::OkStatus();
  };
  const auto result = host::Generate(model.decoder.get(), prompt, options);
  REQUIRE_OK(result.status());
  REQUIRE(result->tokens == std::vector<int32_t>(reference.begin(), reference.begin() + 3));
  REQUIRE(seen == result->tokens);
  options.on_token = [](int32_t) { return absl::CancelledError("enough"); };
  REQUIRE(host::Generate(model.decoder.get(), prompt, options).status().code() ==
          absl::StatusCode::kCancelled);

  // A prompt longer than a step is prefilled in parts.
  options = {};
  options.max_tokens = 5;
  model.moe.rows_limit = 2;
  const auto parts = host::Generate(model.decoder.get(), prompt, options);
  REQUIRE_OK(parts.status());
  REQUIRE(parts->tokens == std::vector<int32_t>(reference.begin(), reference.begin() + 5));
}

}  // namespace
}  // namespace moert
