#include "kernels/cpu/kernel_set.h"

#include <fmt/format.h>

#include <string>

namespace moert::kernels {
namespace {

#if defined(__x86_64__)
// The compiler's runtime also checks that the operating system saves the wide registers.
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool HasAvx512Bf16() { return HasAvx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

constexpr int64_t kFloatTile = kTileK * 4;
constexpr int64_t kIntTile = kTileK + static_cast<int64_t>(sizeof(TileScale));

OperandKernels Plain(int64_t bytes_per_tile, PackFn pack, BlockGemmFn gemm) {
  return {bytes_per_tile, pack, {gemm}};
}

void Set(KernelSet* set, OperandKind kind, const OperandKernels& kernels) {
  set->operands[static_cast<int>(kind)] = kernels;
}

// The reference kernels for everything but GLU; other sets replace what they have of their own.
KernelSet Reference(const char* name, bool supported) {
  KernelSet set = {name, supported, {}, {}, {}, {}};
  set.glu[static_cast<int>(Activation::kSilu)] = GluSiluReference;
  set.glu[static_cast<int>(Activation::kGelu)] = GluGeluReference;
  set.glu[static_cast<int>(Activation::kGeluTanh)] = GluGeluTanhReference;
  Set(&set, OperandKind::kPlain, Plain(kFloatTile, PackBf16Reference, BlockGemmBf16Reference));
  set.plain_f32 = Plain(kFloatTile, PackF32Reference, BlockGemmBf16Reference);
  OperandKernels summed = {kFloatTile,
                           PackBf16Reference,
                           {nullptr, BlockGemmFloatW8Reference, BlockGemmFloatW4Reference,
                            BlockGemmFloatW3Reference, BlockGemmFloatW2Reference, nullptr}};
  Set(&set, OperandKind::kSummed, summed);
  summed.pack = PackF32Reference;
  set.summed_f32 = summed;
  OperandKernels integer = {kIntTile,
                            PackInt8GroupReference,
                            {nullptr, BlockGemmIntW8Reference, BlockGemmIntW4Reference,
                             BlockGemmIntW3Reference, BlockGemmIntW2Reference, nullptr}};
  Set(&set, OperandKind::kInt8Group, integer);
  integer.pack = PackInt8TokenReference;
  Set(&set, OperandKind::kInt8Token, integer);
  integer.pack = PackInt4GroupReference;
  Set(&set, OperandKind::kInt4Group, integer);
  integer.pack = PackInt4TokenReference;
  Set(&set, OperandKind::kInt4Token, integer);
  Set(&set, OperandKind::kF8Token,
      {kFloatTile + static_cast<int64_t>(sizeof(TileScale)),
       PackF8TokenReference,
       {nullptr, nullptr, nullptr, nullptr, nullptr, BlockGemmF8Reference}});
  return set;
}

std::vector<KernelSet> AllKernelSets() {
  std::vector<KernelSet> sets;
#if defined(__x86_64__)
  KernelSet avx2 = Reference("avx2", HasAvx2());
  avx2.glu[static_cast<int>(Activation::kSilu)] = GluSiluAvx2;
  avx2.glu[static_cast<int>(Activation::kGeluTanh)] = GluGeluTanhAvx2;
  Set(&avx2, OperandKind::kPlain, Plain(kFloatTile, PackRoundedAvx2, BlockGemmBf16F32Avx2));
  avx2.plain_f32 = Plain(kFloatTile, PackF32Avx2, BlockGemmBf16F32Avx2);

  KernelSet avx512 = avx2;
  avx512.name = "avx512";
  avx512.supported = HasAvx512();
  avx512.glu[static_cast<int>(Activation::kSilu)] = GluSiluAvx512;
  avx512.glu[static_cast<int>(Activation::kGeluTanh)] = GluGeluTanhAvx512;
  Set(&avx512, OperandKind::kPlain, Plain(kFloatTile, PackRoundedAvx512, BlockGemmBf16F32Avx512));
  avx512.plain_f32 = Plain(kFloatTile, PackF32Avx512, BlockGemmBf16F32Avx512);

  KernelSet avx512bf16 = avx512;
  avx512bf16.name = "avx512bf16";
  avx512bf16.supported = HasAvx512Bf16();
  Set(&avx512bf16, OperandKind::kPlain,
      Plain(kFloatTile / 2, PackBf16Avx512, BlockGemmBf16Avx512Bf16));

  sets = {avx512bf16, avx512, avx2};
#endif
  sets.push_back(Reference("reference", true));
  return sets;
}

}  // namespace

const std::vector<const KernelSet*>& SupportedKernelSets() {
  static const std::vector<KernelSet>* const all = new std::vector<KernelSet>(AllKernelSets());
  static const std::vector<const KernelSet*>* const supported = [] {
    auto* sets = new std::vector<const KernelSet*>;
    for (const KernelSet& set : *all) {
      if (set.supported) sets->push_back(&set);
    }
    return sets;
  }();
  return *supported;
}

OperandKind OperandFor(const Scheme& scheme, ActivationNumerics numerics) {
  if (scheme.is_bf16()) return OperandKind::kPlain;
  if (scheme.fp8) return OperandKind::kF8Token;
  if (scheme.act_bits == 4) {
    return scheme.group > 0 ? OperandKind::kInt4Group : OperandKind::kInt4Token;
  }
  if (scheme.act_bits == 8) {
    return scheme.group > 0 ? OperandKind::kInt8Group : OperandKind::kInt8Token;
  }
  return numerics == ActivationNumerics::kInt8 ? OperandKind::kInt8Group : OperandKind::kSummed;
}

WeightKind WeightKindOf(const Scheme& scheme) {
  if (scheme.fp8) return kF8Weights;
  switch (scheme.weight_bits) {
    case 8:
      return kW8;
    case 4:
      return kW4;
    case 3:
      return kW3;
    case 2:
      return kW2;
    default:
      return kBf16Weights;
  }
}

absl::StatusOr<const KernelSet*> FindKernelSet(absl::string_view name) {
  if (name == "auto") return SupportedKernelSets().front();
  std::string legal = "auto";
  for (const KernelSet* set : SupportedKernelSets()) {
    if (name == set->name) return set;
    legal += fmt::format(", {}", set->name);
  }
  return absl::InvalidArgumentError(
      fmt::format("unknown CPU kernel set '{}', legal on this machine: {}",
                  fmt::string_view(name.data(), name.size()), legal));
}

}  // namespace moert::kernels
