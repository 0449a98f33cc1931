// The frozen workloads against what was published and recorded (docs/results/workloads.md): means
// over seeds, each with its stated tolerance.
#include "cli/workload/workload.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "cli/common/any_trace.h"
#include "cli/workload/facts.h"
#include "cli/workload/shapes.h"
#include "cli/workload/workload_trace.h"
#include "support/paths.h"
#include "tests/support/catch.h"

namespace moert::cli {
namespace {

constexpr uint64_t kSeeds[] = {1, 2, 3, 4};

RoutingFacts Facts(const std::string& shape, const std::string& workload, uint64_t seed,
                   const StepPlan& plan) {
  const auto parsed = ParseShape(shape);
  REQUIRE_OK(parsed.status());
  auto trace = MakeWorkloadTrace(*parsed, workload, seed, plan);
  REQUIRE_OK(trace.status());
  auto facts = MeasureRouting(trace->get());
  REQUIRE_OK(facts.status());
  return *facts;
}

/// Mean over the seeds of one number.
template <typename Get>
double Mean(const std::string& shape, const std::string& workload, const StepPlan& plan, Get get) {
  double sum = 0;
  for (const uint64_t seed : kSeeds) sum += get(Facts(shape, workload, seed, plan));
  return sum / static_cast<double>(std::size(kSeeds));
}

StepPlan Decode(int64_t steps, int64_t batch = 1) {
  StepPlan plan;
  plan.steps = steps;
  plan.batch = batch;
  return plan;
}

TEST_CASE("cosine of adjacent gate inputs: 0.888") {
  double sum = 0;
  int64_t count = 0;
  for (const uint64_t seed : kSeeds) {
    const Shape shape = *ParseShape("qwen1.5-moe");
    auto workload = Workload::Create("steady", shape.spec, shape.common_share, seed);
    REQUIRE_OK(workload.status());
    std::vector<float> before(2048), now(2048);
    for (int t = 0; t < 20; ++t) {
      workload->BeginStep(std::vector<WorkloadRow>{{0}});
      for (int l = 0; l < shape.spec.num_layers(); ++l) {
        workload->NextLayer();
        workload->Hidden(now.data());
        double dot = 0, aa = 0, bb = 0;
        for (size_t i = 0; i < now.size(); ++i) {
          dot += before[i] * now[i];
          aa += before[i] * before[i];
          bb += now[i] * now[i];
        }
        CHECK(bb / 2048 == Approx(1).margin(0.15));
        if (l > 0) {
          sum += dot / std::sqrt(aa * bb);
          ++count;
        }
        before.swap(now);
      }
    }
  }
  CHECK(sum / static_cast<double>(count) == Approx(0.888).margin(0.008));
}

TEST_CASE("next-layer gate: 78.8 % of the top k, 97.15 % of the 75th percentile") {
  double topk = 0, quarter = 0;
  for (const char* shape : {"qwen1.5-moe", "deepseek-moe-16b"}) {
    for (const uint64_t seed : kSeeds) {
      const RoutingFacts f = Facts(shape, "steady", seed, Decode(60));
      topk += f.mean_recall_topk / 8;
      quarter += f.mean_recall_quarter / 8;
      // Shallow layers are the hard ones (Fate Sec. 4.3).
      const auto mean = [&](int from, int to) {
        double sum = 0;
        for (int l = from; l < to; ++l) sum += f.recall_topk[l];
        return sum / (to - from);
      };
      CHECK(mean(1, 4) < mean(12, 24) - 0.05);
    }
  }
  CHECK(topk == Approx(0.788).margin(0.02));
  CHECK(quarter == Approx(0.9715).margin(0.01));
}

TEST_CASE("activation density: the tables of DynaExq") {
  const auto check = [](const char* shape, const char* workload, StepPlan plan,
                        const std::vector<double>& published, double tolerance) {
    int64_t batch = 1;
    for (const double percent : published) {
      plan.batch = batch;
      const double density =
          100 * Mean(shape, workload, plan, [](const RoutingFacts& f) { return f.density; });
      INFO(shape << " batch " << batch << ": " << density << " published " << percent);
      CHECK(std::abs(density - percent) < tolerance);
      batch *= 2;
    }
  };
  check("qwen3-30b:8", "mixed", Decode(8), {6.3, 11.6, 20.1, 31.9, 46.5, 62.0}, 3.0);
  check("qwen3-next-80b:4", "mixed", Decode(8), {1.9, 3.7, 6.7, 14.9, 25.4, 39.2}, 2.0);
  // The paper averages over 27 layers of which one is dense.
  std::vector<double> v2 = {9.0, 14.9, 23.2, 35.9, 51.7, 67.6};
  for (double& percent : v2) percent *= 27.0 / 26.0;
  check("deepseek-v2-lite:8", "mixed", Decode(8), v2, 5.0);
  // Prompts of one domain; their length is not published, 56 tokens fit the first number.
  StepPlan prefill;
  prefill.phase = Phase::kPrefill;
  prefill.steps = 2;
  prefill.prompt_tokens = 56;
  check("qwen3-30b:4", "steady", prefill, {46.9, 60.0, 73.4, 84.4, 92.8, 96.6}, 5.0);
}

TEST_CASE("LRU holds 90 to 95 % at 40 % residency on Qwen3-30B-A3B") {
  const auto facts = [](auto get) { return Mean("qwen3-30b:8", "steady", Decode(500), get); };
  const double lru = facts([](const RoutingFacts& f) { return f.lru[1]; });
  CHECK(lru > 0.90);
  CHECK(lru < 0.95);
  const double reuse = facts([](const RoutingFacts& f) { return f.reuse; });
  CHECK(reuse > 0.26);  // recorded: 0.26 to 0.57 by layer
  CHECK(reuse < 0.57);
}

TEST_CASE("scores and predictions lie within what the trained models' traces show") {
  double low_top = 1, high_top = 0, low_beta = 1, high_beta = 0, low_mass = 1, high_mass = 0;
  for (const char* domain : {"wikitext2", "gsm8k", "humaneval"}) {
    const std::string root = SourceDir();
    auto trace = OpenAnyTrace(root + "/tests/data/traces/tiny-" + domain + ".safetensors",
                              root + "/examples/models/tiny-moe");
    REQUIRE_OK(trace.status());
    const auto f = MeasureRouting(trace->get());
    REQUIRE_OK(f.status());
    CHECK(f->mean_recall_quarter == Approx(0.972).margin(0.003));  // as the recording's README says
    low_top = std::min(low_top, f->top_score), high_top = std::max(high_top, f->top_score);
    low_mass = std::min(low_mass, f->topk_mass), high_mass = std::max(high_mass, f->topk_mass);
    low_beta = std::min(low_beta, f->beta_over_top);
    high_beta = std::max(high_beta, f->beta_over_top);
  }
  const auto mean = [](auto get) { return Mean("tiny", "steady", Decode(200), get); };
  const double top = mean([](const RoutingFacts& f) { return f.top_score; });
  const double mass = mean([](const RoutingFacts& f) { return f.topk_mass; });
  const double beta = mean([](const RoutingFacts& f) { return f.beta_over_top; });
  constexpr double kMargin = 0.05;
  CHECK(top > low_top - kMargin);
  CHECK(top < high_top + kMargin);
  CHECK(mass > low_mass - kMargin);
  CHECK(mass < high_mass + kMargin);
  CHECK(beta > low_beta - kMargin);
  CHECK(beta < high_beta + kMargin);
}

TEST_CASE("uniform has no structure to exploit") {
  const RoutingFacts f = Facts("qwen3-30b:4", "uniform", 1, Decode(600));
  CHECK(f.lru[0] == Approx(0.2).margin(0.02));
  CHECK(f.lru[1] == Approx(0.4).margin(0.02));
  CHECK(f.lru[2] == Approx(0.6).margin(0.02));
  CHECK(f.reuse == Approx(8.0 / 128).margin(0.01));
  CHECK(f.mean_recall_topk == Approx(8.0 / 128).margin(0.01));
  CHECK(f.mean_recall_quarter == Approx(0.25).margin(0.02));
  CHECK(f.entropy > 0.98);
}

TEST_CASE("scattered tokens share nothing, and the layers of one do") {
  const RoutingFacts f = Facts("qwen3-30b:12", "scattered", 1, Decode(400));
  CHECK(f.lru[1] == Approx(0.4).margin(0.02));
  CHECK(f.reuse == Approx(8.0 / 128).margin(0.01));
  CHECK(f.entropy > 0.98);
  const double steady = Facts("qwen3-30b:12", "steady", 1, Decode(400)).mean_recall_topk;
  CHECK(f.mean_recall_topk == Approx(steady).margin(0.1));
}

TEST_CASE("a domain shift changes the popular experts, and they come back") {
  const Shape shape = *ParseShape("qwen3-30b:4");
  auto trace = MakeWorkloadTrace(shape, "shift", 3, Decode(4 * 256));
  REQUIRE_OK(trace.status());
  std::vector<std::vector<double>> use(4, std::vector<double>(4 * 128, 0));
  while (true) {
    auto call = (*trace)->Next();
    REQUIRE_OK(call.status());
    if (*call == nullptr) break;
    for (const int32_t e : (*call)->ids) {
      use[(*call)->step / 256][(*call)->layer * 128 + e] += 1.0 / (4 * 256 * 8);
    }
  }
  const auto distance = [&](int a, int b) {
    double sum = 0;
    for (size_t i = 0; i < use[a].size(); ++i) sum += std::abs(use[a][i] - use[b][i]) / 2;
    return sum;
  };
  // Recorded between domains: 0.36 to 0.89. The fourth segment is the first one's domain again.
  CHECK(distance(0, 1) > 0.36);
  CHECK(distance(1, 2) > 0.36);
  CHECK(distance(0, 3) < 0.5 * distance(0, 1));
}

TEST_CASE("a seed is a run, and a request's routing does not depend on its neighbours") {
  const Shape shape = *ParseShape("qwen1.5-moe:3");
  const auto routing = [&](uint64_t seed, int64_t batch) {
    auto trace = MakeWorkloadTrace(shape, "mixed", seed, Decode(20, batch));
    REQUIRE_OK(trace.status());
    std::vector<int32_t> ids;
    for (int pass = 0; pass < 2; ++pass) {  // a rewound trace is the same trace
      std::vector<int32_t> again;
      while (true) {
        auto call = (*trace)->Next();
        REQUIRE_OK(call.status());
        if (*call == nullptr) break;
        again.insert(again.end(), (*call)->ids.begin(), (*call)->ids.begin() + 4);
      }
      if (pass == 1) REQUIRE(again == ids);
      ids = again;
      REQUIRE_OK((*trace)->Rewind());
    }
    return ids;
  };
  CHECK(routing(1, 1) == routing(1, 3));
  CHECK(routing(1, 1) != routing(2, 1));
}

TEST_CASE("the gate times the hidden state is the logits") {
  const Shape shape = *ParseShape("qwen1.5-moe:2");
  auto workload = Workload::Create("steady", shape.spec, shape.common_share, 5);
  REQUIRE_OK(workload.status());
  workload->BeginStep(std::vector<WorkloadRow>{{0}, {1}});
  for (int layer = 0; layer < 2; ++layer) {
    workload->NextLayer();
    std::vector<float> x(2 * 2048), logits(2 * 60);
    workload->Hidden(x.data());
    workload->Logits(layer, logits.data());
    const std::vector<float> gate = workload->Gate(layer);
    double spread = 0;
    for (int t = 0; t < 2; ++t) {
      for (int e = 0; e < 60; ++e) {
        double z = 0;
        for (int i = 0; i < 2048; ++i) z += double{gate[e * 2048 + i]} * x[t * 2048 + i];
        CHECK(z == Approx(logits[t * 60 + e]).margin(1e-4));
        spread += z * z / 120;
      }
    }
    CHECK(std::sqrt(spread) == Approx(workload->parameters().gain).epsilon(0.25));
  }
}

TEST_CASE("hidden states made side by side are the same numbers") {
  const Shape shape = *ParseShape("tiny:2");
  auto alone = Workload::Create("mixed", shape.spec, shape.common_share, 6);
  auto pooled = Workload::Create("mixed", shape.spec, shape.common_share, 6);
  REQUIRE_OK(alone.status());
  const auto pool = CreateThreadPool({3});
  REQUIRE_OK(pool.status());
  const std::vector<WorkloadRow> rows = {{0}, {1}, {1}, {2}, {0}};
  for (int step = 0; step < 2; ++step) {
    alone->BeginStep(rows);
    pooled->BeginStep(rows);
    for (int layer = 0; layer < 2; ++layer) {
      std::vector<float> x(5 * 128), y(5 * 128);
      alone->NextLayer();
      pooled->NextLayer();
      alone->Hidden(x.data());
      pooled->Hidden(y.data(), pool->get());
      CHECK(x == y);
    }
  }
}

TEST_CASE("unknown names are errors that list the known ones") {
  CHECK_THAT(std::string(ParseShape("qwen9").status().message()), Catch::Contains("qwen3-30b"));
  CHECK_THAT(std::string(ParseShape("qwen3-30b:0").status().message()),
             Catch::Contains("[1, 1000]"));
  const Shape shape = *ParseShape("tiny");
  CHECK_THAT(std::string(Workload::Create("chat", shape.spec, 0.3, 1).status().message()),
             Catch::Contains("steady"));
  for (const Shape& s : AllShapes()) CHECK(s.spec.Validate().ok());
  // Parameters of the routed experts, billions, as the models' cards have them.
  const auto billions = [](const char* name) {
    const Shape s = *ParseShape(name);
    double sum = 0;
    for (const MoeLayerSpec& l : s.spec.layers) {
      sum += 3e-9 * static_cast<double>(l.hidden * l.intermediate * l.num_experts);
    }
    return sum;
  };
  CHECK(billions("qwen1.5-moe") == Approx(12.5).margin(0.1));
  CHECK(billions("deepseek-moe-16b") == Approx(14.9).margin(0.1));
  CHECK(billions("deepseek-v2-lite") == Approx(14.4).margin(0.1));
  CHECK(billions("xverse-moe") == Approx(23.8).margin(0.1));
  CHECK(billions("qwen2-57b") == Approx(49.3).margin(0.1));
  CHECK(billions("qwen3-30b") == Approx(29.0).margin(0.1));
  CHECK(billions("qwen3-next-80b") == Approx(77.3).margin(0.1));
  CHECK(billions("mixtral") == Approx(45.1).margin(0.1));
  CHECK(billions("phi-3.5-moe") == Approx(40.3).margin(0.1));
  CHECK(billions("gpt-oss-20b") == Approx(19.1).margin(0.1));
  CHECK(billions("gpt-oss-120b") == Approx(114.7).margin(0.1));
  CHECK(billions("llama4-scout") == Approx(96.6).margin(0.1));
}

}  // namespace
}  // namespace moert::cli
