#include "allocate/cost_table.h"

#include <fmt/format.h>

#include <cmath>

#include "base/status_macros.h"
#include "format/config_fields.h"
#include "format/json.h"

namespace moert {
namespace {

// docs/benchmarks.md, grouped products of Qwen3-30B-A3B at 32 tokens on one H200: the rates of
// bf16, w8, w4 and w2 as measured. The per-channel and asymmetric forms are taken at the rate of
// their width, w3 between w2 and w4: they were not measured.
CostTable H200() {
  const std::pair<const char*, double> rates[] = {{"bf16", 3.80e12},
                                                  {"w8a16_g128", 2.66e12},
                                                  {"w4a16_g128", 1.92e12},
                                                  {"w4a16_g128_asym", 1.92e12},
                                                  {"w4a16_g-1_asym", 1.92e12},
                                                  {"w3a16_g128_asym", 1.5e12},
                                                  {"w3a16_g-1_asym", 1.5e12},
                                                  {"w2a16_g64_asym", 1.11e12},
                                                  {"w2a16_g128_asym", 1.11e12},
                                                  {"w2a16_g-1_asym", 1.11e12}};
  CostTable table;
  table.name = "h200";
  table.source = "docs/benchmarks.md: Qwen3-30B-A3B, 32 tokens, one H200; w3 between w2 and w4";
  for (const auto& [name, rate] : rates) table.rates.push_back({*Scheme::Parse(name), rate});
  return table;
}

}  // namespace

absl::StatusOr<double> CostTable::Seconds(const Scheme& scheme, int64_t bytes,
                                          double tokens) const {
  std::string known;
  for (const Rate& rate : rates) {
    known += (known.empty() ? "" : ", ") + rate.scheme.Name();
    if (!(rate.scheme == scheme)) continue;
    const double used = -std::expm1(-tokens);
    const double per_use = used > 0 ? tokens / used : 1;
    const double tiles = used * std::ceil(per_use / static_cast<double>(tile_tokens));
    return tiles * static_cast<double>(bytes) / rate.weight_bytes_per_s;
  }
  return absl::NotFoundError(
      fmt::format("cost table {} has no rate for {}; it has {}", name, scheme.Name(), known));
}

absl::StatusOr<CostTable> LoadCostTable(const std::string& name, Env* env) {
  if (name == "h200") return H200();
  MOERT_ASSIGN_OR_RETURN(const nlohmann::json object, ReadJsonFile(env, name));
  ConfigFields f(object, name);
  CostTable table;
  table.name = f.String("name");
  table.source = f.String("source", "");
  table.tile_tokens = f.Int("tile_tokens", 1, 1 << 20);
  const nlohmann::json* rates = f.Find("rates");
  MOERT_RETURN_IF_ERROR(f.status());
  if (rates == nullptr || !rates->is_object()) {
    return absl::InvalidArgumentError(name + ": rates is not an object");
  }
  ConfigFields values(*rates, name + ": rates");
  for (const auto& [key, value] : rates->items()) {
    const auto scheme = Scheme::Parse(key);
    if (!scheme.ok()) {
      return absl::InvalidArgumentError(name +
                                        ": rates: " + std::string(scheme.status().message()));
    }
    table.rates.push_back({*scheme, values.Real(key.c_str(), 1, 1e18)});
  }
  MOERT_RETURN_IF_ERROR(values.status());
  return table;
}

}  // namespace moert
