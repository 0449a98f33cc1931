#include "moert/profile.h"

#include <cmath>

#include "base/status_macros.h"
#include "fmt/format.h"
#include "format/json.h"
#include "moert/env.h"

namespace moert {
namespace {

/// Reads field `name` if it is there; it must then be a number in [low, high].
absl::Status ReadNumber(const nlohmann::json& json, const std::string& path, const char* name,
                        double low, double high, double* value) {
  const auto it = json.find(name);
  if (it == json.end()) return absl::OkStatus();
  if (!it->is_number() || !(it->get<double>() >= low && it->get<double>() <= high)) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: field '{}' is {}: must be a number in [{}, {}]", path, name, it->dump(), low, high));
  }
  *value = it->get<double>();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HardwareProfile> LoadProfile(const std::string& path) {
  if (path == "reference") return HardwareProfile{};
  MOERT_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(Env::Default(), path));
  HardwareProfile p;
  p.name = path;
  if (const auto it = json.find("name"); it != json.end() && it->is_string()) {
    p.name = it->get<std::string>();
  }
  double latency = static_cast<double>(p.link_latency_ns);
  double decode = static_cast<double>(p.decode_layer_ns);
  double prefill = static_cast<double>(p.prefill_token_ns);
  double cpu_latency = static_cast<double>(p.cpu_expert_latency_ns);
  MOERT_RETURN_IF_ERROR(ReadNumber(json, path, "link_bytes_per_s", 1, 1e15, &p.link_bytes_per_s));
  MOERT_RETURN_IF_ERROR(ReadNumber(json, path, "link_latency_ns", 0, 1e12, &latency));
  MOERT_RETURN_IF_ERROR(ReadNumber(json, path, "decode_layer_ns", 0, 1e12, &decode));
  MOERT_RETURN_IF_ERROR(ReadNumber(json, path, "prefill_token_ns", 0, 1e12, &prefill));
  MOERT_RETURN_IF_ERROR(
      ReadNumber(json, path, "cpu_weight_bytes_per_s", 1, 1e15, &p.cpu_weight_bytes_per_s));
  MOERT_RETURN_IF_ERROR(ReadNumber(json, path, "cpu_expert_latency_ns", 0, 1e12, &cpu_latency));
  p.link_latency_ns = std::llround(latency);
  p.decode_layer_ns = std::llround(decode);
  p.prefill_token_ns = std::llround(prefill);
  p.cpu_expert_latency_ns = std::llround(cpu_latency);
  return p;
}

}  // namespace moert
