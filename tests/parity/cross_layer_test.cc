// Cross-layer predictability of the bundled model, with the library's own router, equals what the
// reference implementation recorded (all tokens of three domains; here every ninth window).
//
// MOERT_CROSS_LAYER_MODEL=DIR measures any model over all windows and prints JSON:
// tests/research/fate.py runs it so for docs/results/papers.md.
#include "support/cross_layer.h"

#include <cstdlib>
#include <iostream>

#include "support/catch.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

const std::vector<std::string>& Domains() {
  static const auto* domains = new std::vector<std::string>{"wikitext2", "gsm8k", "humaneval"};
  return *domains;
}

std::vector<int32_t> EveryNthWindow(const std::string& domain, size_t n) {
  constexpr size_t kWindow = 512;
  const std::vector<int32_t> all = ReadEvalTokens(domain);
  std::vector<int32_t> some;
  for (size_t w = 0; (w + 1) * kWindow <= all.size(); w += n) {
    some.insert(some.end(), all.begin() + w * kWindow, all.begin() + (w + 1) * kWindow);
  }
  return some;
}

TEST_CASE("adjacent gate inputs and predictions are as alike as recorded") {
  const char* model = std::getenv("MOERT_CROSS_LAYER_MODEL");
  const test::TempDir cache;
  nlohmann::json measured;
  std::vector<double> cosine, top_k, quarter;
  for (const std::string& domain : Domains()) {
    const auto result =
        test::MeasureCrossLayer(model != nullptr ? model : TinyModelDir(), cache.path(),
                                EveryNthWindow(domain, model != nullptr ? 1 : 9));
    REQUIRE_OK(result.status());
    measured[domain] = {{"cosine", result->cosine},
                        {"top_k", result->top_k},
                        {"quarter", result->quarter},
                        {"tokens", result->tokens},
                        {"nll", result->nll}};
    cosine.resize(result->cosine.size());
    top_k.resize(cosine.size());
    quarter.resize(cosine.size());
    for (size_t l = 0; l < cosine.size(); ++l) {
      cosine[l] += result->cosine[l] / 3;
      top_k[l] += result->top_k[l] / 3;
      quarter[l] += result->quarter[l] / 3;
    }
  }
  if (model != nullptr) {
    std::cout << measured.dump() << "\n";
    return;
  }
  double means[3] = {};
  const nlohmann::json recorded = ReadReference()["cross_layer"]["layers"];
  for (const nlohmann::json& layer : recorded) {
    const int l = layer["layer"];
    INFO("layer " << l);
    CHECK(cosine[l] == Approx(layer["cosine"].get<double>()).margin(0.01));
    CHECK(top_k[l] == Approx(layer["top4_overlap"].get<double>()).margin(0.015));
    CHECK(quarter[l] == Approx(layer["top8_recall"].get<double>()).margin(0.01));
    means[0] += cosine[l] / recorded.size();
    means[1] += top_k[l] / recorded.size();
    means[2] += quarter[l] / recorded.size();
  }
  CHECK(means[0] == Approx(0.917).margin(0.004));
  CHECK(means[1] == Approx(0.823).margin(0.006));
  CHECK(means[2] == Approx(0.972).margin(0.004));
}

}  // namespace
}  // namespace moert
