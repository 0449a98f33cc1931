#include "options.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

moert_engine_options Defaults() {
  const EngineOptions defaults;
  moert_engine_options options{};
  options.budget_fraction = defaults.budget.fraction;
  options.max_tokens_per_forward = defaults.max_tokens_per_forward;
  options.numerics = static_cast<moert_numerics>(defaults.activation);
  options.clock = static_cast<moert_clock>(defaults.clock);
  options.link_gbps = defaults.link_gbps;
  options.seed = defaults.seed;
  options.threads = defaults.threads;
  options.io_threads = defaults.io_threads;
  return options;
}

absl::Status CheckEnum(const char* name, int32_t value, int32_t last) {
  if (value >= 0 && value <= last) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("options.", name, " is ", value, ", legal is 0 to ", last));
}

}  // namespace

Budget ToBudget(int64_t bytes, double fraction) {
  return bytes != 0 ? Budget::Bytes(bytes) : Budget::Fraction(fraction);
}

absl::StatusOr<EngineOptions> ReadOptions(const moert_engine_options* options) {
  moert_engine_options c = Defaults();
  if (options != nullptr) MOERT_RETURN_IF_ERROR(ReadStruct(options, "options", &c));
  MOERT_RETURN_IF_ERROR(CheckEnum("numerics", c.numerics, MOERT_NUMERICS_INT8));
  MOERT_RETURN_IF_ERROR(CheckEnum("clock", c.clock, MOERT_CLOCK_VIRTUAL));
  EngineOptions result;
  if (c.strategy != nullptr) result.strategy = c.strategy;
  result.budget = ToBudget(c.budget_bytes, c.budget_fraction);
  result.max_tokens_per_forward = c.max_tokens_per_forward;
  result.activation = static_cast<ActivationNumerics>(c.numerics);
  result.clock = static_cast<ClockKind>(c.clock);
  if (c.profile != nullptr) {
    MOERT_ASSIGN_OR_RETURN(result.profile, LoadProfile(c.profile));
  }
  result.link_gbps = c.link_gbps;
  result.seed = c.seed;
  result.threads = c.threads;
  result.io_threads = c.io_threads;
  if (c.kernels != nullptr) result.kernels = c.kernels;
  return result;
}

}  // namespace moert::capi

extern "C" void moert_engine_options_init(moert_engine_options* options, uint64_t size) {
  moert::capi::InitStruct(options, size, moert::capi::Defaults());
}
