// The example decoder in fp32 against the reference implementation's numbers for the bundled model,
// with the plain oracle as its MoE: what is wrong here is wrong in the host, not in libmoert.
#include <cmath>
#include <vector>

#include "host/generate.h"
#include "host/perplexity.h"
#include "host/sampling.h"
#include "support/catch.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

using host::AlignedVector;
using host::SequenceInput;
using host::StepPhase;

TEST_CASE("five best logits and their normalizer at the recorded positions") {
  TinyModel model(2);
  const nlohmann::json reference = ReadReference();
  const int64_t vocab = model.config.vocab_size, hidden_size = model.config.hidden_size;
  std::string domain;
  AlignedVector<float> hidden, logits(vocab);
  int compared = 0;
  for (const auto& entry : reference["top5"]) {
    if (entry["domain"] != domain) {
      domain = entry["domain"];
      const std::vector<int32_t> tokens = ReadEvalTokens(domain);
      const auto cache = model.decoder->MakeSequence(512);
      const SequenceInput input = {cache.get(), 0, absl::MakeSpan(tokens).subspan(0, 512)};
      REQUIRE_OK(model.decoder->Step(StepPhase::kPrefill, {&input, 1}, &hidden));
    }
    REQUIRE(entry["window"] == 0);
    const int64_t position = entry["position"];
    INFO(domain << " position " << position);
    model.decoder->Logits(hidden.data() + position * hidden_size, 1, logits.data());
    CHECK(std::fabs(host::LogSumExp(logits) - entry["logsumexp"].get<double>()) < 2e-4);
    for (int i = 0; i < 5; ++i) {
      const int32_t best = *host::ArgMax(logits);
      CHECK(best == entry["ids"][i].get<int32_t>());
      CHECK(std::fabs(logits[best] - entry["logits"][i].get<float>()) < 2e-4f);
      logits[best] = -1e30f;
      ++compared;
    }
  }
  REQUIRE(compared == 75);
}

TEST_CASE("negative log-likelihood of each domain's first window") {
  TinyModel model(2);
  const nlohmann::json reference = ReadReference();
  for (const auto& [domain, numbers] : reference["domains"].items()) {
    INFO(domain);
    const std::vector<int32_t> tokens = ReadEvalTokens(domain);
    const auto result =
        host::Perplexity(model.decoder.get(), absl::MakeSpan(tokens).subspan(0, 512 + 300), {});
    REQUIRE_OK(result.status());
    CHECK(result->tokens_scored == 511);
    CHECK(result->nll == Approx(numbers["nll_window0_cpu"].get<double>()).epsilon(2e-6));
    CHECK(result->ppl == std::exp(result->nll));
  }
}

TEST_CASE("greedy continuations of the reference prompts") {
  TinyModel model(1);
  const nlohmann::json reference = ReadReference();
  for (const auto& entry : reference["greedy"]) {
    INFO(entry["prompt"].get<std::string>());
    host::GenerateOptions options;
    options.max_tokens = 64;
    const std::vector<int32_t> prompt = entry["prompt_ids"];
    const auto result = host::Generate(model.decoder.get(), prompt, options);
    REQUIRE_OK(result.status());
    REQUIRE(result->tokens == entry["continuation_ids"].get<std::vector<int32_t>>());
    REQUIRE(result->step_ms.size() == 63);
  }
}

}  // namespace
}  // namespace moert
