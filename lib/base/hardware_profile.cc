#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "moert/tools/env.h"
#include "moert/tools/profile.h"

namespace moert {
namespace {

/// Reads field `name` if it is there; it must then be a number in [low, high].
absl::Status ReadNumber(JsonValue object, const std::string& path, const char* name, double low,
                        double high, double* value) {
  const auto field = object.Find(name);
  if (!field) return absl::OkStatus();
  const auto number = field->AsDouble();
  if (!number || !(*number >= low && *number <= high)) {
    return InvalidArgument("{}: field '{}' is {}: must be a number in [{}, {}]", path, name,
                           Printable(field->text()), low, high);
  }
  *value = *number;
  return absl::OkStatus();
}

/// The field "compute": a list of {"tokens", "weight_bytes_per_s"}, tokens ascending.
absl::Status ReadComputeRates(JsonValue object, const std::string& path,
                              std::vector<HardwareProfile::ComputeRate>* rates) {
  const auto field = object.Find("compute");
  if (!field) return absl::OkStatus();
  constexpr size_t kMaxRates = 1000;
  if (!field->is_array() || field->size() > kMaxRates) {
    return InvalidArgument("{}: field 'compute' must be a list of at most {} rates", path,
                           kMaxRates);
  }
  for (const JsonValue row : field->elements()) {
    if (!row.Find("tokens") || !row.Find("weight_bytes_per_s")) {
      return InvalidArgument(
          "{}: field 'compute': a rate is {{\"tokens\", \"weight_bytes_per_s\"}}", path);
    }
    double tokens = 0, rate = 0;
    MOERT_RETURN_IF_ERROR(ReadNumber(row, path, "tokens", 1, 1e9, &tokens));
    MOERT_RETURN_IF_ERROR(ReadNumber(row, path, "weight_bytes_per_s", 1, 1e15, &rate));
    if (!rates->empty() && !(tokens > static_cast<double>(rates->back().tokens))) {
      return InvalidArgument("{}: field 'compute': tokens {} must ascend", path, tokens);
    }
    rates->push_back({std::llround(tokens), rate});
  }
  return absl::OkStatus();
}

/// Field `name`: {"NAME": {"compute": [...]}, ...}.
absl::Status ReadVersionRates(JsonValue object, const std::string& path, const char* name,
                              std::vector<HardwareProfile::VersionRates>* versions) {
  const auto field = object.Find(name);
  if (!field) return absl::OkStatus();
  constexpr size_t kMaxVersions = 100;
  if (!field->is_object() || field->size() > kMaxVersions) {
    return InvalidArgument("{}: field '{}' must be an object of at most {} versions", path, name,
                           kMaxVersions);
  }
  for (const JsonMember& m : field->members()) {
    HardwareProfile::VersionRates v{*m.key.AsString(), {}};
    if (!m.value.is_object()) {
      return InvalidArgument("{}: field '{}': '{}' is no object", path, name, Printable(v.version));
    }
    MOERT_RETURN_IF_ERROR(ReadComputeRates(m.value, path, &v.rates));
    versions->push_back(std::move(v));
  }
  return absl::OkStatus();
}

using Rates = std::vector<HardwareProfile::ComputeRate>;

/// Rates of a version; null: it has none of its own.
const Rates* RatesOf(const std::vector<HardwareProfile::VersionRates>& versions,
                     absl::string_view version) {
  for (const HardwareProfile::VersionRates& v : versions) {
    if (v.version == version && !v.rates.empty()) return &v.rates;
  }
  return nullptr;
}

/// Time per byte as a function of tokens: linear between rows, proportional after the last, the
/// first row's before it (weights are streamed whole for one token as for any fewer).
double NsPerByte(const Rates& rates, int64_t tokens) {
  using ComputeRate = HardwareProfile::ComputeRate;
  const auto ns_per_byte = [](const ComputeRate& r) { return 1e9 / r.weight_bytes_per_s; };
  const ComputeRate* low = &rates.front();
  const ComputeRate* high = low;
  for (const ComputeRate& r : rates) {
    high = &r;
    if (r.tokens >= tokens) break;
    low = &r;
  }
  double per_byte = 0;
  if (tokens >= high->tokens) {
    per_byte = ns_per_byte(*high) * static_cast<double>(tokens) / static_cast<double>(high->tokens);
  } else if (low == high || tokens <= low->tokens) {
    per_byte = ns_per_byte(*low);
  } else {
    const double at =
        static_cast<double>(tokens - low->tokens) / static_cast<double>(high->tokens - low->tokens);
    per_byte = ns_per_byte(*low) + at * (ns_per_byte(*high) - ns_per_byte(*low));
  }
  return per_byte;
}

}  // namespace

double HardwareProfile::ExpertNs(int64_t bytes, int64_t tokens, absl::string_view version) const {
  if (compute.empty() || tokens <= 0) return 0;
  const Rates* rates = RatesOf(version_compute, version);
  return NsPerByte(rates != nullptr ? *rates : compute, tokens) * static_cast<double>(bytes);
}

int64_t HardwareProfile::CpuExpertNs(int64_t bytes, int64_t tokens,
                                     absl::string_view version) const {
  const Rates* rates = RatesOf(cpu_compute, version);
  const double more = static_cast<double>(tokens > 1 ? tokens - 1 : 0);
  const double per_byte = rates != nullptr
                              ? NsPerByte(*rates, tokens)
                              : 1e9 / cpu_weight_bytes_per_s * (1 + cpu_next_token_share * more);
  return cpu_expert_latency_ns + WholeNs(per_byte * static_cast<double>(bytes));
}

absl::StatusOr<HardwareProfile> LoadProfile(const std::string& path) try {
  if (path == "reference") return HardwareProfile{};
  MOERT_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Read(Env::Default(), path));
  const JsonValue json = document.root();
  if (json.Find("missing")) {
    return InvalidArgument(
        "{}: its probe was cut short (field 'missing'): run moert-bench probe again, with more "
        "--seconds",
        path);
  }
  HardwareProfile p;
  p.name = path;
  if (const auto name = json.Find("name"); name && name->is_string()) p.name = *name->AsString();
  MOERT_RETURN_IF_ERROR(ReadNumber(json, path, "link_bytes_per_s", 1, 1e15, &p.link_bytes_per_s));
  MOERT_RETURN_IF_ERROR(
      ReadNumber(json, path, "cpu_weight_bytes_per_s", 1, 1e15, &p.cpu_weight_bytes_per_s));
  double streams = 1;
  MOERT_RETURN_IF_ERROR(ReadNumber(json, path, "link_streams", 1, 64, &streams));
  p.link_streams = static_cast<int>(streams);
  MOERT_RETURN_IF_ERROR(
      ReadNumber(json, path, "stream_bytes_per_s", 0, 1e15, &p.stream_bytes_per_s));
  MOERT_RETURN_IF_ERROR(ReadNumber(json, path, "file_bytes_per_s", 1, 1e15, &p.file_bytes_per_s));
  const std::pair<const char*, int64_t*> times[] = {
      {"link_latency_ns", &p.link_latency_ns},
      {"decode_layer_ns", &p.decode_layer_ns},
      {"prefill_token_ns", &p.prefill_token_ns},
      {"cpu_expert_latency_ns", &p.cpu_expert_latency_ns},
      {"arrival_ns", &p.arrival_ns},
      {"wave_ns", &p.wave_ns},
      {"wake_ns", &p.wake_ns},
      {"next_gate_ns", &p.next_gate_ns},
      {"request_rule_ns", &p.request_rule_ns}};
  for (const auto& [name, ns] : times) {
    double value = static_cast<double>(*ns);
    MOERT_RETURN_IF_ERROR(ReadNumber(json, path, name, 0, 1e12, &value));
    *ns = std::llround(value);
  }
  MOERT_RETURN_IF_ERROR(ReadComputeRates(json, path, &p.compute));
  MOERT_RETURN_IF_ERROR(ReadVersionRates(json, path, "version_compute", &p.version_compute));
  MOERT_RETURN_IF_ERROR(ReadVersionRates(json, path, "cpu_compute", &p.cpu_compute));
  MOERT_RETURN_IF_ERROR(
      ReadNumber(json, path, "cpu_next_token_share", 0, 1000, &p.cpu_next_token_share));
  if (const auto field = json.Find("cpu_executor")) {
    if (!field->is_bool()) {
      return InvalidArgument("{}: field 'cpu_executor' is {}: must be true or false", path,
                             Printable(field->text()));
    }
    p.cpu_executor = field->AsBool();
  }
  return p;
} catch (...) {
  return ExceptionStatus("loading a profile");
}

}  // namespace moert
