#include "moert/offline/encode_matrix.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "moert/offline/calibrate.h"
#include "support/catch.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

RecordLayout LayoutOf(const char* scheme) {
  const auto layout = MakeRecordLayout(128, 64, ExpertFormat::Uniform(*Scheme::Parse(scheme)));
  REQUIRE_OK(layout.status());
  return *layout;
}

TEST_CASE("a matrix in a record is the matrix again, the closer the more bits it has") {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> weights(64 * 128);
  for (float& w : weights) w = normal(rng);
  for (const QuantMethod method : {QuantMethod::kRtn, QuantMethod::kHqq}) {
    double last = 0;
    for (const char* scheme : {"bf16", "w8a16_g128", "w4a16_g128_asym", "w2a16_g64_asym"}) {
      const RecordLayout layout = LayoutOf(scheme);
      std::vector<std::byte> record(static_cast<size_t>(layout.bytes));
      REQUIRE_OK(EncodeMatrix(layout.up, method, weights, record.data()));
      std::vector<float> restored;
      REQUIRE_OK(DecodeMatrix(layout.up, record.data(), &restored));
      REQUIRE(restored.size() == weights.size());
      double error = 0;
      for (size_t i = 0; i < weights.size(); ++i) error += std::pow(restored[i] - weights[i], 2);
      INFO(scheme);
      CHECK(error > last);
      CHECK(error < 0.2 * static_cast<double>(weights.size()));
      last = error;
    }
  }
}

TEST_CASE("what cannot be encoded is an error") {
  const RecordLayout layout = LayoutOf("w4a16_g128");
  std::vector<std::byte> record(static_cast<size_t>(layout.bytes));
  std::vector<float> weights(64 * 128, 1.0f);
  const auto encode = [&](QuantMethod method) {
    return EncodeMatrix(layout.gate, method, weights, record.data());
  };
  CHECK(absl::IsUnimplemented(encode(QuantMethod::kGptq)));
  weights[77] = std::numeric_limits<float>::infinity();
  CHECK_THAT(std::string(encode(QuantMethod::kRtn).message()), Catch::Contains("not finite"));
  weights.pop_back();
  CHECK_THAT(std::string(encode(QuantMethod::kHqq).message()),
             Catch::Contains("8191 weights for a matrix of 64 x 128"));
}

TEST_CASE("methods have names, and jobs that need the model say so") {
  for (const char* name : {"rtn", "hqq", "gptq"}) {
    const auto method = ParseQuantMethod(name);
    REQUIRE_OK(method.status());
    CHECK(QuantMethodName(*method) == name);
  }
  CHECK_THAT(std::string(ParseQuantMethod("awq").status().message()),
             Catch::Contains("rtn, hqq and gptq"));
  const test::TempDir dir;
  CalibrateJob calibrate;
  calibrate.model = TinyModelDir();
  calibrate.out = dir / "calibration";
  calibrate.token_files = {EvalDir() + "/gsm8k.tokens.u16"};
  CHECK_THAT(std::string(RunCalibrateJob(calibrate).message()), Catch::Contains("open_model"));
  calibrate.open_model = [](auto&&...) { return absl::InternalError("it is opened"); };
  calibrate.probe_tokens = INT64_MIN;
  CHECK_THAT(std::string(RunCalibrateJob(calibrate).message()), Catch::Contains("legal are 0"));
  QuantizeJob quantize;
  quantize.model = calibrate.model;
  quantize.out = dir / "pack";
  quantize.schemes = {*Scheme::Parse("w4a16_g128")};
  quantize.method = QuantMethod::kGptq;
  CHECK_THAT(std::string(RunQuantizeJob(quantize).message()), Catch::Contains("tokens"));
  quantize.token_files = calibrate.token_files;
  CHECK_THAT(std::string(RunQuantizeJob(quantize).message()), Catch::Contains("open_model"));
}

}  // namespace
}  // namespace moert
