#include "moert/offline/cost_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/json.h"
#include "base/status_macros.h"
#include "model/config_fields.h"
#include "offline/allocate/h200_costs.h"

namespace moert {
namespace {

double RateAt(const std::vector<CostTable::Point>& points, double tokens) {
  const auto next = std::find_if(points.begin(), points.end(),
                                 [&](const CostTable::Point& p) { return p.tokens > tokens; });
  if (next == points.begin()) return next->weight_bytes_per_s;
  const CostTable::Point& low = *(next - 1);
  if (next == points.end()) return low.weight_bytes_per_s * low.tokens / tokens;
  const double part = std::log(tokens / low.tokens) / std::log(next->tokens / low.tokens);
  return low.weight_bytes_per_s * std::pow(next->weight_bytes_per_s / low.weight_bytes_per_s, part);
}

absl::StatusOr<std::vector<CostTable::Point>> ParsePoints(const nlohmann::json& list,
                                                          const std::string& source) {
  std::vector<CostTable::Point> points;
  if (!list.is_array()) return absl::InvalidArgumentError(source + " is not a list");
  for (const auto& pair : list) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) {
      return absl::InvalidArgumentError(source + ": not a pair of tokens and bytes a second");
    }
    const CostTable::Point p = {pair[0].get<double>(), pair[1].get<double>()};
    const double least = points.empty() ? 0 : points.back().tokens;
    if (!(p.tokens > least && p.tokens <= 1e9 && p.weight_bytes_per_s >= 1 &&
          p.weight_bytes_per_s <= 1e18)) {
      return absl::InvalidArgumentError(source + ": out of range, or tokens that do not ascend");
    }
    points.push_back(p);
  }
  if (points.empty()) return absl::InvalidArgumentError(source + " is empty");
  return points;
}

absl::StatusOr<CostTable> ParseCostTable(const nlohmann::json& object, const std::string& name) {
  ConfigFields f(object, name);
  CostTable table;
  table.name = f.String("name");
  table.source = f.String("source", "");
  const nlohmann::json* rates = f.Find("rates");
  MOERT_RETURN_IF_ERROR(f.status());
  if (rates == nullptr || !rates->is_object()) {
    return absl::InvalidArgumentError(name + ": rates is not an object");
  }
  for (const auto& [key, value] : rates->items()) {
    const auto scheme = Scheme::Parse(key);
    if (!scheme.ok()) {
      return absl::InvalidArgumentError(name +
                                        ": rates: " + std::string(scheme.status().message()));
    }
    MOERT_ASSIGN_OR_RETURN(auto points, ParsePoints(value, name + ": rates: " + key));
    table.rates.push_back({*scheme, std::move(points)});
  }
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
    return used * static_cast<double>(bytes) / RateAt(rate.points, per_use);
  }
  return absl::NotFoundError(
      fmt::format("cost table {} has no rate for {}; it has {}", name, scheme.Name(), known));
}

absl::StatusOr<CostTable> LoadCostTable(const std::string& name, Env* env) {
  if (name == "h200") return ParseCostTable(nlohmann::json::parse(kH200Costs), name);
  MOERT_ASSIGN_OR_RETURN(const nlohmann::json object, ReadJsonFile(env, name));
  return ParseCostTable(object, name);
}

}  // namespace moert
