// The examples in the comments of public headers, as they stand there (header_examples.cmake). The
// code around each of them is what its reader is taken to have.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "moert.h"
#include "moert/engine.h"
#include "moert/expert_store.h"
#include "moert/parallel/collectives.h"
#include "moert/parallel/expert_parallel.h"
#include "moert/policy.h"
#include "moert/prefetcher.h"
#include "moert/rules.h"
#include "moert/source/opaque_source.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/ranks.h"
#include "support/shards.h"
#include "support/synthetic_source.h"
#include "support/temp_dir.h"

// Examples leave errors out.
#pragma GCC diagnostic ignored "-Wunused-result"

namespace moert {
namespace {

constexpr int64_t kRows = 2, kHidden = 64;

struct Rows {
  std::vector<float> x = std::vector<float>(kRows * kHidden, 0.5f);
  std::vector<float> y = std::vector<float>(kRows * kHidden, 0.0f);
  MatrixView hidden() const { return {x.data(), DType::kF32, kRows, kHidden, kHidden}; }
  MutableMatrixView out() { return {y.data(), DType::kF32, kRows, kHidden, kHidden}; }
  bool written() const {
    return std::any_of(y.begin(), y.end(), [](float value) { return value != 0; });
  }
};

std::shared_ptr<const ExpertSource> Source() {
  return std::make_shared<test::SyntheticSource>(test::SyntheticShape{.experts = 32});
}

TEST_CASE("engine.h") {
  const std::unique_ptr<Engine> engine = *Engine::Create(Source(), {});
  Rows data;
  const int64_t rows = kRows;
  const MatrixView hidden = data.hidden();
  const MutableMatrixView out = data.out();
#include "header_examples/engine.inc"
  CHECK(data.written());
}

TEST_CASE("expert_store.h") {
  const auto source = Source();
  const int layer = 1;
  std::vector<int> seen;
  const auto Multiply = [&](const ExpertView& expert) { seen.push_back(expert.expert); };
#include "header_examples/expert_store.inc"
  CHECK(seen == std::vector<int>{3, 17});
}

TEST_CASE("expert_parallel.h") {
  const auto source = Source();
  auto groups = *MakeThreadCollectives(2, int64_t{60} * 1000 * 1000 * 1000);
  const std::vector<Shard> shards = {test::Experts(0, 16, true), test::Experts(16, 16, false)};
  const auto statuses = test::OnRanks(2, [&](int rank) -> absl::Status {
    const std::shared_ptr<Collectives> group = std::move(groups[static_cast<size_t>(rank)]);
    const EngineOptions options;
    const int layers = source->model().num_layers();
    const int64_t rows = kRows;
    Rows data;
    const MatrixView hidden = data.hidden();
    const MutableMatrixView out = data.out();
#include "header_examples/expert_parallel.inc"
    return data.written() ? absl::OkStatus() : absl::InternalError("nothing is written");
  });
  for (const absl::Status& status : statuses) CHECK(status.ok());
}

TEST_CASE("opaque_source.h") {
  MoeLayerSpec layer;
  layer.num_experts = 4;
  layer.hidden = 16;
  layer.intermediate = 32;
  layer.routing.kind = RoutingKind::kExternal;
  const std::vector<char> bytes(4 * 96);
  OpaquePart gate;
  gate.bytes = 96;
  gate.memory = bytes.data();
  const OpaquePart up = gate, down = gate;
#include "header_examples/opaque_source.inc"
  REQUIRE(source.ok());
  CHECK((*source)->layout(0, 0, 0).bytes >= 3 * 96);
}

struct ExpertFive final : PrefetchPolicy {
  std::vector<PrefetchCandidate> Rank(const PrefetchSnapshot& snapshot) override {
    return {{.key = {snapshot.target_layer, 5}, .score = 1}};
  }
};

TEST_CASE("prefetcher.h") {
  const auto store = *ExpertStore::Create(Source(), {.budget_bytes = int64_t{1} << 20});
  ExpertFive policy;
  const auto prefetcher = *Prefetcher::Create(&policy, store.get(), {.controlled = false});
  const int layer = 0;
  const Phase phase = Phase::kDecode;
  RoutingResult routing;
  routing.tokens = 1;
  routing.num_experts = 32;
  routing.counts.resize(32);
  routing.counts[3] = 1;
  const std::vector<ExpertKey> misses = {{layer, 3}};
  absl::StatusOr<ExpertStore::Lease> lease;
  int multiplied = 0;
  const auto Multiply = [&](const ExpertStore::Lease& there) {
    multiplied = static_cast<int>(there.experts().size());
  };
#include "header_examples/prefetcher.inc"
  CHECK(multiplied == 1);
  CHECK(prefetcher->stats().issued == 1);
}

#include "header_examples/rules.inc"

TEST_CASE("rules.h") {
  const auto rule = OverAllLayers().rule();
  REQUIRE(rule.has_value());
  CHECK(rule->shared_slots);
}

TEST_CASE("moert.h") {
  const test::TempDir folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::create_directory_symlink(SourceDir() + "/examples/models/tiny-moe",
                                            folder / "model-dir");
  REQUIRE(::chdir(folder.path().c_str()) == 0);
  moert_error* error = nullptr;
  moert_engine_options options;
  moert_engine_options_init(&options, sizeof(options));
  options.budget_fraction = 0.5;
  moert_step_options step_options;
  moert_step_options_init(&step_options, sizeof(step_options));
  step_options.rows = 1;
  constexpr int64_t kTinyHidden = 128;
  std::vector<float> in(kTinyHidden, 0.5f), result(kTinyHidden, 0.0f);
  moert_tensor x, out;
  moert_tensor_init(&x, in.data(), 1, kTinyHidden, MOERT_F32);
  moert_tensor_init(&out, result.data(), 1, kTinyHidden, MOERT_F32);
  int32_t l;
#include "header_examples/moert.inc"
  CHECK(result[0] != 0);
  moert_engine_destroy(engine);
  moert_source_destroy(source);
  CHECK(error == nullptr);
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace moert
