// The elementwise kernels of every set against the reference set, and the properties of the tables.
#include "kernels/cpu/kernel_set.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "kernels/reference/codes.h"
#include "tests/support/catch.h"
#include "tests/support/reference_expert.h"

namespace moert::kernels {
namespace {

TEST_CASE("gated activations agree with the definition over the whole range") {
  const KernelSet* set = GENERATE(from_range(SupportedKernelSets()));
  const auto activation = GENERATE(Activation::kSilu, Activation::kGelu, Activation::kGeluTanh);
  INFO(set->name << " activation " << static_cast<int>(activation));
  std::vector<float> gate, up;
  for (float x = -120.0f; x <= 120.0f; x += 0.037f) gate.push_back(x);
  for (const float x : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-3f, -1e-3f, 1e4f, -1e4f}) {
    gate.push_back(x);
  }
  while (gate.size() % 16 != 0) gate.push_back(1.0f);
  for (size_t i = 0; i < gate.size(); ++i) up.push_back(i % 2 == 0 ? 1.5f : -0.25f);
  std::vector<float> out(gate.size());
  set->glu[static_cast<int>(activation)](gate.data(), up.data(), static_cast<int64_t>(gate.size()),
                                         out.data());
  double worst = 0;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double expected = test::ApplyActivation(activation, gate[i]) * up[i];
    // Relative where the result is of the input's size; far on the negative side, where e^x is
    // clamped or cancels, what is left is below any sum's last bit.
    const double tolerance = 2e-6 * std::abs(expected) + 1e-7 * std::abs(up[i]);
    worst = std::max(worst, std::abs(out[i] - expected) / tolerance);
  }
  CHECK(worst <= 1.0);
}

TEST_CASE("NaN passes through gated activations") {
  const KernelSet* set = GENERATE(from_range(SupportedKernelSets()));
  for (int activation = 0; activation < 3; ++activation) {
    std::vector<float> gate(16, 1.0f), up(16, 1.0f), out(16);
    gate[3] = std::numeric_limits<float>::quiet_NaN();
    up[9] = std::numeric_limits<float>::quiet_NaN();
    set->glu[activation](gate.data(), up.data(), 16, out.data());
    for (int i = 0; i < 16; ++i)
      CHECK(std::isnan(out[static_cast<size_t>(i)]) == (i == 3 || i == 9));
  }
}

// A row block that is the identity: row r reads channel r of the piece. The result is then the
// packed value itself, whatever the operand form.
TEST_CASE("packing keeps, rounds or zeroes every channel") {
  const KernelSet* set = GENERATE(from_range(SupportedKernelSets()));
  const auto numerics = GENERATE(ActivationNumerics::kBF16, ActivationNumerics::kF32);
  INFO(set->name << " numerics " << static_cast<int>(numerics));
  const OperandKernels kernels = set->For(OperandKind::kPlain, numerics);
  constexpr int64_t kPieces = 4;
  alignas(64) static uint16_t identity[kPieces * 256];
  alignas(64) static uint8_t packed[kPieces * 128];
  alignas(64) static float out[kMaxBlocks * kMaxColumns * kBlockRows];
  REQUIRE(kernels.bytes_per_tile <= 512);

  std::mt19937 rng(5);
  std::vector<float> x(64);
  for (float& value : x) {
    // Any exponent that a sum of exact zeros and one product cannot lose; halfway cases included.
    const uint32_t bits = (rng() & 0x807fffffu) | ((64 + rng() % 128) << 23);
    value = std::bit_cast<float>(rng() % 4 == 0 ? (bits & 0xffff0000u) | 0x8000u : bits);
  }
  for (int64_t valid = 0; valid <= 64; ++valid) {
    // Beyond `valid` lies nothing: a copy of exactly that size lets a sanitizer see a read there.
    const std::vector<float> exact(x.begin(), x.begin() + valid);
    std::memset(packed, 0xff, sizeof(packed));
    kernels.pack(exact.data(), valid, kPieces, packed);
    for (int64_t piece = 0; piece < kPieces; ++piece) {
      std::memset(identity, 0, sizeof(identity));
      for (int64_t r = 0; r < 16; ++r) identity[FragmentIndex(r, piece * 16 + r)] = 0x3f80;
      BlockGemmArgs args = {};
      args.weights[0] = args.next = reinterpret_cast<const uint8_t*>(identity);
      args.blocks = args.columns = 1;
      args.k16s = kPieces;
      args.x[0] = packed;
      args.out = out;
      kernels.gemm[kBf16Weights](args);
      for (int64_t r = 0; r < 16; ++r) {
        const int64_t k = piece * 16 + r;
        float expected = k < valid ? x[static_cast<size_t>(k)] : 0.0f;
        if (numerics == ActivationNumerics::kBF16) expected = RoundToBf16(expected);
        REQUIRE(out[r] == expected);
      }
    }
  }
}

TEST_CASE("names") {
  const auto& sets = SupportedKernelSets();
  REQUIRE_FALSE(sets.empty());
  CHECK(std::string(sets.back()->name) == "reference");
  CHECK(*FindKernelSet("auto") == sets.front());
  for (const KernelSet* set : sets) CHECK(*FindKernelSet(set->name) == set);
  const absl::Status unknown = FindKernelSet("").status();
  CHECK(unknown.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(unknown.message()).find("reference") != std::string::npos);
}

}  // namespace
}  // namespace moert::kernels
