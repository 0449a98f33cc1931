// Rows of a prompt's steps: more where transfers are not hidden, within the workspace's bound.
#include "moert/tools/prompt_rows.h"

#include "absl/strings/match.h"
#include "moert/engine.h"
#include "support/catch.h"
#include "support/opaque_fixture.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

struct Fixture {
  std::shared_ptr<SyntheticSource> source;
  EngineOptions options;

  explicit Fixture(double share) {
    SyntheticShape shape{2, 64, 2, 64, 512, 0};
    source = std::make_shared<SyntheticSource>(shape);
    options.strategy = "on-demand";
    options.threads = 1;
    options.budget = Budget::Fraction(share);
    options.clock = ClockKind::kVirtual;
    options.max_tokens_per_forward = 32;
    options.link_gbps = 0.05;
  }
  int64_t Rows(int64_t tokens) const {
    const auto chosen = ChoosePromptRows(*source, options, tokens);
    REQUIRE_OK(chosen.status());
    CHECK(absl::StartsWith(chosen->why, std::to_string(chosen->rows) + " rows"));
    return chosen->rows;
  }
  /// Logical time of a prompt in steps of `rows`.
  int64_t PromptNs(int64_t tokens, int64_t rows) {
    options.max_tokens_per_forward = rows;
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    const int64_t hidden = source->model().layers[0].hidden;
    std::vector<float> x(tokens * hidden), y(x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 7919) % 101) / 50 - 1;
    const int64_t begin_ns = (*engine)->now_ns();
    for (int64_t done = 0; done < tokens; done += rows) {
      const int64_t now = std::min(rows, tokens - done);
      auto step = (*engine)->Begin({Phase::kPrefill, now});
      REQUIRE_OK(step.status());
      for (int l = 0; l < source->model().num_layers(); ++l) {
        REQUIRE_OK(step->Forward(l, {&x[done * hidden], DType::kF32, now, hidden, hidden},
                                 {&y[done * hidden], DType::kF32, now, hidden, hidden}));
      }
      REQUIRE_OK(step->End());
    }
    return (*engine)->now_ns() - begin_ns;
  }
};

TEST_CASE("a prompt that waits for transfers gets more rows a step, and less time") {
  Fixture f(0.25);
  const int64_t rows = f.Rows(256);
  CHECK(rows > 32);
  CHECK(rows <= 256);
  const int64_t few = f.PromptNs(256, 32);
  const int64_t chosen = f.PromptNs(256, rows);
  CHECK(static_cast<double>(chosen) < 0.75 * static_cast<double>(few));
}

TEST_CASE("rows stay where nothing is missing, or where transfers are hidden") {
  Fixture all(1);
  all.options.strategy = "resident";
  CHECK(all.Rows(256) == 32);
  Fixture quick(0.25);
  quick.options.link_gbps = 1000;
  CHECK(quick.Rows(256) == 32);
  CHECK(quick.Rows(5) == 5);
}

TEST_CASE("the workspace stays within an eighth of the budget") {
  Fixture f(0.25);
  const int64_t rows = f.Rows(int64_t{1} << 16);
  CHECK(rows < int64_t{1} << 16);
  f.options.max_tokens_per_forward = rows;
  const auto plan = Engine::Plan(*f.source, f.options);
  REQUIRE_OK(plan.status());
  CHECK(plan->workspace_bytes <= plan->budget_bytes / 8);
  f.options.max_tokens_per_forward = 2 * rows;
  CHECK(Engine::Plan(*f.source, f.options)->workspace_bytes > plan->budget_bytes / 8);
}

TEST_CASE("more choices a token than experts count as all experts") {
  test::OpaqueModel model;
  EngineOptions options;
  options.strategy = "on-demand";
  options.budget = Budget::Fraction(0.5);
  options.max_tokens_per_forward = 32;
  options.link_gbps = 1e-6;
  const auto rows = [&](int top_k) {
    for (MoeLayerSpec& layer : model.spec.layers) layer.routing.top_k = top_k;
    const auto source = MakeOpaqueSource("host", model.spec, model.InMemory());
    REQUIRE_OK(source.status());
    const auto chosen = ChoosePromptRows(**source, options, 64);
    REQUIRE_OK(chosen.status());
    return chosen->rows;
  };
  CHECK(rows(test::OpaqueModel::kExperts) == 64);
  CHECK(rows(2 * test::OpaqueModel::kExperts) == 64);
}

TEST_CASE("what has no answer is an error") {
  Fixture f(0.25);
  CHECK(
      absl::StrContains(ChoosePromptRows(*f.source, f.options, 0).status().message(), "1 or more"));
  f.options.budget = Budget::Bytes(100);
  CHECK(ChoosePromptRows(*f.source, f.options, 64).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace moert
