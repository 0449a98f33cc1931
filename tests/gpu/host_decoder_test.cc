// Whole models on a device against the reference library's numbers: architectures whose decode
// steps are fused throughout (host_models_test has the others), and the bundled model's perplexity
// and greedy continuations; eager, and as CUDA graphs.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "device_model.h"
#include "device_parity.h"
#include "host/generate.h"
#include "host/perplexity.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace moert::test {
namespace {

TEST_CASE("qwen2_moe") { CheckParity("qwen2_moe"); }
TEST_CASE("qwen3_moe, with YaRN") { CheckParity("qwen3_moe"); }
TEST_CASE("qwen3_moe in fp8 blocks") { CheckParity("qwen3_moe_fp8"); }
TEST_CASE("mixtral, with a sliding window") { CheckParity("mixtral"); }
TEST_CASE("olmoe, with clipped queries, keys and values") { CheckParity("olmoe"); }
TEST_CASE("phimoe, on both sides of its original context") { CheckParity("phimoe"); }
TEST_CASE("deepseek") { CheckParity("deepseek"); }
TEST_CASE("xverse") { CheckParity("xverse"); }

TEST_CASE("perplexity of the bundled model, prefilled") {
  TempDir cache;
  DeviceModelOptions options;
  options.max_rows = 512;
  DeviceModel model(TinyModelDir(), cache.path(), options);
  const nlohmann::json reference = ReadReference();
  for (const auto& [domain, numbers] : reference["domains"].items()) {
    INFO(domain);
    const std::vector<int32_t> tokens = ReadEvalTokens(domain);
    const auto result = host::Perplexity(model.decoder.get(), tokens, {});
    REQUIRE_OK(result.status());
    const double nll = numbers["nll"].get<double>();
    std::printf("%s: nll %.6f, reference %.6f, reference in bf16 %.6f\n", domain.c_str(),
                result->nll, nll, numbers["nll_bf16"].get<double>());
    // bf16 throughout moves the reference by up to 0.00024.
    CHECK(std::fabs(result->nll - nll) < 0.0005);
  }
}

TEST_CASE("perplexity of the bundled model, decoded, eager and replayed") {
  TempDir cache;
  const std::vector<int32_t> tokens = ReadEvalTokens("gsm8k");
  const nlohmann::json reference = ReadReference();
  const double first = reference["domains"]["gsm8k"]["nll_window0_cpu"].get<double>();
  double nll[2];
  for (const bool graphs : {false, true}) {
    DeviceModelOptions options;
    options.strategy = "resident";
    options.decoder.graphs = graphs;
    DeviceModel model(TinyModelDir(), cache.path(), options);
    host::PerplexityOptions decode;
    decode.step_tokens = 1;
    decode.batch = 4;
    const auto result =
        host::Perplexity(model.decoder.get(), absl::MakeSpan(tokens).first(4 * 512), decode);
    REQUIRE_OK(result.status());
    nll[graphs] = result->nll;
    CHECK(std::fabs(result->window_nll[0] - first) < 0.003);
    // 512 keys are one piece: one shape, eager twice.
    CHECK(model.decoder->replays() == (graphs ? 512 - 2 : 0));
    CHECK(model.engine->stats().host_syncs == 0);
    CHECK(model.engine->stats().graph_captured == graphs);
  }
  CHECK(nll[0] == nll[1]);
}

/// Up to the first token that bf16 may choose otherwise.
void CheckGreedy(DeviceModel* model, const nlohmann::json& entry) {
  INFO(entry["prompt"].get<std::string>());
  host::GenerateOptions options;
  options.max_tokens = 64;
  const std::vector<int32_t> prompt = entry["prompt_ids"];
  const std::vector<int32_t> expected = entry["continuation_ids"];
  const std::vector<double> margins = entry["top1_minus_top2_logit"];
  const auto result = host::Generate(model->decoder.get(), prompt, options);
  REQUIRE_OK(result.status());
  REQUIRE(result->tokens.size() == expected.size());
  size_t same = 0;
  while (same < expected.size() && result->tokens[same] == expected[same]) ++same;
  std::printf("greedy: %zu of %zu tokens as the reference's\n", same, expected.size());
  if (same < expected.size()) CHECK(margins[same] < 0.1);
}

TEST_CASE("greedy continuations, eager, replayed, and with a fifth of the experts") {
  TempDir cache;
  const nlohmann::json reference = ReadReference();
  struct Case {
    const char* strategy;
    bool graphs, minimal;
  };
  for (const Case& c :
       {Case{"resident", false, false}, {"resident", true, false}, {"on-demand", true, true}}) {
    INFO(c.strategy << " graphs " << c.graphs);
    DeviceModelOptions options;
    options.strategy = c.strategy;
    options.minimal = c.minimal;
    options.decoder.graphs = c.graphs;
    DeviceModel model(TinyModelDir(), cache.path(), options);
    CHECK(model.decoder->graphs() == (c.graphs && !c.minimal));
    for (const auto& entry : reference["greedy"]) CheckGreedy(&model, entry);
  }
}

TEST_CASE("the same tokens by each kind of dense product") {
  TempDir cache;
  const nlohmann::json entry = ReadReference()["greedy"][2];
  for (const host::DenseKernels kernels : {host::DenseKernels::kOwn, host::DenseKernels::kCublas}) {
    DeviceModelOptions options;
    options.strategy = "resident";
    options.decoder.kernels = kernels;
    if (kernels == host::DenseKernels::kCublas) {
      cudaStream_t stream = nullptr;
      REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
      const bool there = host::Cublas::Open(stream).ok();
      cudaStreamDestroy(stream);
      if (!there) continue;
    }
    DeviceModel model(TinyModelDir(), cache.path(), options);
    CheckGreedy(&model, entry);
  }
}

TEST_CASE("replayed steps while experts switch versions underneath") {
  TempDir cache;
  const std::vector<int32_t> tokens = ReadEvalTokens("humaneval");
  const auto run = [&](const std::string& strategy, bool twins, int64_t* switches,
                       int64_t* replays) {
    DeviceModelOptions options;
    options.strategy = strategy;
    options.twins = twins;
    DeviceModel model(TinyModelDir(), cache.path(), options);
    REQUIRE(model.decoder->graphs());
    auto sequence = model.decoder->NewSequence(512);
    REQUIRE_OK(sequence.status());
    std::vector<float> logits(400 * model.config.vocab_size);
    for (int i = 0; i < 400; ++i) {
      const host::SequenceInput input = {sequence->get(), 0,
                                         absl::MakeConstSpan(tokens).subspan(i, 1)};
      REQUIRE_OK(model.decoder->Run(host::StepPhase::kDecode, {&input, 1}));
      REQUIRE_OK(model.decoder->RowLogits(0, 1, logits.data() + i * model.config.vocab_size));
    }
    *switches = model.engine->stats().promotions + model.engine->stats().demotions;
    *replays = model.decoder->replays();
    CHECK(model.engine->stats().host_syncs == 0);
    return logits;
  };
  int64_t switches = 0, replays = 0;
  const std::vector<float> expected = run("resident", false, &switches, &replays);
  CHECK(replays == 398);
  const std::vector<float> got =
      run("dynaexq:hi=high,lo=low,interval_ms=0.001,hi_fraction=0.3", true, &switches, &replays);
  std::printf("dynaexq: %d switches under %d replayed steps\n", static_cast<int>(switches),
              static_cast<int>(replays));
  CHECK(SameBits(got, expected));
  CHECK(switches > 20);
  CHECK(replays > 300);
}

TEST_CASE("a decoded row has the same bits alone and in a batch") {
  TempDir cache;
  const std::vector<int32_t> tokens = ReadEvalTokens("wikitext2");
  constexpr int kSequences = 8, kPrompt = 20, kSteps = 6;
  DeviceModelOptions options;
  options.strategy = "resident";
  DeviceModel model(TinyModelDir(), cache.path(), options);
  const int64_t vocab = model.config.vocab_size;
  // Logits [sequence, step], each prompt on its own, `batch` sequences in a step.
  const auto decode = [&](int batch) {
    std::vector<float> logits(kSequences * kSteps * vocab);
    std::vector<std::unique_ptr<host::Sequence>> sequences;
    const auto input = [&](int s, int at, int count) {
      return host::SequenceInput{sequences[s].get(), s,
                                 absl::MakeConstSpan(tokens).subspan(s * 100 + at, count)};
    };
    for (int s = 0; s < kSequences; ++s) {
      auto sequence = model.decoder->NewSequence(kPrompt + kSequences + kSteps);
      REQUIRE_OK(sequence.status());
      sequences.push_back(*std::move(sequence));
      const host::SequenceInput prompt = input(s, 0, kPrompt + s);  // of different lengths
      REQUIRE_OK(model.decoder->Run(host::StepPhase::kPrefill, {&prompt, 1}));
    }
    for (int step = 0; step < kSteps; ++step) {
      for (int first = 0; first < kSequences; first += batch) {
        std::vector<host::SequenceInput> inputs;
        const int count = std::min(batch, kSequences - first);
        for (int s = first; s < first + count; ++s) {
          inputs.push_back(input(s, kPrompt + s + step, 1));
        }
        REQUIRE_OK(model.decoder->Run(host::StepPhase::kDecode, inputs));
        for (int i = 0; i < count; ++i) {
          float* to = logits.data() + ((first + i) * kSteps + step) * vocab;
          REQUIRE_OK(model.decoder->RowLogits(i, 1, to));
        }
      }
    }
    return logits;
  };
  const std::vector<float> alone = decode(1);
  for (const int batch : {2, 3, 8}) {
    INFO("batch " << batch);
    CHECK(SameBits(decode(batch), alone));
  }
}

TEST_CASE("what a decoder refuses") {
  TempDir cache;
  DeviceModel model(TinyModelDir(), cache.path(), {});
  auto sequence = model.decoder->NewSequence(4);
  REQUIRE_OK(sequence.status());
  const auto run = [&](const std::vector<int32_t>& tokens) {
    const host::SequenceInput input = {sequence->get(), 0, tokens};
    return std::string(model.decoder->Run(host::StepPhase::kPrefill, {&input, 1}).message());
  };
  CHECK_THAT(run({1, 2, 3, 4, 5}), Catch::Contains("its cache holds 4"));
  CHECK_THAT(run({4096}), Catch::Contains("token id 4096"));
  CHECK_THAT(run({}), Catch::Contains("a step of 0 tokens"));
  CHECK((*sequence)->length() == 0);
  CHECK(run({1, 2}).empty());
  CHECK((*sequence)->length() == 2);
}

}  // namespace
}  // namespace moert::test
