// The budget holds for the process, not only for the tracker: a pack of more than 2 GiB of experts
// runs under a small budget, and the process's own memory, sampled all along, stays within it.
#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "moert/engine.h"
#include "pack/pack_writer.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

/// Anonymous memory of this process, bytes: page cache and mapped files are not ours.
int64_t AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != "RssAnon:") continue;
    int64_t kib = 0;
    status >> kib;
    return kib * 1024;
  }
  return -1;
}

MoeModelSpec LargeModel() {
  MoeModelSpec model;
  model.architecture = "generated";
  for (int l = 0; l < 4; ++l) {
    MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = 64;
    layer.hidden = 1024;
    layer.intermediate = 1408;
    layer.routing.top_k = 4;
    model.layers.push_back(layer);
  }
  return model;
}

/// Records of small bf16 values, different for each expert, made without a random number a weight.
void WritePack(const std::string& dir, int64_t* expert_bytes) {
  PackDescription description;
  description.model = LargeModel();
  PackVersion version;
  version.name = "bf16";
  version.formats = {ExpertFormat::Uniform(Scheme{})};
  description.versions = {version};
  auto writer = PackWriter::Create(dir, description);
  REQUIRE_OK(writer.status());
  *expert_bytes = (*writer)->total_bytes();
  std::vector<uint16_t> words;
  for (int l = 0; l < description.model.num_layers(); ++l) {
    for (int e = 0; e < description.model.layers[l].num_experts; ++e) {
      const auto layout = (*writer)->Layout(l, e, 0);
      REQUIRE_OK(layout.status());
      words.resize(layout->bytes / 2);
      uint32_t x = 1 + l * 1000 + e;
      for (uint16_t& w : words) {
        x = x * 1664525u + 1013904223u;
        // Sign and mantissa vary, the exponent is that of 1/64.
        w = static_cast<uint16_t>(0x3c80 | (x >> 16 & 0x807f));
      }
      REQUIRE_OK((*writer)->WriteRecord(
          l, e, 0, absl::MakeConstSpan(reinterpret_cast<std::byte*>(words.data()), layout->bytes)));
    }
    LayerConstants constants;
    constants.gate.resize(64 * 1024);
    for (size_t i = 0; i < constants.gate.size(); ++i) {
      constants.gate[i] =
          static_cast<float>(static_cast<int>(i * 2654435761u >> 20 & 255) - 128) / 512;
    }
    REQUIRE_OK((*writer)->WriteConstants(l, constants));
  }
  REQUIRE_OK((*writer)->Finish());
}

TEST_CASE("2 GiB of experts under 96 MiB: the process stays within the budget") {
  test::TempDir folder;
  const std::string dir = folder / "pack";
  int64_t expert_bytes = 0;
  WritePack(dir, &expert_bytes);
  REQUIRE(expert_bytes >= int64_t{2} << 30);

  auto source = OpenExpertPack(dir);
  REQUIRE_OK(source.status());
  EngineOptions options;
  options.budget = Budget::Bytes(96 << 20);
  options.max_tokens_per_forward = 64;
  options.threads = 2;
  const int64_t before = AnonymousBytes();
  REQUIRE(before > 0);
  std::atomic<bool> running{true};
  std::atomic<int64_t> most{0};
  std::thread sampler([&] {
    while (running) {
      most = std::max(most.load(), AnonymousBytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EngineStats stats;
  {
    auto engine = Engine::Create(std::shared_ptr<const ExpertSource>(std::move(*source)), options);
    REQUIRE_OK(engine.status());
    test::HiddenProcess process(1024, 3);
    std::vector<float> out;
    out.reserve(1024 * 4 * 64);
    for (int s = 0; s < 3; ++s) {
      out.clear();
      REQUIRE_OK(test::RunStep(engine->get(), Phase::kPrefill, process.Next(64), 64, &out));
    }
    for (int s = 0; s < 20; ++s) {
      out.clear();
      REQUIRE_OK(test::RunStep(engine->get(), Phase::kDecode, process.Next(2), 2, &out));
    }
    // Lowered live, and the memory really goes back.
    REQUIRE_OK((*engine)->SetBudget(Budget::Bytes(48 << 20)));
    CHECK(AnonymousBytes() - before < (48 << 20) + (12 << 20));
    for (int s = 0; s < 5; ++s) {
      out.clear();
      REQUIRE_OK(test::RunStep(engine->get(), Phase::kDecode, process.Next(2), 2, &out));
    }
    stats = (*engine)->stats();
  }
  running = false;
  sampler.join();
  CHECK(stats.peak_bytes <= 96 << 20);
  CHECK(stats.evictions > 100);
  // Thread stacks, the test's own vectors and allocator slack are not the engine's: 12 MiB of
  // grace.
  INFO("process peak " << most - before << " of " << (96 << 20));
  CHECK(most - before > 60 << 20);
  CHECK(most - before <= (96 << 20) + (12 << 20));
}

}  // namespace
}  // namespace moert
