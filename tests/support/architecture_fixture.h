// The checkpoints of tests/data/architectures: their reference logits, and runs through the example
// decoder and an engine.
#ifndef MOERT_TESTS_SUPPORT_ARCHITECTURE_FIXTURE_H_
#define MOERT_TESTS_SUPPORT_ARCHITECTURE_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "host/engine_runner.h"
#include "host/model.h"
#include "moert/engine.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/source/expert_source.h"
#include "moert/thread_pool.h"
#include "support/catch.h"
#include "support/paths.h"

namespace moert::test {

inline std::string ArchitectureDir(const std::string& name) {
  return SourceDir() + "/tests/data/architectures/" + name;
}

/// Sequences of equal length, of which the first `prefill` tokens are one step.
struct ReferenceCase {
  std::vector<std::vector<int32_t>> tokens;  // by sequence
  int64_t prefill = 0;
  std::vector<float> logits;  // [sequences, length, vocabulary]
};

inline ReferenceCase ReadReferenceCase(const std::string& name, const std::string& which) {
  const auto file = Checkpoint::Open(ArchitectureDir(name) + "/expected.safetensors");
  REQUIRE_OK(file.status());
  const auto ints = [&](const std::string& tensor) {
    const TensorInfo* t = (*file)->Find(which + "." + tensor);
    REQUIRE(t != nullptr);
    std::vector<int32_t> values(t->elements());
    REQUIRE_OK((*file)->ReadBytes(
        *t, 0, absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * 4)));
    return std::pair(values, t->shape);
  };
  ReferenceCase c;
  c.prefill = ints("prefill").first[0];
  const auto [tokens, shape] = ints("tokens");
  for (int64_t i = 0; i < shape[0]; ++i) {
    c.tokens.emplace_back(tokens.begin() + i * shape[1], tokens.begin() + (i + 1) * shape[1]);
  }
  const TensorInfo* logits = (*file)->Find(which + ".logits");
  REQUIRE(logits != nullptr);
  c.logits = *(*file)->ReadF32(logits->name, logits->shape);
  return c;
}

/// Largest difference of each position, a NaN if there is one. Logits have a standard deviation
/// of 1.
inline std::vector<float> Differences(absl::Span<const float> got, absl::Span<const float> expected,
                                      int64_t vocab) {
  REQUIRE(got.size() <= expected.size());
  std::vector<float> out(got.size() / vocab);
  for (size_t i = 0; i < got.size(); ++i) {
    const float d = std::fabs(got[i] - expected[i]);
    float& largest = out[i / vocab];
    if (!std::isnan(largest) && !(d <= largest)) largest = d;
  }
  return out;
}

/// The same in ascending order, NaNs last.
inline std::vector<float> SortedDifferences(absl::Span<const float> got,
                                            absl::Span<const float> expected, int64_t vocab) {
  std::vector<float> out = Differences(got, expected, vocab);
  std::sort(out.begin(), out.end(),
            [](float a, float b) { return a < b || (!std::isnan(a) && std::isnan(b)); });
  return out;
}

/// The fixtures: every folder there is.
inline std::vector<std::string> ArchitectureNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(ArchitectureDir(""))) {
    if (std::filesystem::exists(entry.path() / "config.json")) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The decoder of a model directory over a runner of its MoE blocks.
struct DecoderRun {
  void Load(const std::string& dir, host::MoeRunner* moe) {
    auto loaded = LoadHfConfig(dir);
    REQUIRE_OK(loaded.status());
    config = *std::move(loaded);
    auto opened = Checkpoint::Open(dir);
    REQUIRE_OK(opened.status());
    checkpoint = *std::move(opened);
    auto threads = CreateThreadPool({.threads = 1});
    REQUIRE_OK(threads.status());
    pool = *std::move(threads);
    auto decoder_or = host::Decoder::Load(*checkpoint, config, pool.get(), moe);
    REQUIRE_OK(decoder_or.status());
    decoder = *std::move(decoder_or);
  }

  /// Logits of the first `batch` sequences: a prefill step of all, then one token of each a step.
  std::vector<float> Logits(const ReferenceCase& c, int64_t batch) {
    const int64_t length = static_cast<int64_t>(c.tokens[0].size());
    const int64_t width = config.hidden_size, vocab = config.vocab_size;
    std::vector<float> out(batch * length * vocab);
    std::vector<std::unique_ptr<host::SequenceState>> caches;
    for (int64_t b = 0; b < batch; ++b) {
      caches.push_back(decoder->MakeSequence(length));
    }
    host::AlignedVector<float> hidden;
    for (int64_t at = 0; at < length;) {
      const int64_t step = at == 0 ? c.prefill : 1;
      std::vector<host::SequenceInput> inputs;
      for (int64_t b = 0; b < batch; ++b) {
        inputs.push_back({caches[b].get(), b, absl::MakeConstSpan(c.tokens[b]).subspan(at, step)});
      }
      const auto phase = at == 0 ? host::StepPhase::kPrefill : host::StepPhase::kDecode;
      REQUIRE_OK(decoder->Step(phase, inputs, &hidden));
      for (int64_t b = 0; b < batch; ++b) {
        decoder->Logits(hidden.data() + b * step * width, step,
                        out.data() + (b * length + at) * vocab);
      }
      at += step;
    }
    return out;
  }

  HfConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<host::Decoder> decoder;
};

/// The same over an engine.
struct ArchitectureRun : DecoderRun {
  ArchitectureRun(const std::string& dir, std::unique_ptr<ExpertSource> source,
                  EngineOptions options, bool minimal) {
    if (minimal) {
      const auto plan = Engine::Plan(*source, options);
      REQUIRE_OK(plan.status());
      options.budget = Budget::Bytes(plan->minimum_bytes);
    }
    auto created = Engine::Create(std::move(source), options);
    REQUIRE_OK(created.status());
    engine = *std::move(created);
    runner = std::make_unique<host::EngineRunner>(engine.get(), options.max_tokens_per_forward);
    Load(dir, runner.get());
  }
  /// Experts in bf16: references of quantized files were rounded to it.
  ArchitectureRun(const std::string& dir, const std::string& cache, const EngineOptions& options,
                  bool minimal)
      : ArchitectureRun(dir, Widened(dir, cache), options, minimal) {}

  static std::unique_ptr<ExpertSource> Widened(const std::string& dir, const std::string& cache) {
    OpenModelOptions open;
    open.cache_dir = cache;
    open.widen = true;
    auto source = OpenModel(dir, open);
    REQUIRE_OK(source.status());
    return *std::move(source);
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<host::EngineRunner> runner;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_ARCHITECTURE_FIXTURE_H_
