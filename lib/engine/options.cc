#include "moert/options.h"

#include "fmt/format.h"

namespace moert {

absl::Status EngineOptions::Validate() const {
  const auto bad = [](const char* field, auto value, const char* legal) {
    return absl::InvalidArgumentError(fmt::format("{} = {}: must be in {}", field, value, legal));
  };
  if (budget.bytes.has_value() && *budget.bytes < 1) {
    return bad("budget.bytes", *budget.bytes, "[1, 2^63)");
  }
  if (max_tokens_per_forward < 1 || max_tokens_per_forward > (int64_t{1} << 20)) {
    return bad("max_tokens_per_forward", max_tokens_per_forward, "[1, 1048576]");
  }
  if (device < 0 || device > 1023) return bad("device", device, "[0, 1023]");
  if (host_budget < -1) return bad("host_budget", host_budget, "[-1, 2^63)");
  if (!(link_gbps >= 0 && link_gbps <= 1e6)) return bad("link_gbps", link_gbps, "[0, 1e6]");
  if (threads < 0 || threads > 1024) return bad("threads", threads, "[0, 1024]");
  if (io_threads < 1 || io_threads > 16) return bad("io_threads", io_threads, "[1, 16]");
  if (simulate && clock != ClockKind::kVirtual) {
    return absl::InvalidArgumentError("simulate: needs clock = kVirtual");
  }
  return absl::OkStatus();
}

}  // namespace moert
