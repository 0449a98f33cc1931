// Every scheme, alone and mixed in one launch, over odd shapes and skewed routings, against the
// oracle of the CPU kernels: sums in double precision, activations rounded as the schemes say.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "device_step.h"
#include "mixed_source.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

/// The last one again where it is the same: cases of one shape share the work of making it.
std::shared_ptr<MixedSource> SourceOf(const Shape& shape, const std::vector<std::string>& schemes,
                                      double skew) {
  const auto key = std::make_tuple(shape.hidden, shape.intermediate, shape.experts, shape.top_k,
                                   shape.activation, schemes, skew);
  static auto last = std::make_pair(key, std::shared_ptr<MixedSource>());
  if (last.second == nullptr || last.first != key) {
    last = {key, std::make_shared<MixedSource>(shape, schemes, skew)};
  }
  return last.second;
}

/// Steps of so many rows each in one engine; in one with few slots besides, where the experts are
/// many. relative: what the norm of the error may be.
void CheckCases(const Shape& shape, const std::vector<std::string>& schemes,
                const std::vector<int64_t>& rows, double skew = 0, double relative = 2e-3,
                ActivationNumerics numerics = ActivationNumerics::kBF16) {
  const auto source = SourceOf(shape, schemes, skew);
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.activation = numerics;
  options.max_tokens_per_forward = *std::max_element(rows.begin(), rows.end());
  std::vector<MixedStep> steps;
  for (const int64_t r : rows) steps.emplace_back(*source, r, numerics);
  constexpr int kMany = 8;
  for (const char* strategy : {"resident", "on-demand"}) {
    const bool resident = std::strcmp(strategy, "resident") == 0;
    if (!resident && shape.experts < kMany) continue;
    options.strategy = strategy;
    options.budget = Budget::Fraction(resident ? 1.0 : 0.4);
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    for (MixedStep& step : steps) {
      INFO(schemes[0] << " x" << schemes.size() << ", hidden " << shape.hidden << ", intermediate "
                      << shape.intermediate << ", " << step.rows << " rows, skew " << skew << ", "
                      << strategy);
      DeviceRowsBuffer device(step.x.size());
      std::vector<float> outputs;
      REQUIRE_OK(
          RunDeviceStep(engine->get(), Phase::kPrefill, step.x, step.rows, &device, &outputs));
      step.Check(outputs, shape.hidden, relative);
    }
  }
}
void CheckCase(const Shape& shape, const std::vector<std::string>& schemes, int64_t rows,
               double skew = 0, double relative = 2e-3) {
  CheckCases(shape, schemes, {rows}, skew, relative);
}

const std::vector<std::string> kWeightOnly = {
    "bf16",           "w8a16_g128",      "w8a16_g-1",      "w4a16_g128",     "w4a16_g128_asym",
    "w4a16_g-1_asym", "w3a16_g128_asym", "w3a16_g-1_asym", "w2a16_g64_asym", "w2a16_g128_asym",
    "w2a16_g-1_asym"};
// As published files have them.
const std::vector<std::string> kImported = [] {
  std::vector<std::string> names;
  for (const Scheme& s : Scheme::All()) {
    if (s.imported()) names.push_back(s.Name());
  }
  return names;
}();
// One step of these in a channel of h weighs more: 1/16 of it, or 1/7 of the largest.
const std::vector<std::string> kQuantized = {"w8a8", "w8a8_fp8", "w4a8_g128"};
const std::vector<std::string> kCoarse = {"w4a4_g128", "w4a4"};

TEST_CASE("every scheme of the library runs") {
  size_t known = 0;
  for (const auto* list : {&kWeightOnly, &kImported, &kQuantized, &kCoarse}) known += list->size();
  CHECK(known == Scheme::All().size());
}

TEST_CASE("every scheme, alone") {
  for (const std::string suffix : {"", "+h"}) {
    for (const auto* list : {&kWeightOnly, &kImported}) {
      for (const std::string& scheme : *list) {
        CheckCase({256, 128, 8, 2}, {scheme + suffix}, 7);
        CheckCase({384, 208, 6, 3}, {scheme + suffix}, 33);
      }
    }
    for (const std::string& scheme : kQuantized) {
      CheckCase({256, 128, 8, 2}, {scheme + suffix}, 7, 0, 1e-2);
      CheckCase({384, 208, 6, 3}, {scheme + suffix}, 33, 0, 1e-2);
    }
    for (const std::string& scheme : kCoarse) {
      CheckCase({256, 128, 8, 2}, {scheme + suffix}, 7, 0, 5e-2);
      CheckCase({384, 208, 6, 3}, {scheme + suffix}, 33, 0, 5e-2);
    }
  }
}

TEST_CASE("schemes mixed in one launch") {
  CheckCases({512, 256, 20, 4}, kWeightOnly, {1, 40});
  CheckCase({512, 256, 20, 4, Activation::kGelu}, kWeightOnly, 9);
  std::vector<std::string> all = kWeightOnly;
  for (const auto* list : {&kQuantized, &kCoarse}) {
    for (const std::string& scheme : *list) {
      all.push_back(scheme);
      all.push_back(scheme + "+h");
    }
  }
  all.push_back("w2a16_g64_asym+h");
  all.push_back("bf16+h");
  CheckCase({512, 256, 44, 4}, all, 50, 0, 5e-2);
}

// Few and small, for compute-sanitizer.
TEST_CASE("small cases of the schemes of files, of 8 bits and of zeros", "[small]") {
  for (const char* scheme :
       {"fp8_b128", "mxfp4", "nvfp4", "w4a16_g32_zp_f16", "w4a16_g64", "w8a8", "w4a8_g128",
        "w8a8_fp8", "w4a16_g128_asym", "w3a16_g128_asym", "w2a16_g64_asym"}) {
    CheckCase({72, 40, 4, 1}, {scheme}, 5, 0, 1e-2);
    CheckCase({200, 88, 3, 2}, {scheme}, 70, 0, 1e-2);
  }
}

TEST_CASE("schemes of files, from one token to 2048, over odd shapes") {
  for (const std::string& scheme : kImported) {
    CheckCases({192, 144, 8, 2}, {scheme}, {1, 2, 8, 16, 17, 64, 129, 170, 512, 2048});
    CheckCases({72, 40, 4, 1}, {scheme}, {5, 200});
    CheckCase({144, 16, 4, 2}, {scheme}, 3);
    CheckCase({192, 16, 3, 2, Activation::kGeluTanh}, {scheme}, 131);
    CheckCases({1040, 336, 3, 2}, {scheme}, {17, 129});
  }
  CheckCase({512, 256, 28, 4}, kImported, 40);
  CheckCase({256, 192, 28, 4}, kImported, 700);
}

TEST_CASE("from one token to 8192") {
  CheckCases({256, 192, 16, 4}, {"w4a16_g128", "bf16", "w8a8"}, {1, 2, 8, 64, 512, 8192}, 0, 1e-2);
}

TEST_CASE("prompts in 8 bits, by tokens an expert") {
  for (const std::string scheme : {"w8a8", "w4a8_g128", "w8a8_fp8"}) {
    CheckCases({256, 192, 4, 2}, {scheme}, {29, 61, 120, 300, 513, 1200}, 0, 1e-2);
    CheckCase({2048, 80, 4, 2}, {scheme}, 150, 0, 1e-2);
    CheckCase({1040, 336, 3, 2}, {scheme}, 90, 0, 1e-2);
    CheckCase({72, 40, 4, 1}, {scheme}, 200, 0, 1e-2);
    CheckCase({192, 80, 3, 2, Activation::kGeluTanh}, {scheme}, 131, 0, 1e-2);
    CheckCase({128, 64, 32, 2}, {scheme}, 600, 0.5, 1e-2);
  }
  CheckCase({256, 192, 9, 3}, {"w8a8", "w8a8+h", "bf16", "w4a8_g128"}, 300, 0, 1e-2);
  CheckCase({256, 192, 9, 3}, {"w8a8_fp8", "w8a8_fp8+h", "w8a8", "bf16"}, 300, 0, 1e-2);
}

// e4m3 activations with scales of 128 channels: few tokens and every tiling of prompts, beside
// bf16, which has the same tilings, and beside others, which have not.
TEST_CASE("fp8_b128 by fp8") {
  const auto check = [](const Shape& shape, const std::vector<std::string>& schemes,
                        const std::vector<int64_t>& rows, double skew = 0) {
    CheckCases(shape, schemes, rows, skew, 1e-2, ActivationNumerics::kFp8);
  };
  check({256, 192, 4, 2}, {"fp8_b128"}, {1, 7, 29, 61, 120, 135, 180, 210, 300, 513, 1200});
  check({192, 144, 8, 2}, {"fp8_b128"}, {1, 2, 8, 16, 17, 64, 129, 170, 512, 2048});
  check({2048, 80, 4, 2}, {"fp8_b128"}, {150});
  check({1040, 336, 3, 2}, {"fp8_b128"}, {17, 90, 129});
  check({72, 40, 4, 1}, {"fp8_b128"}, {5, 200});
  check({192, 80, 3, 2, Activation::kGeluTanh}, {"fp8_b128"}, {131});
  check({128, 64, 32, 2}, {"fp8_b128"}, {600}, 0.5);
  check({256, 192, 9, 3}, {"fp8_b128", "fp8_b128+h", "bf16"}, {40, 300, 900});
  check({256, 192, 9, 3}, {"fp8_b128", "bf16"}, {40, 300, 900});
  check({256, 192, 9, 3}, {"fp8_b128", "w8a8", "w8a8_fp8", "mxfp4"}, {40, 300, 900});
  // Rows that share scales, beside rows that do not, and where a matrix ends within a tile.
  check({384, 256, 4, 2}, {"fp8_b128+b"}, {120, 180, 300, 513, 1200});
  check({256, 384, 6, 2}, {"fp8_b128+b", "fp8_b128"}, {40, 300, 900});
  check({192, 144, 4, 2}, {"fp8_b128+b"}, {129, 300, 900});
  check({1040, 336, 3, 2}, {"fp8_b128+b"}, {90, 129});
}

TEST_CASE("prompts of asymmetric schemes") {
  for (const std::string scheme :
       {"w4a16_g128_asym", "w4a16_g-1_asym", "w3a16_g128_asym", "w3a16_g-1_asym", "w2a16_g64_asym",
        "w2a16_g128_asym", "w2a16_g-1_asym"}) {
    CheckCases({256, 192, 4, 2}, {scheme}, {61, 120, 300, 1200});
    CheckCase({1040, 336, 3, 2}, {scheme}, 90);
    CheckCase({72, 40, 4, 1}, {scheme}, 200);
  }
  CheckCase({192, 16, 3, 2, Activation::kGeluTanh}, {"w3a16_g128_asym"}, 131);
  CheckCase({512, 256, 10, 2}, kWeightOnly, 400);
}

// Enough tokens an expert for family P (kernels/tuning/prompt.h), in every tiling of it.
TEST_CASE("prompts, by tokens an expert") {
  for (const char* scheme : {"bf16", "w8a16_g128", "w4a16_g128", "w8a16_g-1"}) {
    CheckCases({256, 192, 4, 2}, {scheme}, {29, 61, 120, 300, 513, 1200});
    CheckCase({2048, 80, 4, 2}, {scheme}, 150);
    CheckCase({1040, 336, 3, 2}, {scheme}, 90);
    CheckCase({72, 40, 4, 1}, {scheme}, 200);
    CheckCase({192, 16, 3, 2, Activation::kGeluTanh}, {scheme}, 131);
    CheckCase({192, 80, 3, 2, Activation::kGelu}, {scheme}, 131);
  }
  CheckCases({256, 192, 16, 4}, {"bf16"}, {2048, 4096, 8192});
  CheckCases({256, 192, 16, 4}, {"w4a16_g128", "bf16", "w8a16_g128"}, {2048, 4096, 8192});
}

// Launches of a product run into one another: of many packings with few tiles each, and of few with
// more tiles than there are CTAs.
TEST_CASE("prompts in many packings") {
  CheckCases({256, 192, 26, 6},
             {"bf16", "w8a16_g128", "w4a16_g128", "fp8_b128", "mxfp4", "nvfp4", "w4a16_g64", "w8a8",
              "w4a8_g128", "w8a8_fp8", "w4a16_g128_asym", "w3a16_g128_asym", "w2a16_g64_asym"},
             {90, 400, 2000}, 0.1, 1e-2);
  CheckCases({1536, 768, 24, 4}, {"w8a16_g128", "w4a16_g128", "w3a16_g128_asym", "w2a16_g64_asym"},
             {128, 400}, 0, 1e-2);
}

TEST_CASE("prompts of experts of which only some have a product of family P") {
  CheckCase({256, 192, 9, 3}, {"bf16", "w2a16_g64_asym", "w4a16_g128"}, 90);
  CheckCase({256, 192, 9, 3}, {"bf16", "w8a8_fp8+h", "w2a16_g64_asym"}, 200, 0, 1e-2);
  CheckCase({256, 192, 9, 3}, {"w4a16_g128", "w8a8", "bf16+h"}, 200, 0, 1e-2);
  CheckCase({128, 64, 32, 2}, {"w4a16_g128", "bf16", "w3a16_g128_asym"}, 600, 0.5);
}

// Gate and up have these K, then down; the other side is small.
TEST_CASE("K of published models, split over warps") {
  std::vector<std::string> schemes = {"bf16", "w8a16_g128",  "w4a16_g128_asym", "w2a16_g64_asym",
                                      "w8a8", "w4a8_g128+h", "w8a8_fp8"};
  schemes.insert(schemes.end(), kImported.begin(), kImported.end());
  for (const std::string& scheme : schemes) {
    CheckCase({2048, 48, 3, 2}, {scheme}, 5, 0, 1e-2);
    CheckCases({80, 1408, 3, 2}, {scheme}, {19, 150}, 0, 1e-2);
  }
  for (const char* scheme : {"bf16", "w4a16_g128", "nvfp4"}) {
    CheckCases({2048, 768, 4, 2}, {scheme}, {5, 150});
  }
}

TEST_CASE("shapes that are not multiples of the tiles") {
  for (const char* scheme : {"bf16", "w4a16_g128", "w2a16_g64_asym", "w3a16_g128_asym", "w8a8",
                             "w4a8_g128", "w8a8_fp8", "w4a16_g128+h", "w4a8_g128+h"}) {
    CheckCase({72, 40, 4, 1}, {scheme}, 5, 0, 1e-2);
    CheckCase({144, 16, 4, 2}, {scheme}, 3, 0, 1e-2);
    CheckCase({1040, 336, 3, 2}, {scheme}, 17, 0, 1e-2);
  }
}

TEST_CASE("skewed routing: one expert gets almost everything, others nothing") {
  CheckCase({128, 64, 32, 2}, kWeightOnly, 128, 0.5);
  CheckCase({128, 64, 32, 2}, {"bf16"}, 600, 0.5);
}

TEST_CASE("a layer of a thousand experts") {
  CheckCases({128, 64, 1000, 8}, {"bf16", "w8a16_g128"}, {1, 40, 1100});
  CheckCase({128, 64, 1024, 8}, {"bf16"}, 40);
}

}  // namespace
}  // namespace moert::test
