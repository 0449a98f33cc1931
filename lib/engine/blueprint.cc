#include "engine/blueprint.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "base/bytes_text.h"
#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "engine/memory_plan.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "moert/tools/auto_strategy.h"
#include "prefetch/prefetch_rule.h"

namespace moert {
namespace {

/// The versions of the source a strategy serves, most bits first.
absl::StatusOr<std::vector<int>> ServedVersions(const ExpertSource& source,
                                                const Strategy& strategy) {
  if (strategy.versions.empty()) return std::vector<int>{0};
  std::vector<std::string> known;
  for (int v = 0; v < source.num_versions(); ++v) {
    known.push_back(std::string(source.version_name(v)));
  }
  std::vector<int> served;
  for (const std::string& name : strategy.versions) {
    const auto it = std::find(known.begin(), known.end(), name);
    if (it == known.end()) {
      return InvalidArgument("strategy {}: {} has no version '{}'; it has: {}", strategy.spec,
                             source.name(), name, fmt::join(known, ", "));
    }
    served.push_back(static_cast<int>(it - known.begin()));
  }
  return served;
}

/// Gates, biases and shared experts of a model.
absl::StatusOr<int64_t> ConstantBytes(const MoeModelSpec& model) {
  int64_t bytes = 0;
  for (const MoeLayerSpec& l : model.layers) {
    const RoutingSpec& r = l.routing;
    if (!r.external()) {
      bytes += int64_t{4} * l.num_experts * (l.hidden + r.selection_bias + r.logit_bias);
      bytes += 4 * r.hash_vocab * r.top_k;
    }
    bytes += int64_t{4} * l.num_experts * static_cast<int>(r.expert_scales);
    if (l.shared_gate) bytes += 4 * l.hidden;
    if (l.shared_intermediate == 0) continue;
    MOERT_ASSIGN_OR_RETURN(const RecordLayout shared, SharedRecordLayout(l));
    bytes += shared.bytes;
  }
  return bytes;
}

/// The spare blocks: as many as transitions can fill during a decode step, as blocks come back at
/// its end, but at most one for 64 experts. If versions share a pool, promotions wait for the bytes
/// that demotions free, and half as many are enough.
int64_t SpareBlocks(const Blueprint& b, const MoeModelSpec& model, const MemoryPlan& plan) {
  const int64_t least = b.shared_pool() ? 2 : 4, experts_each = b.shared_pool() ? 128 : 64;
  if (b.strategy.transitions.spare > 0) return b.strategy.transitions.spare;
  double step_ns = 0;
  for (const MoeLayerSpec& layer : model.layers) {
    step_ns += static_cast<double>(b.profile.LayerNs(/*prefill=*/false, 1)) +
               layer.routing.top_k * b.profile.ExpertNs(plan.block_bytes, 1);
  }
  const auto transfer_ns = static_cast<double>(b.profile.TransferNs(plan.block_bytes));
  const auto carried = static_cast<int64_t>(step_ns / std::max(1.0, transfer_ns));
  return std::clamp(carried, least, std::max(least, plan.total_experts / experts_each));
}

int64_t PolicyBytes(const Blueprint& b, const PolicyScope& scope) {
  const Strategy& s = b.strategy;
  int64_t bytes = b.residency->StateBytes(scope);
  for (const Policy* policy : std::initializer_list<const Policy*>{
           s.routing.get(), s.prefetch.get(), s.precision.get(), s.placement.get()}) {
    if (policy != nullptr) bytes += policy->StateBytes(scope);
  }
  return bytes;
}

int64_t LargestBlock(const ExpertSource& source, int version) {
  return MeasureCacheBlocks(source, {&version, 1}, BlockKind::kAlike).largest;
}

/// Bytes of the engine's own objects, and of their data for each layer, expert and token.
/// tests/fault/budget_test.cc compares the sum with the heap.
int64_t TableBytes(const Blueprint& b, const PolicyScope& scope, const MemoryPlan& plan) {
  constexpr int64_t kEngine = 48 << 10, kLayer = 1 << 10;
  constexpr int64_t kToken = 64;    // data of a step and its calls per row
  constexpr int64_t kQueued = 192;  // a waiting transfer; all experts of a layer may wait
  constexpr int64_t kOwnBlock = 4 * sizeof(int64_t);  // offsets of blocks with sizes of their own
  constexpr int64_t kMoving = 192;                    // transitions and wishes, if versions move
  const bool moves =
      b.strategy.serving == Serving::kHotSet || b.strategy.serving == Serving::kLowPlusCache;
  return kEngine + scope.model->num_layers() * kLayer + scope.max_tokens * kToken +
         scope.model->max_experts() * kQueued +
         plan.total_experts * (VersionedStore::kBytesPerExpert +
                               (plan.own_bytes > 0 ? kOwnBlock : 0) + (moves ? kMoving : 0));
}

/// More than two versions must differ in size, and need a pool with blocks of several sizes.
absl::Status CheckOrder(const ExpertSource& source, const Blueprint& b) {
  if (!b.shared_pool()) return absl::OkStatus();
  if (!b.backend->block_classes()) {
    return InvalidArgument(
        "strategy {} serves {} versions: blocks of several sizes in one pool are for backend cpu; "
        "dynaexq serves two versions on any",
        b.strategy.spec, b.versions.size());
  }
  for (size_t v = 1; v < b.versions.size(); ++v) {
    const int64_t more = LargestBlock(source, b.versions[v - 1]);
    const int64_t fewer = LargestBlock(source, b.versions[v]);
    if (more > fewer) continue;
    return InvalidArgument(
        "strategy {}: its versions must be named most bits first: an expert takes {} in {} and {} "
        "in {}",
        b.strategy.spec, BytesText(more), b.strategy.versions[v - 1], BytesText(fewer),
        b.strategy.versions[v]);
  }
  return absl::OkStatus();
}

/// Measures everything that the budget has to hold. ApplyBudget computes the slots.
absl::StatusOr<MemoryPlan> MeasureParts(const ExpertSource& source, const EngineOptions& options,
                                        const Blueprint& b) {
  const MoeModelSpec& model = source.model();
  MemoryPlan plan;
  plan.total_experts = model.total_experts();
  MOERT_RETURN_IF_ERROR(CheckOrder(source, b));
  // All versions of a cache share the blocks.
  const CacheBlocks blocks = BlocksOf(source, b);
  plan.block_bytes = blocks.largest;
  plan.all_bytes = blocks.all_bytes;
  if (b.strategy.serving != Serving::kCache) {
    plan.low_block_bytes = LargestBlock(source, b.versions.back());
  }
  for (const int64_t bytes : OwnBlocks(source, b.strategy, b.versions)) plan.own_bytes += bytes;
  if (b.strategy.serving == Serving::kHotSet) plan.spare = SpareBlocks(b, model, plan);
  MOERT_ASSIGN_OR_RETURN(plan.constant_bytes, ConstantBytes(model));
  const PolicyScope scope{&model, options.max_tokens_per_forward};
  plan.table_bytes = TableBytes(b, scope, plan);
  plan.policy_bytes = PolicyBytes(b, scope);
  plan.device = !b.backend->in_ram();
  const ExecutorSize size{
      &source,      b.versions, options.max_tokens_per_forward, b.partial_output(), b.gemm.get(),
      &b.numbering, b.served()};
  MOERT_ASSIGN_OR_RETURN(plan.workspace_bytes, b.backend->WorkspaceBytes(size));
  plan.pinned_bytes = b.backend->PinnedBytes(size);
  return plan;
}

std::unique_ptr<Clock> MakeClock(ClockKind kind) {
  if (kind == ClockKind::kVirtual) return std::make_unique<VirtualClock>();
  return std::make_unique<WallClock>();
}

HardwareProfile EffectiveProfile(const EngineOptions& options) {
  HardwareProfile profile = options.profile;
  if (options.link_gbps > 0) {
    // A paced link carries one transfer at a time.
    profile.link_bytes_per_s = options.link_gbps * 1e9;
    profile.link_streams = 1;
    profile.stream_bytes_per_s = 0;
  }
  return profile;
}

absl::Status CheckPromise(const Strategy& strategy, std::optional<Promise> accepted) {
  if (!accepted.has_value() || strategy.promise() <= *accepted) return absl::OkStatus();
  const absl::string_view least = PromiseName(*accepted);
  return InvalidArgument(
      "strategy '{}' is {}, and the host accepts what is {}: accept more (EngineOptions::promise), "
      "or take 'fate' or 'auto', which keep to it",
      strategy.spec, PromiseName(strategy.promise()), least);
}

}  // namespace

ServedRules Blueprint::served() const {
  ServedRules rules;
  if (!strategy.misses_by_rule()) return rules;
  rules.ruled = strategy.routing != nullptr;
  const ResidencyRule kept = residency->rule().value_or(ResidencyRule{});
  rules.by_worth = kept.kind == ResidencyRuleKind::kWorth;
  rules.shares_slots = kept.shared_slots;
  rules.score_window = kept.kind == ResidencyRuleKind::kAverageScore ? kept.window : 0;
  rules.by_gate = strategy.prefetch != nullptr;
  if (strategy.placement == nullptr) return rules;
  const PlacementRule placed = strategy.placement->rule().value_or(PlacementRule{});
  rules.balance = placed.balance;
  if (versions.size() > 1) {
    rules.max_low_share = placed.max_low_share;
    rules.low_patience = placed.low_patience;
    rules.low_stands_by = strategy.serving == Serving::kCacheOverLow;
    rules.spares_low = placed.spares_low;
  }
  return rules;
}

bool Blueprint::cpu_offload() const {
  if (strategy.placement == nullptr) return false;
  const std::optional<PlacementRule> rule = strategy.placement->rule();
  return !rule.has_value() || rule->balance != CpuBalance::kNone;
}

bool Blueprint::partial_output() const { return WantsResidentForward(strategy.prefetch.get()); }

CacheBlocks BlocksOf(const ExpertSource& source, const Blueprint& b) {
  const absl::Span<const int> versions = b.versions;
  if (b.shared_pool()) {
    const int64_t largest = LargestBlock(source, versions[0]);
    return {BlocksOfVersions(source, versions), largest, largest * source.model().total_experts()};
  }
  if (b.strategy.serving != Serving::kCache) {
    return MeasureCacheBlocks(source, versions.first(1), BlockKind::kAlike);
  }
  const bool classes = b.backend->block_classes();
  return MeasureCacheBlocks(source, versions, classes ? BlockKind::kClasses : BlockKind::kDevice);
}

absl::StatusOr<Blueprint> MakeBlueprint(const ExpertSource& source, const EngineOptions& options,
                                        const PartOfModel& part) {
  MOERT_RETURN_IF_ERROR(options.Validate());
  const MoeModelSpec& model = source.model();
  MOERT_RETURN_IF_ERROR(model.Validate());
  MOERT_RETURN_IF_ERROR(CheckBlockBytes(source));
  if (IsAuto(options.strategy)) {
    MOERT_ASSIGN_OR_RETURN(const StrategyChoice choice, ChooseStrategy(source, options));
    EngineOptions chosen = options;
    chosen.strategy = choice.spec;
    chosen.budget = choice.budget;
    MOERT_ASSIGN_OR_RETURN(Blueprint b, MakeBlueprint(source, chosen, part));
    b.why = choice.why;
    return b;
  }
  Blueprint b;
  MOERT_ASSIGN_OR_RETURN(b.strategy, MakeStrategy(options.strategy, options.promise));
  if (options.customize_strategy != nullptr) {
    MOERT_RETURN_IF_ERROR(options.customize_strategy(&b.strategy));
  }
  MOERT_RETURN_IF_ERROR(b.strategy.Validate());
  MOERT_RETURN_IF_ERROR(CheckPromise(b.strategy, options.promise));
  if (b.strategy.routing) MOERT_RETURN_IF_ERROR(b.strategy.routing->Check(model));
  b.residency = CarryOut(b.strategy.residency.get());
  MOERT_ASSIGN_OR_RETURN(b.versions, ServedVersions(source, b.strategy));
  MOERT_ASSIGN_OR_RETURN(b.backend, MakeBackend(options));
  MOERT_RETURN_IF_ERROR(b.backend->Check(source, b.versions));
  b.pool = options.thread_pool;
  if (b.pool == nullptr) {
    MOERT_ASSIGN_OR_RETURN(b.pool, CreateThreadPool(b.backend->Threads(b.cpu_offload())));
  }
  MOERT_ASSIGN_OR_RETURN(b.gemm,
                         MixedGroupGemm::Create(b.pool.get(), options.kernels, options.activation));
  b.numbering = part.numbering;
  b.clock = MakeClock(options.clock);
  b.profile = EffectiveProfile(options);
  MOERT_ASSIGN_OR_RETURN(b.plan, MeasureParts(source, options, b));
  b.plan.constant_bytes += part.gate_bytes;
  MOERT_RETURN_IF_ERROR(ApplyBudget(options.budget, b.strategy, model, &b.plan));
  return b;
}

}  // namespace moert
