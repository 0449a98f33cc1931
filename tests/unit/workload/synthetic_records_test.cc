// Records that benchmarks and synthetic models make up: weights of every scheme are as small as
// trained ones.
#include <cmath>
#include <string>
#include <vector>

#include "cli/workload/synthetic_experts.h"
#include "quant/packing.h"
#include "support/catch.h"

namespace moert::cli {
namespace {

TEST_CASE("made-up weights of every scheme are finite and about 2^-9") {
  for (const Scheme& scheme : Scheme::All()) {
    CAPTURE(scheme.Name());
    const auto layout = MakeRecordLayout(256, 128, ExpertFormat::Uniform(scheme));
    REQUIRE(layout.ok());
    std::vector<std::byte> record(static_cast<size_t>(layout->bytes));
    FillRecord(*layout, 7, record.data());
    for (const MatrixLayout* m : {&layout->gate, &layout->up, &layout->down}) {
      std::vector<float> weights;
      REQUIRE(UnpackMatrix(*m, record.data(), &weights).ok());
      double sum = 0, squares = 0;
      for (const float w : weights) {
        sum += w;
        squares += double{w} * w;
      }
      const auto count = static_cast<double>(weights.size());
      const double rms = std::sqrt(squares / count);
      CHECK(rms > 0x1p-12);
      CHECK(rms < 0x1p-8);
      CHECK(std::abs(sum / count) < rms / 2);
    }
  }
}

}  // namespace
}  // namespace moert::cli
