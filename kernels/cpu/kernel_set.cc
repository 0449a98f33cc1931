#include "kernels/cpu/kernel_set.h"

#include <fmt/format.h>

#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include "base/errors.h"
#endif
#endif

namespace moert::kernels {
namespace {

#if defined(__x86_64__)
// The compiler's runtime also checks that the operating system saves the wide registers.
bool HasAvx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kF16c = 1u << 29;  // clang's runtime does not know its name
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
         (ecx & kF16c) != 0;
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool HasVnni() { return HasAvx512() && __builtin_cpu_supports("avx512vnni"); }
bool HasAvx512Bf16() { return HasAvx512() && __builtin_cpu_supports("avx512bf16"); }

// Asks the operating system for permission to use tiles, which Linux grants to the whole process,
// on request only. Nothing changes for threads that do not use tiles.
bool HasAmx() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  if (!HasAvx512Bf16() || !HasVnni()) return false;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr unsigned kAll = kBf16 | kTile | kInt8;
  constexpr unsigned kGfni = 1u << 8;
  if ((edx & kAll) != kAll || (ecx & kGfni) == 0) return false;
  constexpr int64_t kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int64_t kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

constexpr int64_t kFloatTile = kTileK * 4;
constexpr int64_t kIntTile = kTileK + static_cast<int64_t>(sizeof(TileScale));

OperandKernels Plain(int64_t bytes_per_tile, PackFn pack, BlockGemmFn bf16) {
  return {bytes_per_tile, pack, {bf16}};
}

// The kernels of imported schemes, beside those of quantized weights.
OperandKernels WithImported(OperandKernels kernels, BlockGemmFn w4, BlockGemmFn f4,
                            BlockGemmFn f8) {
  kernels.gemm[kImportedW4] = w4;
  kernels.gemm[kImportedF4] = f4;
  kernels.gemm[kImportedF8] = f8;
  return kernels;
}

void Set(KernelSet* set, OperandKind kind, const OperandKernels& kernels) {
  set->operands[static_cast<int>(kind)] = kernels;
}

// A set with the reference kernels; other sets replace the kernels that they have themselves.
KernelSet Reference(const char* name, bool supported) {
  KernelSet set = {name, supported, {}, {}, {}, {}};
  set.glu[static_cast<int>(Activation::kSilu)] = GluSiluReference;
  set.glu[static_cast<int>(Activation::kGelu)] = GluGeluReference;
  set.glu[static_cast<int>(Activation::kGeluTanh)] = GluGeluTanhReference;
  set.glu[static_cast<int>(Activation::kRelu2)] = GluRelu2Reference;
  Set(&set, OperandKind::kPlain, Plain(kFloatTile, PackBf16Reference, BlockGemmBf16Reference));
  set.plain_f32 = set.operands[static_cast<int>(OperandKind::kPlain)];
  set.plain_f32.pack = PackF32Reference;
  OperandKernels summed = {kFloatTile,
                           PackBf16Reference,
                           {nullptr, BlockGemmFloatW8Reference, BlockGemmFloatW4Reference,
                            BlockGemmFloatW3Reference, BlockGemmFloatW2Reference, nullptr}};
  summed = WithImported(summed, BlockGemmImportedW4Reference, BlockGemmImportedF4Reference,
                        BlockGemmImportedF8Reference);
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

#if defined(__x86_64__)
constexpr int64_t kSums = static_cast<int64_t>(sizeof(float));
constexpr int64_t kTileBytes = 1024;  // of an AMX tile

OperandKernels Float8(int64_t float_tile, PackFn pack, BlockGemmFn gemm) {
  return {float_tile + static_cast<int64_t>(sizeof(TileScale)),
          pack,
          {nullptr, nullptr, nullptr, nullptr, nullptr, gemm}};
}

OperandKernels Quantized(int64_t bytes_per_tile, PackFn pack, BlockGemmFn w8, BlockGemmFn w4,
                         BlockGemmFn w3, BlockGemmFn w2) {
  return {bytes_per_tile, pack, {nullptr, w8, w4, w3, w2, nullptr}};
}

// Makes kernels wide ones that serve any number of columns.
OperandKernels AnyWidth(OperandKernels kernels) {
  for (int i = 0; i < kWeightKinds; ++i) kernels.wide[i] = kernels.gemm[i];
  return kernels;
}

// From this many columns on, turning weights into tiles pays.
constexpr int kAmxFrom = 5;

// Integer kernels of one ISA; the packing is that of AVX2.
void SetIntegers(KernelSet* set, BlockGemmFn w8, BlockGemmFn w4, BlockGemmFn w3, BlockGemmFn w2) {
  Set(set, OperandKind::kInt8Group, Quantized(kIntTile, PackInt8GroupAvx2, w8, w4, w3, w2));
  Set(set, OperandKind::kInt8Token, Quantized(kIntTile, PackInt8TokenAvx2, w8, w4, w3, w2));
  Set(set, OperandKind::kInt4Group, Quantized(kIntTile, PackInt4GroupAvx2, w8, w4, w3, w2));
  Set(set, OperandKind::kInt4Token, Quantized(kIntTile, PackInt4TokenAvx2, w8, w4, w3, w2));
}

KernelSet Avx2Set() {
  KernelSet avx2 = Reference("avx2", HasAvx2());
  avx2.glu[static_cast<int>(Activation::kSilu)] = GluSiluAvx2;
  avx2.glu[static_cast<int>(Activation::kGeluTanh)] = GluGeluTanhAvx2;
  Set(&avx2, OperandKind::kPlain, Plain(kFloatTile, PackRoundedAvx2, BlockGemmBf16F32Avx2));
  avx2.plain_f32 = Plain(kFloatTile, PackF32Avx2, BlockGemmBf16F32Avx2);
  OperandKernels summed =
      Quantized(kFloatTile + kSums, PackSummedRoundedAvx2, BlockGemmFloatW8Avx2,
                BlockGemmFloatW4Avx2, BlockGemmFloatW3Avx2, BlockGemmFloatW2Avx2);
  summed = WithImported(summed, BlockGemmImportedW4Avx2, BlockGemmImportedF4Avx2,
                        BlockGemmImportedF8Avx2);
  Set(&avx2, OperandKind::kSummed, summed);
  summed.pack = PackSummedF32Avx2;
  avx2.summed_f32 = summed;
  SetIntegers(&avx2, BlockGemmIntW8Avx2, BlockGemmIntW4Avx2, BlockGemmIntW3Avx2,
              BlockGemmIntW2Avx2);
  Set(&avx2, OperandKind::kF8Token, Float8(kFloatTile, PackF8TokenAvx2, BlockGemmF8Avx2));
  return avx2;
}

// A set has the kernels of the set before it where it has none of its own. Integer products are
// bit-identical in all sets, so VNNI needs no set of its own.
KernelSet Avx512Set(const KernelSet& avx2) {
  KernelSet avx512 = avx2;
  avx512.name = "avx512";
  avx512.supported = HasAvx512();
  avx512.glu[static_cast<int>(Activation::kSilu)] = GluSiluAvx512;
  avx512.glu[static_cast<int>(Activation::kGeluTanh)] = GluGeluTanhAvx512;
  Set(&avx512, OperandKind::kPlain, Plain(kFloatTile, PackRoundedAvx512, BlockGemmBf16F32Avx512));
  avx512.plain_f32 = Plain(kFloatTile, PackF32Avx512, BlockGemmBf16F32Avx512);
  if (HasVnni()) {
    SetIntegers(&avx512, BlockGemmIntW8Vnni, BlockGemmIntW4Vnni, BlockGemmIntW3Vnni,
                BlockGemmIntW2Vnni);
  }
  return avx512;
}

KernelSet Avx512Bf16Set(const KernelSet& avx512) {
  KernelSet avx512bf16 = avx512;
  avx512bf16.name = "avx512bf16";
  avx512bf16.supported = HasAvx512Bf16();
  Set(&avx512bf16, OperandKind::kPlain,
      Plain(kFloatTile / 2, PackBf16Avx512, BlockGemmBf16Avx512Bf16));
  Set(&avx512bf16, OperandKind::kSummed,
      WithImported(Quantized(kFloatTile / 2 + kSums, PackSummedBf16Avx512,
                             BlockGemmFloatW8Avx512Bf16, BlockGemmFloatW4Avx512Bf16,
                             BlockGemmFloatW3Avx512Bf16, BlockGemmFloatW2Avx512Bf16),
                   BlockGemmImportedW4Avx512Bf16, BlockGemmImportedF4Avx512Bf16,
                   BlockGemmImportedF8Avx512Bf16));
  Set(&avx512bf16, OperandKind::kF8Token,
      Float8(kFloatTile / 2, PackF8TokenAvx512, BlockGemmF8Avx512Bf16));
  return avx512bf16;
}

// tdpbf16ps sums in an order of its own, so this set uses it for any number of columns. Integer
// sums are exact, so for these the number of columns may decide.
KernelSet AmxSet(const KernelSet& avx512bf16) {
  KernelSet amx = avx512bf16;
  amx.name = "amx";
  amx.supported = HasAmx();
  OperandKernels plain = AnyWidth(Plain(kFloatTile / 2, PackBf16Avx512, BlockGemmBf16Amx));
  plain.kept_bytes[kBf16Weights] = 2 * kTileBytes;
  Set(&amx, OperandKind::kPlain, plain);
  OperandKernels summed = AnyWidth(
      WithImported(Quantized(kFloatTile / 2 + kSums, PackSummedBf16Avx512, BlockGemmFloatW8Amx,
                             BlockGemmFloatW4Amx, BlockGemmFloatW3Amx, BlockGemmFloatW2Amx),
                   BlockGemmImportedW4Amx, BlockGemmImportedF4Amx, BlockGemmImportedF8Amx));
  for (const WeightKind weights : {kImportedW4, kImportedF4, kImportedF8}) {
    summed.kept_bytes[weights] = 2 * kTileBytes;
  }
  Set(&amx, OperandKind::kSummed, summed);
  Set(&amx, OperandKind::kF8Token,
      AnyWidth(Float8(kFloatTile / 2, PackF8TokenAvx512, BlockGemmF8Amx)));
  for (const OperandKind kind : {OperandKind::kInt8Group, OperandKind::kInt8Token,
                                 OperandKind::kInt4Group, OperandKind::kInt4Token}) {
    OperandKernels& kernels = amx.operands[static_cast<int>(kind)];
    kernels.wide[kW8] = BlockGemmIntW8Amx;
    kernels.wide[kW4] = BlockGemmIntW4Amx;
    kernels.wide[kW3] = BlockGemmIntW3Amx;
    kernels.wide[kW2] = BlockGemmIntW2Amx;
    kernels.wide_from = kAmxFrom;
    for (const WeightKind weights : {kW8, kW4, kW3, kW2}) kernels.kept_bytes[weights] = kTileBytes;
  }
  return amx;
}
#endif

// Best first.
std::vector<KernelSet> AllKernelSets() {
  std::vector<KernelSet> sets;
#if defined(__x86_64__)
  const KernelSet avx2 = Avx2Set();
  const KernelSet avx512 = Avx512Set(avx2);
  const KernelSet avx512bf16 = Avx512Bf16Set(avx512);
  const KernelSet amx = AmxSet(avx512bf16);
  sets = {amx, avx512bf16, avx512, avx2};
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

bool TakesF8Group(const Scheme& scheme, ActivationNumerics numerics) {
  return numerics == ActivationNumerics::kFp8 && scheme.imported() && scheme.fp8;
}

OperandKind OperandFor(const Scheme& scheme, ActivationNumerics numerics) {
  if (scheme.is_bf16()) return OperandKind::kPlain;
  if (TakesF8Group(scheme, numerics)) return OperandKind::kF8Group;
  if (scheme.imported()) return OperandKind::kSummed;
  if (scheme.fp8) return OperandKind::kF8Token;
  if (scheme.act_bits == 4) {
    return scheme.group > 0 ? OperandKind::kInt4Group : OperandKind::kInt4Token;
  }
  if (scheme.act_bits == 8) {
    return scheme.group > 0 ? OperandKind::kInt8Group : OperandKind::kInt8Token;
  }
  return numerics == ActivationNumerics::kInt8 ? OperandKind::kInt8Group : OperandKind::kSummed;
}

bool RoundsH(const Scheme& scheme, bool hadamard, ActivationNumerics numerics) {
  const OperandKind kind = OperandFor(scheme, numerics);
  const bool quantized = kind != OperandKind::kPlain && kind != OperandKind::kSummed;
  return quantized || (hadamard && numerics != ActivationNumerics::kF32);
}

WeightKind WeightKindOf(const Scheme& scheme) {
  if (scheme.imported()) return scheme.fp4 ? kImportedF4 : scheme.fp8 ? kImportedF8 : kImportedW4;
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
  return InvalidArgument("unknown CPU kernel set '{}', legal on this machine: {}",
                         fmt::string_view(name.data(), name.size()), legal);
}

}  // namespace moert::kernels
