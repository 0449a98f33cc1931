// HQQ and GPTQ against the packages of their authors' code on PyPI: the same matrices, the errors
// that those left (tests/data/quantizers/generate.py).
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "offline/gptq.h"
#include "offline/hqq.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

using Json = nlohmann::json;

// A tensor of a safetensors file with fp32 or bf16 values.
std::vector<float> ReadTensor(const std::string& file, const std::string& name) {
  const std::string bytes = ReadWholeFile(file);
  uint64_t size = 0;
  for (int i = 7; i >= 0; --i) size = size << 8 | static_cast<uint8_t>(bytes[i]);
  const Json entry = Json::parse(bytes.substr(8, size))[name];
  const size_t begin = 8 + size + entry["data_offsets"][0].get<size_t>();
  const size_t end = 8 + size + entry["data_offsets"][1].get<size_t>();
  const size_t width = entry["dtype"] == "BF16" ? 2 : 4;
  std::vector<float> values;
  for (size_t at = begin; at < end; at += width) {
    uint32_t bits = 0;
    for (size_t b = 0; b < width; ++b) {
      bits |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + b])) << (8 * (b + 4 - width));
    }
    values.push_back(std::bit_cast<float>(bits));
  }
  return values;
}

double MeanSquare(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += double{x} * x;
  return sum / static_cast<double>(v.size());
}

TEST_CASE("reconstruction errors are those of the reference packages, or less") {
  const Json reference =
      Json::parse(ReadWholeFile(SourceDir() + "/tests/data/quantizers/reference.json"));
  REQUIRE(reference["errors"].size() == 8);
  constexpr int64_t kHidden = 128;
  for (const Json& e : reference["errors"]) {
    const int layer = e["layer"], bits = e["bits"], group = e["group"];
    std::vector<float> w;
    for (int expert = 0; expert < 8; ++expert) {
      const std::vector<float> gate =
          ReadTensor(TinyModelDir() + "/model.safetensors",
                     "model.layers." + std::to_string(layer) + ".mlp.experts." +
                         std::to_string(expert) + ".gate_proj.weight");
      w.insert(w.end(), gate.begin(), gate.end());
    }
    const int64_t rows = static_cast<int64_t>(w.size()) / kHidden;
    const Scheme scheme =
        *Scheme::Parse("w" + std::to_string(bits) + "a16_g" + std::to_string(group) + "_asym");
    const auto layout = MakeRecordLayout(kHidden, rows, ExpertFormat::Uniform(scheme));
    REQUIRE_OK(layout.status());
    const auto difference = [&](const QuantizedMatrix& q) {
      std::vector<float> d = Dequantize(scheme, q);
      for (size_t i = 0; i < d.size(); ++i) d[i] -= w[i];
      return d;
    };
    // The published method, but that scales and zeros are rounded to bf16, as they are stored.
    HqqOptions published;
    published.scales = 1;
    const double hqq_same = MeanSquare(difference(QuantizeHqq(layout->gate, w, published)));
    const double hqq = MeanSquare(difference(QuantizeHqq(layout->gate, w)));

    const std::vector<float> x = ReadTensor(EvalDir() + "/moe_io_wikitext2_256.safetensors",
                                            "layers." + std::to_string(layer) + ".gate_input");
    InputMoments moments(kHidden);
    REQUIRE_OK(moments.Add(x, {}));
    const auto factor = FactorMoments(moments, {});
    REQUIRE_OK(factor.status());
    const auto q = QuantizeGptq(layout->gate, w, *factor);
    REQUIRE_OK(q.status());
    const std::vector<float> d = difference(*q);
    std::vector<float> change;
    for (size_t t = 0; t < x.size(); t += kHidden) {
      for (size_t r = 0; r < d.size(); r += kHidden) {
        float sum = 0;
        for (size_t i = 0; i < kHidden; ++i) sum += x[t + i] * d[r + i];
        change.push_back(sum);
      }
    }
    const double gptq = MeanSquare(change);
    const double hqq_theirs = e["hqq_weight_mse"], gptq_theirs = e["gptq_output_mse"];
    const std::string line = fmt::format(
        "layer {} {}: hqq published {:.5g}, ours {:.5g}, package {:.5g}; gptq {:.5g}, package "
        "{:.5g}",
        layer, scheme.Name(), hqq_same, hqq, hqq_theirs, gptq, gptq_theirs);
    INFO(line);
    // Their scales and zeros are fp32.
    CHECK(std::abs(hqq_same / hqq_theirs - 1) < 0.015);
    CHECK(hqq < 1.01 * hqq_theirs);
    CHECK(gptq < 1.01 * gptq_theirs);
  }
}

}  // namespace
}  // namespace moert
