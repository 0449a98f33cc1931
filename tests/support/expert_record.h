// Random experts for tests.
#ifndef MOERT_TESTS_SUPPORT_EXPERT_RECORD_H_
#define MOERT_TESTS_SUPPORT_EXPERT_RECORD_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/aligned_buffer.h"
#include "moert/scheme.h"
#include "offline/rtn.h"
#include "quant/packing.h"
#include "tests/support/catch.h"

namespace moert::test {

struct ExpertRecord {
  RecordLayout layout;
  AlignedBuffer bytes;
  const std::byte* record() const { return bytes.data(); }
};

/// Weights are normal with standard deviation 1 / sqrt(k), so that activations keep their scale.
inline ExpertRecord RandomExpert(int64_t hidden, int64_t intermediate, uint32_t seed,
                                 const ExpertFormat& format = ExpertFormat::Uniform(Scheme{}),
                                 const RecordContents& contents = {}) {
  ExpertRecord e;
  const auto layout = MakeRecordLayout(hidden, intermediate, format, contents);
  REQUIRE_OK(layout.status());
  e.layout = *layout;
  REQUIRE_OK(e.bytes.Reset(e.layout.bytes));
  // Bytes between the sections are nobody's: make using them visible (NaN as bf16).
  std::memset(e.bytes.data(), 0xff, static_cast<size_t>(e.layout.bytes));
  std::mt19937 rng(seed);
  for (const MatrixLayout* m : {&e.layout.gate, &e.layout.up, &e.layout.down}) {
    std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(m->k)));
    std::vector<float> weights(static_cast<size_t>(m->rows * m->k));
    for (float& weight : weights) weight = normal(rng);
    if (m->scheme.is_bf16()) {
      REQUIRE_OK(PackMatrixBf16(*m, absl::MakeConstSpan(weights), e.bytes.data()));
    } else {
      REQUIRE_OK(PackMatrix(*m, QuantizeRtn(*m, weights, {.grid = 1}), e.bytes.data()));
    }
    if (m->bias_offset == 0) continue;
    std::vector<float> bias(static_cast<size_t>(m->padded_rows));
    for (int64_t r = 0; r < m->rows; ++r) bias[static_cast<size_t>(r)] = normal(rng);
    std::memcpy(e.bytes.data() + m->bias_offset, bias.data(), bias.size() * sizeof(float));
  }
  return e;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_EXPERT_RECORD_H_
