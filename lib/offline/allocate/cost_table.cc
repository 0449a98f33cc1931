#include "moert/offline/cost_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/exception_status.h"
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

absl::StatusOr<std::vector<CostTable::Point>> ParsePoints(JsonValue list,
                                                          const std::string& source) {
  std::vector<CostTable::Point> points;
  if (!list.is_array()) return absl::InvalidArgumentError(source + " is not a list");
  for (const JsonValue pair : list.elements()) {
    std::vector<double> numbers;
    for (const JsonValue n : pair.elements()) {
      if (const auto d = n.AsDouble(); d && numbers.size() < 3) numbers.push_back(*d);
    }
    if (numbers.size() != 2 || pair.size() != 2) {
      return absl::InvalidArgumentError(source + ": not a pair of tokens and bytes a second");
    }
    const CostTable::Point p = {numbers[0], numbers[1]};
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

absl::StatusOr<CostTable> ParseCostTable(JsonValue object, const std::string& name) {
  ConfigFields f(object, name);
  CostTable table;
  table.name = f.String("name");
  table.source = f.String("source", "");
  const auto rates = f.Find("rates");
  MOERT_RETURN_IF_ERROR(f.status());
  if (!rates || !rates->is_object()) {
    return absl::InvalidArgumentError(name + ": rates is not an object");
  }
  for (const JsonMember& m : rates->members()) {
    const std::string key = *m.key.AsString();
    const auto scheme = Scheme::Parse(key);
    if (!scheme.ok()) {
      return absl::Status(scheme.status().code(),
                          name + ": rates: " + std::string(scheme.status().message()));
    }
    MOERT_ASSIGN_OR_RETURN(auto points, ParsePoints(m.value, name + ": rates: " + key));
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
  return NotFound("cost table {} has no rate for {}; it has {}", name, scheme.Name(), known);
}

absl::StatusOr<CostTable> LoadCostTable(const std::string& name, Env* env) try {
  auto document =
      name == "h200" ? JsonDocument::Parse(kH200Costs, name) : JsonDocument::Read(env, name);
  if (!document.ok()) return document.status();
  return ParseCostTable(document->root(), name);
} catch (...) {
  return ExceptionStatus(name);
}

}  // namespace moert
