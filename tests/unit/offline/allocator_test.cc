#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "moert/offline/allocate.h"
#include "moert/offline/plan.h"
#include "pack/calibration_lines.h"
#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::TempDir;

Calibration Example() {
  Calibration c;
  std::mt19937 rng(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (const char* name : {"w8a16_g128", "w4a16_g128", "w3a16_g128_asym", "w2a16_g128_asym"}) {
    c.schemes.push_back(*Scheme::Parse(name));
  }
  c.tokens = 1000;
  c.window = 100;
  c.tokens_checksum = "0123456789abcdef";
  c.method = "gptq";
  c.model.architecture = "test";
  for (int l = 0; l < 3; ++l) {
    MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = 8;
    layer.hidden = 128;
    layer.intermediate = 128;
    layer.routing.top_k = 2;
    c.model.layers.push_back(layer);
    LayerCalibration& m = c.layers.emplace_back();
    m.output_norm = 10;
    m.cross_layer_accuracy = l == 0 ? 0 : 0.8;
    for (int e = 0; e < 8; ++e) {
      m.selections.push_back(100 + 50 * e);
      m.weight_sums.push_back(30);
      for (int b = 0; b < kLinearBlocks; ++b) {
        const double importance = std::exp(2 * uniform(rng));
        for (const double bits : {8, 4, 3, 2}) m.delta.push_back(importance * std::exp2(-bits));
      }
    }
  }
  return c;
}

AllocationOptions At(const Calibration& c, double bits) {
  AllocationOptions o;
  o.capacity = CapacityOf(c.model, bits);
  const auto costs = LoadCostTable("h200", Env::Default());
  REQUIRE_OK(costs.status());
  o.costs = *costs;
  if (!HaveMilp()) o.solver = AllocationSolver::kRelaxation;
  return o;
}

TEST_CASE("a finer granularity never loses more; gate and up are tied unless it is asked for") {
  const Calibration c = Example();
  for (const double bits : {2.3, 3.0, 4.5}) {
    AllocationOptions o = At(c, bits);
    double last = INFINITY;
    for (const Granularity g : {Granularity::kLayer, Granularity::kExpert, Granularity::kLinear}) {
      o.granularity = g;
      const auto a = Allocate(c, o);
      REQUIRE_OK(a.status());
      CHECK(a->stored_bits <= bits);
      CHECK(a->loss <= last * (1 + 1e-4));
      last = a->loss;
      for (const ExpertFormat& f : a->version.formats) CHECK(f.gate == f.up);
      // The plan's prediction is the optimized value.
      const auto again = Predict(c, o, a->version);
      REQUIRE_OK(again.status());
      CHECK(again->loss == Approx(a->loss));
      CHECK(again->bytes == a->bytes);
      CHECK(again->seconds == Approx(a->seconds));
    }
    o.untied = true;
    const auto untied = Allocate(c, o);
    REQUIRE_OK(untied.status());
    CHECK(untied->loss <= last * (1 + 1e-4));
    o.untied = false;
    o.per_layer = true;
    const auto per_layer = Allocate(c, o);
    REQUIRE_OK(per_layer.status());
    CHECK(per_layer->loss >= last * (1 - 1e-4));
  }
}

TEST_CASE("what the layers of a model mean to it decides between them") {
  Calibration c = Example();
  // Two layers alike but for what an error of theirs costs the model.
  c.layers[1] = c.layers[0];
  c.layers[2] = c.layers[0];
  c.probe_tokens = 512;
  c.probe_scheme = c.schemes.back();
  for (LayerCalibration& layer : c.layers) layer.loss_per_square = {1e-3, 1e-3};
  c.layers[2].loss_per_square = {1e-1, 1e-3};
  c.layers[1].output_norm = 1;
  const auto gate_bits = [&](const Allocation& a, int layer) {
    int bits = 0;
    for (int e = 0; e < 8; ++e) bits += a.version.format(layer, e).gate.weight_bits;
    return bits;
  };
  AllocationOptions o = At(c, 4);
  CHECK(MeasureFor(c, LossMeasure::kAuto) == LossMeasure::kEndToEnd);
  const auto end_to_end = Allocate(c, o);
  REQUIRE_OK(end_to_end.status());
  CHECK(gate_bits(*end_to_end, 2) > gate_bits(*end_to_end, 0));
  o.measure = LossMeasure::kRelative;
  const auto relative = Allocate(c, o);
  REQUIRE_OK(relative.status());
  CHECK(gate_bits(*relative, 1) > gate_bits(*relative, 2));
  // Each is the best by its own measure.
  for (const LossMeasure measure : {LossMeasure::kEndToEnd, LossMeasure::kRelative}) {
    o.measure = measure;
    const auto first = Predict(c, o, end_to_end->version);
    const auto second = Predict(c, o, relative->version);
    REQUIRE_OK(first.status());
    REQUIRE_OK(second.status());
    CHECK((first->loss < second->loss) == (measure == LossMeasure::kEndToEnd));
  }
  // The loss is in nats: the sum of what each block's error costs.
  o.measure = LossMeasure::kEndToEnd;
  double nats = 0;
  for (int l = 0; l < 3; ++l) {
    for (int e = 0; e < 8; ++e) {
      const ExpertFormat& f = end_to_end->version.format(l, e);
      const Scheme* const schemes[] = {&f.gate, &f.up, &f.down};
      for (int b = 0; b < kLinearBlocks; ++b) {
        size_t k = 0;
        while (!(c.schemes[k] == *schemes[b])) ++k;
        const LayerCalibration& layer = c.layers[static_cast<size_t>(l)];
        nats += layer.loss_per_square[b == 2 ? 1 : 0] * std::pow(layer.Delta(e, b, k, 4), 2);
      }
    }
  }
  CHECK(end_to_end->loss == Approx(nats));
  c.probe_tokens = 0;
  CHECK(Allocate(c, o).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(MeasureFor(c, LossMeasure::kAuto) == LossMeasure::kRelative);
}

TEST_CASE("random plans differ, fill the capacity and know nothing of the losses") {
  Calibration c = Example();
  AllocationOptions o = At(c, 3.1);
  o.random_seed = 1;
  const auto first = Allocate(c, o);
  const auto again = Allocate(c, o);
  o.random_seed = 2;
  const auto second = Allocate(c, o);
  REQUIRE_OK(first.status());
  REQUIRE_OK(second.status());
  CHECK(first->version.assignment == again->version.assignment);
  CHECK(first->version.formats == again->version.formats);
  CHECK((first->version.assignment != second->version.assignment ||
         first->version.formats != second->version.formats));
  CHECK(first->stored_bits <= 3.1);
  CHECK(first->stored_bits > 3.0);
  o.random_seed.reset();
  const auto best = Allocate(c, o);
  REQUIRE_OK(best.status());
  CHECK(best->loss < first->loss);
  const auto predicted = Predict(c, o, first->version);
  REQUIRE_OK(predicted.status());
  CHECK(predicted->loss == Approx(first->loss));
  for (LayerCalibration& layer : c.layers) {
    std::reverse(layer.delta.begin(), layer.delta.end());
  }
  o.random_seed = 1;
  const auto blind = Allocate(c, o);
  REQUIRE_OK(blind.status());
  CHECK(blind->version.assignment == first->version.assignment);
}

TEST_CASE("bytes are those of the records") {
  const Calibration c = Example();
  const auto a = Allocate(c, At(c, 3.3));
  REQUIRE_OK(a.status());
  int64_t bytes = 0;
  for (int l = 0; l < 3; ++l) {
    for (int e = 0; e < 8; ++e) {
      const auto layout = MakeRecordLayout(128, 128, a->version.format(l, e));
      REQUIRE_OK(layout.status());
      bytes += layout->bytes;
    }
  }
  CHECK(a->bytes == bytes);
}

TEST_CASE("a capacity that no integer holds is the largest") {
  const Calibration c = Example();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  CHECK(CapacityOf(c.model, 1e300) == kMost);
  CHECK(CapacityOf(c.model, -1) == 0);
  Calibration one = c;  // a layer whose share is all of it
  one.model.layers.resize(1);
  one.layers.resize(1);
  AllocationOptions o = At(one, 4);
  o.capacity = kMost;
  o.per_layer = true;
  const auto a = Allocate(one, o);
  REQUIRE_OK(a.status());
  CHECK(a->version.format(0, 0).up == *Scheme::Parse("w8a16_g128"));
}

TEST_CASE("time: a smaller r never takes longer") {
  const Calibration c = Example();
  AllocationOptions o = At(c, 6);
  double last = 0;
  for (const double r : {0.0, 0.5, 0.75, 1.0}) {
    o.r = r;
    const auto a = Allocate(c, o);
    REQUIRE_OK(a.status());
    CHECK(a->seconds >= last * (1 - 1e-3));
    last = a->seconds;
  }
}

TEST_CASE("the expected cost of tiles") {
  const TempDir dir;
  const std::string path = dir / "costs";
  test::WriteFile(path, R"({"name": "t", "rates": {"bf16": [[1.27, 2e12], [16, 4e12]]}})");
  const auto table = LoadCostTable(path, Env::Default());
  REQUIRE_OK(table.status());
  const Scheme bf16;
  const double once = 4e12 * *table->Seconds(bf16, 1, 16);
  CHECK(once == Approx(1).epsilon(1e-3));                               // weights once
  CHECK(4e12 * *table->Seconds(bf16, 1, 1000) == Approx(1000.0 / 16));  // tokens count
  CHECK(2e12 * *table->Seconds(bf16, 1, 0.01) == Approx(0.00995).epsilon(1e-3));
  CHECK(*table->Seconds(bf16, 1, 0) == 0);
  const auto missing = table->Seconds(*Scheme::Parse("w4a4"), 1, 1);
  CHECK(missing.status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("the shipped cost table knows what a GPU executes") {
  const auto table = LoadCostTable("h200", Env::Default());
  REQUIRE_OK(table.status());
  CHECK(table->name == "h200");
  for (const char* name : {"w8a16_g128", "w4a16_g128", "w4a16_g128_asym", "w4a16_g-1_asym",
                           "w3a16_g128_asym", "w3a16_g-1_asym", "w2a16_g64_asym", "w2a16_g128_asym",
                           "w2a16_g-1_asym", "w8a8", "w4a8_g128"}) {
    INFO(name);
    // Costs of a matrix of 2048 x 768: a tenth of a microsecond to a hundred of them, and never
    // less for more tokens.
    const auto scheme = *Scheme::Parse(name);
    double last = 0;
    for (const double tokens : {0.1, 1.0, 2.0, 8.0, 32.0, 300.0}) {
      const auto seconds = table->Seconds(scheme, 2048 * 768 * scheme.weight_bits / 8, tokens);
      REQUIRE_OK(seconds.status());
      CHECK(*seconds > last);
      last = *seconds;
    }
    CHECK(last < 1e-4);
    CHECK(*table->Seconds(scheme, 2048 * 768, 1) > 1e-7);
  }
}

TEST_CASE("cost tables of files: between, before and behind their points") {
  const TempDir dir;
  const std::string path = dir / "costs";
  test::WriteFile(path, R"({"name": "t", "rates": {"bf16": [[10, 8e12], [1000, 2e12]]}})");
  const auto table = LoadCostTable(path, Env::Default());
  REQUIRE_OK(table.status());
  const Scheme bf16;
  CHECK(*table->Seconds(bf16, 8, 100) == Approx(2e-12));  // half way, of logarithms
  CHECK(*table->Seconds(bf16, 8, 9) == Approx(1e-12).epsilon(1e-3));
  CHECK(*table->Seconds(bf16, 8, 4000) == Approx(16e-12));
  for (const char* bad :
       {R"({"name": "t"})", R"({"name": "t", "rates": []})",
        R"({"name": "t", "rates": {"bf16": 3}})", R"({"name": "t", "rates": {"bf16": []}})",
        R"({"name": "t", "rates": {"bf16": [[1, 2, 3]]}})",
        R"({"name": "t", "rates": {"bf16": [[2, 1e9], [2, 1e9]]}})",
        R"({"name": "t", "rates": {"bf16": [[0, 1e9]]}})",
        R"({"name": "t", "rates": {"bf16": [[1, -1]]}})",
        R"({"name": "t", "rates": {"w5a5": [[1, 1e9]]}})"}) {
    INFO(bad);
    test::WriteFile(path, bad);
    CHECK_FALSE(LoadCostTable(path, Env::Default()).ok());
  }
}

TEST_CASE("calibration files: what is written is read, damage and nonsense are refused") {
  const TempDir dir;
  const Calibration c = Example();
  const std::string path = dir / "calibration", text = CalibrationToJson(c);
  test::WriteFile(path, text);
  const auto read = ReadCalibration(path, Env::Default());
  REQUIRE_OK(read.status());
  CHECK(CalibrationToJson(*read) == text);
  CHECK(read->layers[2].delta == c.layers[2].delta);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string damaged = text;
    const size_t at = damaged.find(from);
    REQUIRE(at != std::string::npos);
    damaged.replace(at, from.size(), to);
    test::WriteFile(path, damaged);
    INFO(from << " -> " << to);
    CHECK_FALSE(ReadCalibration(path, Env::Default()).ok());
  };
  refused("\"output_norm\":10.0", "\"output_norm\":11.0");  // the seal
  refused("\"output_norm\":10.0", "\"output_norm\":-1");
  refused("\"output_norm\":10.0", "\"output_norm\":1e999");
  refused("\"delta\":[", "\"delta\":[1,");
  refused("\"w4a16_g128\"", "\"w4a16_g129\"");
  refused("\"w4a16_g128\"", "\"w8a16_g128\"");
  refused("\"format_version\":1", "\"format_version\":2");
  refused("\"selections\":[", "\"selections\":[-");
  refused("\"tokens\":1000", "\"tokens\":0");
  // Every prefix is refused, none crashes.
  for (size_t size = 0; size < text.size(); size += 97) {
    test::WriteFile(path, text.substr(0, size));
    CHECK_FALSE(ReadCalibration(path, Env::Default()).ok());
  }
  // With the end-to-end loss.
  Calibration probed = c;
  probed.probe_tokens = 512;
  probed.probe_scheme = c.schemes[3];
  for (LayerCalibration& layer : probed.layers) layer.loss_per_square = {0.25, 0.5};
  test::WriteFile(path, CalibrationToJson(probed));
  const auto again = ReadCalibration(path, Env::Default());
  REQUIRE_OK(again.status());
  CHECK(again->probe_scheme == c.schemes[3]);
  CHECK(again->layers[1].loss_per_square == std::vector<double>{0.25, 0.5});
  probed.layers[1].loss_per_square = {0.25};
  test::WriteFile(path, CalibrationToJson(probed));
  CHECK_FALSE(ReadCalibration(path, Env::Default()).ok());
  probed.layers[1].loss_per_square = {};
  test::WriteFile(path, CalibrationToJson(probed));
  CHECK_FALSE(ReadCalibration(path, Env::Default()).ok());
  // One layer as a line.
  const std::string line = LayerCalibrationToLine(c.layers[1]);
  const auto layer = LayerCalibrationFromLine(line, 8, 4, "line");
  REQUIRE_OK(layer.status());
  CHECK(layer->delta == c.layers[1].delta);
  CHECK_FALSE(LayerCalibrationFromLine(line.substr(0, line.size() / 2), 8, 4, "line").ok());
  CHECK_FALSE(LayerCalibrationFromLine(line, 7, 4, "line").ok());
}

TEST_CASE("plans: what is written is read") {
  const TempDir dir;
  const Calibration c = Example();
  auto a = Allocate(c, At(c, 3));
  REQUIRE_OK(a.status());
  Plan plan;
  plan.model = c.model;
  plan.source_identity = "abc";
  plan.version = a->version;
  plan.version.name = "mixed \"3\"";
  plan.summary_json = R"({"stored_bits": 3.0})";
  const std::string path = dir / "plan";
  test::WriteFile(path, PlanToJson(plan));
  const auto read = ReadPlan(path, Env::Default());
  REQUIRE_OK(read.status());
  CHECK(read->version.name == plan.version.name);
  CHECK(read->version.formats == plan.version.formats);
  CHECK(read->version.assignment == plan.version.assignment);
  CHECK(read->model == plan.model);
  CHECK(PlanToJson(*read) == PlanToJson(plan));
  const std::string text = PlanToJson(plan);
  for (size_t size = 0; size + 3 < text.size(); size += 53) {
    test::WriteFile(path, text.substr(0, size));
    CHECK_FALSE(ReadPlan(path, Env::Default()).ok());
  }
}

}  // namespace
}  // namespace moert
