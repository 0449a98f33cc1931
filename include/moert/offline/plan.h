// A plan: which scheme every linear block of a model is to be stored in. Written by `moert-pack
// allocate`, read by `moert-pack quantize --plan`; docs/guide/quantize.md describes the fields.
#ifndef MOERT_OFFLINE_PLAN_H_
#define MOERT_OFFLINE_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "moert/model.h"
#include "moert/offline/pack.h"
#include "moert/tools/env.h"

namespace moert {

inline constexpr int kPlanFormatVersion = 1;

struct Plan {
  MoeModelSpec model = {};
  std::string source_identity = {};  // of the checkpoint that was calibrated
  PackVersion version = {};
  std::string summary_json = "{}";  // an object for people and reports: bits, losses, gap, settings
};

/// The text of a plan, a line an entry, so that people can read it.
std::string PlanToJson(const Plan& plan);

absl::StatusOr<Plan> ReadPlan(const std::string& path, Env* env);

}  // namespace moert

#endif  // MOERT_OFFLINE_PLAN_H_
