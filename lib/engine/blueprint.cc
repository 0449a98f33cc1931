#include "engine/blueprint.h"

#include <algorithm>
#include <string>

#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "engine/layer.h"
#include "engine/memory_plan.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

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
      return absl::InvalidArgumentError(
          fmt::format("strategy {}: {} has no version '{}'; it has: {}", strategy.spec,
                      source.name(), name, fmt::join(known, ", ")));
    }
    served.push_back(static_cast<int>(it - known.begin()));
  }
  return served;
}

/// Gates, biases and shared experts of a model.
absl::StatusOr<int64_t> ConstantBytes(const MoeModelSpec& model) {
  int64_t bytes = 0;
  for (const MoeLayerSpec& l : model.layers) {
    bytes += 4 * l.num_experts * (l.hidden + (l.routing.selection_bias ? 1 : 0));
    if (l.shared_gate) bytes += 4 * l.hidden;
    if (l.shared_intermediate == 0) continue;
    MOERT_ASSIGN_OR_RETURN(
        const RecordLayout shared,
        MakeRecordLayout(l.hidden, l.shared_intermediate, ExpertFormat::Uniform(Scheme{})));
    bytes += shared.bytes;
  }
  return bytes;
}

/// Threads that compute beside a device, where the host did not say: the thread that drives the
/// device and those that bring records keep a CPU each, if that leaves half of them. (Half of them
/// would not do for experts: 8 threads of 16 virtual CPUs read 91 GB/s of them, 13 read 118 to
/// 135.)
int ThreadsBeside(const EngineOptions& options) {
  const int cpus = UsableCpus();
  return std::max({1, cpus / 2, cpus - 1 - options.io_threads});
}

bool WantsForward(const Strategy& strategy) {
  return strategy.prefetch != nullptr && strategy.prefetch->traits().resident_forward;
}

}  // namespace

absl::StatusOr<Blueprint> MakeBlueprint(const ExpertSource& source, const EngineOptions& options) {
  MOERT_RETURN_IF_ERROR(options.Validate());
  const MoeModelSpec& model = source.model();
  MOERT_RETURN_IF_ERROR(model.Validate());
  Blueprint b;
  MOERT_ASSIGN_OR_RETURN(b.strategy, MakeStrategy(options.strategy));
  if (options.customize_strategy != nullptr) {
    MOERT_RETURN_IF_ERROR(options.customize_strategy(&b.strategy));
  }
  MOERT_RETURN_IF_ERROR(b.strategy.Validate());
  if (b.strategy.routing) MOERT_RETURN_IF_ERROR(b.strategy.routing->Check(model));
  MOERT_ASSIGN_OR_RETURN(b.versions, ServedVersions(source, b.strategy));
  MOERT_ASSIGN_OR_RETURN(b.backend, MakeBackend(options));
  if (b.backend != nullptr) MOERT_RETURN_IF_ERROR(b.backend->Check(source, b.versions));
  b.pool = options.thread_pool;
  if (b.pool == nullptr) {
    ThreadPoolOptions threads;
    threads.threads = options.threads;
    threads.cpus = options.cpus;
    if (b.backend != nullptr && options.threads == 0) threads.threads = ThreadsBeside(options);
    if (b.backend != nullptr && b.strategy.placement != nullptr) {
      threads.spin_microseconds = static_cast<int>(kSpinWithDevice.count());
    }
    MOERT_ASSIGN_OR_RETURN(b.pool, CreateThreadPool(threads));
  }
  MOERT_ASSIGN_OR_RETURN(b.gemm,
                         MixedGroupGemm::Create(b.pool.get(), options.kernels, options.activation));

  MemoryPlan& plan = b.plan;
  const int64_t tokens = options.max_tokens_per_forward;
  int64_t gemm_bytes = 0;
  int64_t hidden = 0;
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[l];
    hidden = std::max(hidden, layer.hidden);
    // One call serves routed experts of every version, and shared ones, which stay bf16.
    std::vector<ExpertFormat> formats = {ExpertFormat::Uniform(Scheme{})};
    for (int e = 0; e < layer.num_experts; ++e) {
      for (const int version : b.versions) {
        const ExpertFormat format = source.layout(l, e, version).format;
        if (std::find(formats.begin(), formats.end(), format) == formats.end()) {
          formats.push_back(format);
        }
      }
    }
    gemm_bytes = std::max(
        gemm_bytes,
        b.gemm->WorkspaceBytes(tokens, tokens * (layer.routing.top_k + 1), layer.hidden,
                               std::max(layer.intermediate, layer.shared_intermediate), formats));
    for (int e = 0; e < layer.num_experts; ++e) {
      plan.block_bytes = std::max(plan.block_bytes, source.layout(l, e, b.versions[0]).bytes);
      if (b.strategy.serving == Serving::kCache) {
        // All versions share the blocks.
        for (const int version : b.versions) {
          plan.block_bytes = std::max(plan.block_bytes, source.layout(l, e, version).bytes);
        }
        continue;
      }
      plan.low_block_bytes =
          std::max(plan.low_block_bytes, source.layout(l, e, b.versions[1]).bytes);
    }
    plan.total_experts += layer.num_experts;
  }
  plan.block_bytes = RoundUp(plan.block_bytes, kRecordAlignment);
  plan.low_block_bytes = RoundUp(plan.low_block_bytes, kRecordAlignment);
  for (const int64_t bytes : OwnBlocks(source, b.strategy, b.versions)) plan.own_bytes += bytes;
  if (b.strategy.serving == Serving::kHotSet) plan.spare = b.strategy.transitions.spare;
  MOERT_ASSIGN_OR_RETURN(plan.constant_bytes, ConstantBytes(model));
  plan.table_bytes = plan.total_experts * ExpertStore::kBytesPerExpert;
  plan.workspace_bytes = gemm_bytes +
                         LayerRunner::WorkspaceBytes(model, tokens, WantsForward(b.strategy)) +
                         2 * tokens * hidden * 4 + options.io_threads * source.scratch_bytes();
  if (b.backend != nullptr) {
    MOERT_ASSIGN_OR_RETURN(plan.workspace_bytes,
                           b.backend->WorkspaceBytes(source, b.versions, tokens));
  }
  MOERT_RETURN_IF_ERROR(ApplyBudget(options.budget, b.strategy, model, &plan));
  return b;
}

}  // namespace moert
