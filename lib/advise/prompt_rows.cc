#include "moert/tools/prompt_rows.h"

#include <algorithm>
#include <cmath>

#include "base/bytes_text.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "engine/blueprint.h"
#include "fmt/format.h"
#include "model/expected_experts.h"

namespace moert {
namespace {

// The workspace of steps with more rows than asked for takes at most 1 / kWorkspaceShare of the
// budget.
constexpr int64_t kWorkspaceShare = 8;

/// The expected times of a prompt's step, in ns.
struct PromptStep {
  double layers_ns = 0;
  double waits_ns = 0;
  /// Whether waits are long enough that more rows pay.
  bool waits() const { return waits_ns > 0.05 * layers_ns; }
};

/// Predicts a step of `rows` rows. Assumes that all experts are equally likely, which gives the
/// most experts that a step can use.
PromptStep ExpectedPromptStep(const ExpertSource& source, const Blueprint& b, int64_t rows) {
  const auto count = static_cast<double>(rows);
  const double resident =
      b.plan.own_bytes > 0
          ? 1  // every expert has a version that is always there
          : static_cast<double>(b.plan.slots) / static_cast<double>(b.plan.total_experts);
  PromptStep expected;
  for (const MoeLayerSpec& layer : source.model().layers) {
    const double experts = layer.num_experts;
    // A host that routes itself may have a top_k above the number of experts.
    const double chosen = std::min<double>(layer.routing.top_k, experts);
    const double used = ExpectedExperts(experts, chosen, count);
    const auto each = static_cast<int64_t>(std::ceil(count * chosen / used));
    const double busy_ns = static_cast<double>(b.profile.LayerNs(/*prefill=*/true, rows)) +
                           used * b.profile.ExpertNs(b.plan.block_bytes, each);
    const double link_ns = used * (1 - std::min(1.0, resident)) *
                           static_cast<double>(b.profile.TransferNs(b.plan.block_bytes));
    expected.layers_ns += busy_ns;
    expected.waits_ns += std::max(0.0, link_ns - busy_ns);
  }
  return expected;
}

absl::StatusOr<Blueprint> WithRows(const ExpertSource& source, EngineOptions options,
                                   int64_t rows) {
  options.max_tokens_per_forward = rows;
  return MakeBlueprint(source, options);
}

std::string Why(const Blueprint& b, int64_t rows, const PromptStep& step) {
  return fmt::format(
      "{} rows a step in {} of workspace: {:.3g} ms expected, {:.3g} of them waiting", rows,
      BytesText(b.plan.workspace_bytes), (step.layers_ns + step.waits_ns) / 1e6,
      step.waits_ns / 1e6);
}

}  // namespace

absl::StatusOr<PromptRows> ChoosePromptRows(const ExpertSource& source,
                                            const EngineOptions& options, int64_t tokens) try {
  if (tokens < 1) return InvalidArgument("a prompt of {} tokens: must be 1 or more", tokens);
  int64_t rows = std::min(tokens, options.max_tokens_per_forward);
  MOERT_ASSIGN_OR_RETURN(Blueprint chosen, WithRows(source, options, rows));
  PromptStep step = ExpectedPromptStep(source, chosen, rows);
  while (rows < tokens && step.waits()) {
    const int64_t more = std::min(tokens, 2 * rows);
    absl::StatusOr<Blueprint> b = WithRows(source, options, more);
    // The budget or the backend has no room for so many rows.
    if (!b.ok() || b->plan.workspace_bytes > b->plan.budget_bytes / kWorkspaceShare) break;
    rows = more;
    chosen = *std::move(b);
    step = ExpectedPromptStep(source, chosen, rows);
  }
  return PromptRows{rows, Why(chosen, rows, step)};
} catch (...) {
  return ExceptionStatus("choosing the rows of a prompt's steps");
}

}  // namespace moert
