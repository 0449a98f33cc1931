// The fragments into which imported schemes are expanded: the same in every instruction set, and
// what the codes stand for.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "kernels/cpu/kernel_set.h"
#include "quant/quantized_matrix.h"
#include "tests/support/catch.h"

namespace moert::kernels {
namespace {

#if defined(__x86_64__)

constexpr int64_t kPieces = 16, kGroupPieces = 2, kGroups = kPieces / kGroupPieces;
constexpr int kWidths[] = {2, 2, 4, 1, 1};  // of a scale, by its form

bool Supports(absl::string_view name) {
  const auto& sets = SupportedKernelSets();
  return std::any_of(sets.begin(), sets.end(), [&](const KernelSet* s) { return name == s->name; });
}

// The arguments of the kernel of bf16 weights.
std::vector<uint8_t>* captured = nullptr;
void Capture(const BlockGemmArgs& args) {
  captured->insert(captured->end(), args.weights[0], args.weights[0] + args.k16s * kBf16PieceBytes);
}

// One row block of random codes, in groups of two pieces.
struct Block {
  alignas(64) uint8_t codes[kPieces * 256];
  uint8_t scales[kGroups * kBlockRows * 4];
  uint8_t zeros[kGroups * kBlockRows];
  float matrix_scale = 1;
  int scale_form;

  Block(int form, uint32_t seed) : scale_form(form) {
    std::mt19937 rng(seed);
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(rng());
      if ((code & 0x7f) == 0x7f) code ^= 1;  // no number in e4m3
    }
    for (uint8_t& zero : zeros) zero = static_cast<uint8_t>(rng() % 17);
    for (int64_t i = 0; i < kGroups * kBlockRows; ++i) {
      const float scale = std::exp2(static_cast<float>(static_cast<int>(rng() % 8) - 5));
      const uint32_t bits = EncodeScale(static_cast<ScaleType>(form), scale);
      std::memcpy(scales + i * kWidths[form], &bits, static_cast<size_t>(kWidths[form]));
    }
  }

  float Scale(int64_t group, int row) const {
    uint32_t bits = 0;
    const int width = kWidths[scale_form];
    std::memcpy(&bits, scales + (group * kBlockRows + row) * width, static_cast<size_t>(width));
    return DecodeScale(static_cast<ScaleType>(scale_form), bits);
  }

  std::vector<uint8_t> Fragments(ExpandedGemmFn gemm, bool with_zeros) const {
    alignas(64) static float out[kMaxColumns * kBlockRows];
    alignas(64) static const uint8_t x[kPieces * 64] = {};
    BlockGemmArgs args = {};
    args.weights[0] = args.next = codes;
    args.blocks = args.columns = 1;
    args.k16s = kPieces;
    args.x[0] = x;
    args.out = out;
    args.raw_scales[0] = scales;
    args.zeros[0] = with_zeros ? zeros : nullptr;
    args.matrix_scale[0] = &matrix_scale;
    args.scale_form = scale_form;
    args.scale_stride = kBlockRows;
    args.groups = kGroups;
    args.group_k16s = kGroupPieces;
    std::vector<uint8_t> fragments;
    captured = &fragments;
    gemm(args, Capture, 64);
    return fragments;
  }
};

// The value of (row, k) of a fragment, as docs/reference/layout.md has it.
float FragmentAt(const std::vector<uint8_t>& fragments, int row, int64_t k) {
  const int64_t in = k % 16, lane = (row % 8) * 4 + in % 8 / 2, pair = row / 8 + in / 8 * 2;
  uint16_t bits;
  std::memcpy(&bits,
              &fragments[static_cast<size_t>(k / 16 * 512 + lane * 16 + pair * 4 + in % 2 * 2)],
              sizeof(bits));
  return Bf16ToF32(bits);
}

// The code of (row, k).
uint8_t CodeAt(const Block& block, int bits, int row, int64_t k) {
  const int64_t in = k % 16, lane = (row % 8) * 4 + in % 8 / 2, byte = in % 2 * 2 + in / 8;
  if (bits == 8) return block.codes[k / 16 * 256 + (lane * 2 + row / 8) * 4 + byte];
  return block.codes[k / 16 * 128 + lane * 4 + byte] >> (row / 8 * 4) & 15;
}

struct Kernel {
  const char* name;
  int bits;
  int form;
  ExpandedGemmFn avx2, avx512;
};
const Kernel kKernels[] = {
    {"int4", 4, kScaleBF16, BlockGemmExpandedW4Avx2, BlockGemmExpandedW4Avx512},
    {"mxfp4", 4, kScaleE8M0, BlockGemmExpandedF4Avx2, BlockGemmExpandedF4Avx512},
    {"nvfp4", 4, kScaleE4M3, BlockGemmExpandedF4Avx2, BlockGemmExpandedF4Avx512},
    {"fp8", 8, kScaleF32, BlockGemmExpandedF8Avx2, BlockGemmExpandedF8Avx512},
};

float Meaning(const Kernel& kernel, const Block& block, bool zeros, int row, int64_t k) {
  const uint8_t code = CodeAt(block, kernel.bits, row, k);
  const int64_t group = k / 16 / kGroupPieces;
  if (kernel.bits == 8) return F8E4M3ToF32(code);
  if (kernel.form == kScaleBF16) {
    return static_cast<float>(code - (zeros ? block.zeros[group * kBlockRows + row] : 8));
  }
  return F4E2M1ToF32(code) * block.Scale(group, row);
}

TEST_CASE("imported codes become the fragments of what they stand for") {
  for (const Kernel& kernel : kKernels) {
    for (const bool zeros : {false, true}) {
      if (zeros && kernel.form != kScaleBF16) continue;
      for (const bool wide : {false, true}) {
        if (!Supports(wide ? "avx512" : "avx2")) continue;
        INFO(kernel.name << (wide ? " avx512" : " avx2") << (zeros ? " with zeros" : ""));
        const Block block(kernel.form, 11);
        const auto fragments = block.Fragments(wide ? kernel.avx512 : kernel.avx2, zeros);
        REQUIRE(fragments.size() == kPieces * kBf16PieceBytes);
        for (int row = 0; row < kBlockRows; ++row) {
          for (int64_t k = 0; k < kPieces * 16; ++k) {
            REQUIRE(FragmentAt(fragments, row, k) == Meaning(kernel, block, zeros, row, k));
          }
        }
      }
      if (!Supports("avx512")) continue;
      const Block block(kernel.form, 12);
      REQUIRE(block.Fragments(kernel.avx2, zeros) == block.Fragments(kernel.avx512, zeros));
    }
  }
}

#endif

}  // namespace
}  // namespace moert::kernels
