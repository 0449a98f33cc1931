// A checkpoint behind an engine and the example decoder, both on a CUDA device.
#ifndef MOERT_TESTS_GPU_DEVICE_MODEL_H_
#define MOERT_TESTS_GPU_DEVICE_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include "host/cuda/device_decoder.h"
#include "moert/engine.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/source/expert_source.h"
#include "tests/support/architecture_fixture.h"
#include "tests/support/catch.h"

namespace moert::test {

/// Every expert in two versions of the same bytes: a switch changes where an expert is and nothing
/// else.
class TwinVersions final : public ExpertSource {
 public:
  explicit TwinVersions(std::unique_ptr<ExpertSource> one) : one_(std::move(one)) {}
  const MoeModelSpec& model() const override { return one_->model(); }
  const std::string& name() const override { return one_->name(); }
  int num_versions() const override { return 2; }
  absl::string_view version_name(int v) const override { return v == 0 ? "high" : "low"; }
  const RecordLayout& layout(int layer, int expert, int) const override {
    return one_->layout(layer, expert, 0);
  }
  absl::Status ReadRecord(int layer, int expert, int, absl::Span<std::byte> dst) const override {
    return one_->ReadRecord(layer, expert, 0, dst);
  }
  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    return one_->ReadConstants(layer);
  }

 private:
  const std::unique_ptr<ExpertSource> one_;
};

struct DeviceModelOptions {
  std::string strategy = "on-demand";
  bool minimal = false;  // the smallest budget there is
  bool twins = false;    // TwinVersions
  int64_t max_rows = 64;
  host::DeviceDecoderOptions decoder;
};

struct DeviceModel {
  DeviceModel(const std::string& dir, const std::string& cache, const DeviceModelOptions& o) {
    auto loaded = LoadHfConfig(dir);
    REQUIRE_OK(loaded.status());
    config = *std::move(loaded);
    auto opened = Checkpoint::Open(dir);
    REQUIRE_OK(opened.status());
    checkpoint = *std::move(opened);
    OpenModelOptions open;
    open.cache_dir = cache;
    auto one = OpenModel(dir, open);
    REQUIRE_OK(one.status());
    std::shared_ptr<ExpertSource> source = *std::move(one);
    if (o.twins) {
      auto again = OpenModel(dir, open);
      REQUIRE_OK(again.status());
      source = std::make_shared<TwinVersions>(*std::move(again));
    }
    EngineOptions options;
    options.backend = BackendKind::kCuda;
    options.strategy = o.strategy;
    options.max_tokens_per_forward = o.max_rows;
    // Both versions' pools and what lets full ones switch.
    if (o.twins) options.budget = Budget::Bytes(int64_t{32} << 20);
    if (o.minimal) {
      const auto plan = Engine::Plan(*source, options);
      REQUIRE_OK(plan.status());
      options.budget = Budget::Bytes(plan->minimum_bytes);
    }
    auto created = Engine::Create(source, options);
    REQUIRE_OK(created.status());
    engine = *std::move(created);
    host::DeviceDecoderOptions d = o.decoder;
    d.max_rows = o.max_rows;
    auto decoder_or = host::DeviceDecoder::Load(*checkpoint, config, engine.get(), d);
    REQUIRE_OK(decoder_or.status());
    decoder = *std::move(decoder_or);
  }

  /// Logits of `batch` sequences from `first` on: a prefill step of all, then one token of each a
  /// step.
  std::vector<float> Logits(const ReferenceCase& c, int64_t batch, int64_t first = 0) {
    const int64_t length = static_cast<int64_t>(c.tokens[0].size()), vocab = config.vocab_size;
    std::vector<float> out(batch * length * vocab);
    std::vector<std::unique_ptr<host::Sequence>> sequences;
    for (int64_t b = 0; b < batch; ++b) {
      auto sequence = decoder->NewSequence(length);
      REQUIRE_OK(sequence.status());
      sequences.push_back(*std::move(sequence));
    }
    for (int64_t at = 0; at < length;) {
      const int64_t step = at == 0 ? c.prefill : 1;
      std::vector<host::SequenceInput> inputs;
      for (int64_t b = 0; b < batch; ++b) {
        inputs.push_back(
            {sequences[b].get(), b, absl::MakeConstSpan(c.tokens[first + b]).subspan(at, step)});
      }
      const auto phase = at == 0 ? host::StepPhase::kPrefill : host::StepPhase::kDecode;
      REQUIRE_OK(decoder->Run(phase, inputs));
      for (int64_t b = 0; b < batch; ++b) {
        REQUIRE_OK(decoder->RowLogits(b * step, step, out.data() + (b * length + at) * vocab));
      }
      at += step;
    }
    return out;
  }

  HfConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<host::DeviceDecoder> decoder;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_DEVICE_MODEL_H_
