#include "kernels/cpu/kernel_set.h"

#include <fmt/format.h>

#include <string>

namespace moert::kernels {
namespace {

constexpr int64_t kFloatPiece = kPieceK * 4;

std::vector<KernelSet> AllKernelSets() {
  std::vector<KernelSet> sets;
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
