#include "moert/options.h"

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/numa.h"
#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert {
namespace {

template <typename T>
absl::Status OutOf(const char* legal, const char* field, T value) {
  return InvalidArgument("{} = {}: must be in {}", field, value, legal);
}

absl::Status CheckRange(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return OutOf(fmt::format("[{}, {}]", least, most).c_str(), field, value);
}

}  // namespace

absl::Status EngineOptions::Validate() const try {
  if (budget.bytes.has_value() && *budget.bytes < 1) {
    return OutOf("[1, 2^63)", "budget.bytes", *budget.bytes);
  }
  MOERT_RETURN_IF_ERROR(
      CheckRange("max_tokens_per_forward", max_tokens_per_forward, 1, int64_t{1} << 20));
  MOERT_RETURN_IF_ERROR(CheckRange("device", device, 0, 1023));
  if (host_budget < -1) return OutOf("[-1, 2^63)", "host_budget", host_budget);
  // At least one byte per second, as in a profile: with less, the time of a transfer could overflow
  // the clock.
  if (link_gbps != 0 && !(link_gbps >= 1e-9 && link_gbps <= 1e6)) {
    return OutOf("[1e-9, 1e6], or 0", "link_gbps", link_gbps);
  }
  MOERT_RETURN_IF_ERROR(CheckRange("threads", threads, 0, 1024));
  MOERT_RETURN_IF_ERROR(CheckRange("numa_node", numa_node, -1, 1023));
  if (numa_node >= 0) MOERT_RETURN_IF_ERROR(NumaCpus(numa_node).status());
  return CheckRange("io_threads", io_threads, 1, 16);
} catch (...) {
  return ExceptionStatus("options");
}

}  // namespace moert
