// The gate's logits against sums in double precision, and what they may depend on.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/bf16.h"
#include "device_array.h"
#include "kernels/cuda/route/route.h"
#include "tests/support/catch.h"

namespace moert::test {
namespace {

constexpr int kF32 = 0, kBf16 = 1, kF16 = 2;

/// Where a channel lies in a packed row (primitives/activation.cuh).
int PackedPlace(int channel) {
  const int in16 = channel % 16;
  return channel - in16 + in16 % 8 / 2 * 4 + in16 / 8 * 2 + channel % 2;
}

/// Rows in device memory, and as the device sees them.
struct Rows {
  Rows(const std::vector<float>& values, int dtype) : dtype(dtype), seen(values) {
    if (dtype == kF32) {
      bytes.resize(values.size() * 4);
      std::memcpy(bytes.data(), values.data(), bytes.size());
    } else {
      std::vector<uint16_t> narrow;
      for (float& v : seen) {
        if (dtype == kF16) {
          narrow.push_back(HalfOf(&v));
        } else {
          narrow.push_back(F32ToBf16(v));
          v = Bf16ToF32(narrow.back());
        }
      }
      bytes.resize(narrow.size() * 2);
      std::memcpy(bytes.data(), narrow.data(), bytes.size());
    }
  }

  /// 11 bits of mantissa, of values of about 1; v becomes what was stored.
  static uint16_t HalfOf(float* v) {
    int exponent = 0;
    const float mantissa = std::frexp(std::fabs(*v), &exponent);  // [0.5, 1)
    if (*v == 0 || exponent < -13) {
      *v = 0;
      return 0;
    }
    const int rounded = static_cast<int>(std::nearbyint(mantissa * 2048));  // up to 2048
    *v = std::copysign(std::ldexp(static_cast<float>(rounded), exponent - 11), *v);
    const int bits = ((exponent + 14) << 10) + (rounded - 1024);
    return static_cast<uint16_t>(bits | (std::signbit(*v) ? 0x8000 : 0));
  }

  int dtype;
  std::vector<float> seen;
  std::vector<uint8_t> bytes;
};

std::vector<float> Logits(const Rows& rows, int tokens, int hidden, const std::vector<float>& gate,
                          int experts, int stride = 0) {
  if (stride == 0) stride = hidden;
  const size_t element = rows.dtype == kF32 ? 4 : 2;
  std::vector<uint8_t> spread(static_cast<size_t>(tokens) * stride * element, 0xff);
  for (int t = 0; t < tokens; ++t) {
    std::memcpy(spread.data() + t * stride * element, rows.bytes.data() + t * hidden * element,
                hidden * element);
  }
  const DeviceArray<uint8_t> x(spread);
  const DeviceArray<float> device_gate(gate);
  const DeviceArray<float> logits(static_cast<size_t>(tokens) * experts);
  REQUIRE(cuda::LaunchGateLogits({x.get(), rows.dtype, tokens, hidden, stride}, device_gate.get(),
                                 experts, logits.get(), nullptr) == 0);
  return logits.Get();
}

/// The largest error of some rows, in units of what route.h promises.
double WorstError(const Rows& rows, int tokens, int hidden, const std::vector<float>& gate,
                  int experts, const std::vector<float>& logits) {
  const double unit = (12 + hidden / 128.0) * 0x1p-24;
  double worst = 0;
  for (int t = 0; t < tokens; t += std::max(1, tokens / 40)) {
    for (int e = 0; e < experts; ++e) {
      double sum = 0, magnitude = 0;
      for (int i = 0; i < hidden; ++i) {
        const double term = static_cast<double>(rows.seen[static_cast<size_t>(t) * hidden + i]) *
                            gate[static_cast<size_t>(e) * hidden + i];
        sum += term;
        magnitude += std::fabs(term);
      }
      const double error = std::fabs(logits[static_cast<size_t>(t) * experts + e] - sum);
      if (!(error <= 1e30)) return 1e30;
      worst = std::max(worst, error / (unit * magnitude + 1e-37));
    }
  }
  return worst;
}

void Check(int tokens, int hidden, int experts, int dtype, float mean = 0) {
  std::mt19937 rng(tokens * 31 + hidden);
  std::vector<float> values = RandomFloats(static_cast<size_t>(tokens) * hidden, &rng);
  for (float& v : values) v += mean;
  const Rows rows(values, dtype);
  const std::vector<float> gate = RandomFloats(static_cast<size_t>(experts) * hidden, &rng, 0.05f);
  const std::vector<float> logits = Logits(rows, tokens, hidden, gate, experts);
  const double worst = WorstError(rows, tokens, hidden, gate, experts, logits);
  INFO(tokens << " tokens, hidden " << hidden << ", " << experts << " experts, dtype " << dtype
              << ", mean " << mean << ": " << worst << " of the bound");
  CHECK(worst <= 1);
}

TEST_CASE("logits are as exact as sums in fp32, whatever the number of tokens") {
  for (const int dtype : {kF32, kBf16, kF16}) {
    for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 32, 33, 128, 513}) {
      Check(tokens, 512, 60, dtype);
    }
    for (const int tokens : {2048, 8192}) Check(tokens, 256, 130, dtype);
    Check(8192, 64, 33, dtype);
  }
  Check(64, 2048, 128, kF32, 0.25f);
  Check(64, 2048, 128, kBf16, 0.25f);
  Check(3, 7168, 256, kF32);
  Check(40, 7168, 256, kBf16);
}

TEST_CASE("shapes that are not multiples of the tiles") {
  for (const int dtype : {kF32, kBf16, kF16}) {
    for (const int hidden : {1, 2, 7, 15, 16, 17, 100, 130, 254, 1023}) {
      for (const int tokens : {1, 5, 33, 77}) Check(tokens, hidden, 9, dtype);
    }
    for (const int experts : {1, 8, 31, 32, 33, 257, 512, 1024}) {
      Check(35, 128, experts, dtype);
      Check(2, 128, experts, dtype);
    }
  }
}

TEST_CASE("a row's logits depend on nothing beside it") {
  const int hidden = 640, experts = 128;
  std::mt19937 rng(3);
  const std::vector<float> gate = RandomFloats(experts * hidden, &rng);
  for (const int dtype : {kF32, kBf16, kF16}) {
    const std::vector<float> values = RandomFloats(3000 * hidden, &rng);
    // Tiles of both sizes, rows that begin anywhere, and other neighbours.
    const Rows all(values, dtype);
    const std::vector<float> whole = Logits(all, 3000, hidden, gate, experts);
    for (const int tokens : {33, 100, 1000}) {
      Rows some = all;
      const size_t row = some.bytes.size() / 3000;
      some.bytes.erase(some.bytes.begin(), some.bytes.begin() + 5 * row);
      for (const int stride : {hidden, hidden + 1, hidden + 8}) {
        const std::vector<float> part = Logits(some, tokens, hidden, gate, experts, stride);
        CHECK(std::equal(part.begin(), part.end(), whole.begin() + 5 * experts));
      }
    }
    for (const int tokens : {1, 3, 32}) {
      const std::vector<float> few = Logits(all, tokens, hidden, gate, experts);
      const std::vector<float> one = Logits(all, 1, hidden, gate, experts);
      CHECK(std::equal(one.begin(), one.end(), few.begin()));
    }
  }
}

TEST_CASE("rows are packed beside their logits") {
  std::mt19937 rng(4);
  for (const int hidden : {64, 100, 640, 2048}) {
    const std::vector<float> gate = RandomFloats(9 * hidden, &rng);
    for (const int tokens : {1, 4, 7, 32, 40}) {
      const Rows rows(RandomFloats(static_cast<size_t>(tokens) * hidden, &rng), kF32);
      const DeviceArray<uint8_t> x(rows.bytes);
      const DeviceArray<float> device_gate(gate), logits(tokens * 9);
      const auto stride = static_cast<size_t>(cuda::OperandBytes(hidden));
      const DeviceArray<uint8_t> packed(tokens * stride);
      const cuda::DeviceRows view{x.get(), kF32, tokens, hidden, hidden};
      REQUIRE(cuda::LaunchGateLogits(view, device_gate.get(), 9, logits.get(), nullptr,
                                     packed.get(), static_cast<int64_t>(stride)) == 0);
      const std::vector<uint8_t> got = packed.Get();
      int other = 0;
      for (int t = 0; t < tokens; ++t) {
        for (int c = 0; c < cuda::OperandScales(hidden) / 2; ++c) {
          const uint16_t want = c < hidden ? F32ToBf16(rows.seen[t * hidden + c]) : 0;
          uint16_t have = 0;
          std::memcpy(&have, got.data() + t * stride + PackedPlace(c) * 2, 2);
          other += have != want ? 1 : 0;
        }
      }
      INFO("hidden " << hidden << ", " << tokens << " tokens");
      CHECK(other == 0);
    }
  }
}

}  // namespace
}  // namespace moert::test
