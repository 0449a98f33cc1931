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

constexpr int64_t kFloatPiece = kPieceK * 4;

std::vector<KernelSet> AllKernelSets() {
  std::vector<KernelSet> sets;
#if defined(__x86_64__)
  const ActivationKernels f32_avx512 = {kFloatPiece, PackF32Avx512, BlockGemmBf16F32Avx512};
  sets.push_back({"avx512bf16",
                  HasAvx512Bf16(),
                  {{kFloatPiece / 2, PackBf16Avx512, BlockGemmBf16Avx512Bf16}, f32_avx512, {}},
                  {GluSiluAvx512, GluGeluReference, GluGeluTanhAvx512}});
  sets.push_back({"avx512",
                  HasAvx512(),
                  {{kFloatPiece, PackRoundedAvx512, BlockGemmBf16F32Avx512}, f32_avx512, {}},
                  {GluSiluAvx512, GluGeluReference, GluGeluTanhAvx512}});
  sets.push_back({"avx2",
                  HasAvx2(),
                  {{kFloatPiece, PackRoundedAvx2, BlockGemmBf16F32Avx2},
                   {kFloatPiece, PackF32Avx2, BlockGemmBf16F32Avx2},
                   {}},
                  {GluSiluAvx2, GluGeluReference, GluGeluTanhAvx2}});
#endif
  sets.push_back({"reference",
                  true,
                  {{kFloatPiece, PackBf16Reference, BlockGemmBf16Reference},
                   {kFloatPiece, PackF32Reference, BlockGemmBf16Reference},
                   {}},
                  {GluSiluReference, GluGeluReference, GluGeluTanhReference}});
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

absl::string_view ActivationNumericsName(ActivationNumerics numerics) {
  switch (numerics) {
    case ActivationNumerics::kBF16:
      return "bf16";
    case ActivationNumerics::kF32:
      return "f32";
    case ActivationNumerics::kInt8:
      return "int8";
  }
  return "unknown";
}

absl::StatusOr<const KernelSet*> FindKernelSet(absl::string_view name,
                                               ActivationNumerics numerics) {
  const std::string wanted(name);
  const std::string kind(ActivationNumericsName(numerics));
  std::string legal = "auto";
  for (const KernelSet* set : SupportedKernelSets()) {
    const bool serves = numerics >= ActivationNumerics::kBF16 &&
                        numerics <= ActivationNumerics::kInt8 && set->For(numerics).pack != nullptr;
    if (wanted == "auto" && serves) return set;
    if (wanted == set->name) {
      if (serves) return set;
      return absl::UnimplementedError(
          fmt::format("kernel set '{}' has no kernels for {} activations", wanted, kind));
    }
    legal += fmt::format(", {}", set->name);
  }
  if (wanted == "auto") {
    return absl::UnimplementedError(
        fmt::format("no CPU kernel set has kernels for {} activations, legal: bf16, f32", kind));
  }
  return absl::InvalidArgumentError(
      fmt::format("unknown CPU kernel set '{}', legal on this machine: {}", wanted, legal));
}

}  // namespace moert::kernels
