#include "store/store_impl.h"

#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "model/check_layer.h"
#include "store/block_pool.h"
#include "store/cache_blocks.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

constexpr int kMaxIoThreads = 16;

absl::Status Check(const ExpertSource* source, const ExpertStoreOptions& options) {
  if (source == nullptr) return absl::InvalidArgumentError("source: must not be null");
  if (options.version < 0 || options.version >= source->num_versions()) {
    return InvalidArgument("version {}: {} has versions 0 to {}", options.version, source->name(),
                           source->num_versions() - 1);
  }
  if (options.io_threads < 1 || options.io_threads > kMaxIoThreads) {
    return InvalidArgument("io_threads {}: must be in [1, {}]", options.io_threads, kMaxIoThreads);
  }
  const std::optional<ResidencyRule> rule =
      options.residency == nullptr ? std::nullopt : options.residency->rule();
  return rule.has_value() ? rule->Validate() : absl::OkStatus();
}

}  // namespace

// --------------------------------------------------------------------------------------------------
// The implementation.

absl::StatusOr<std::shared_ptr<ExpertStore::Impl>> ExpertStore::Impl::Create(
    std::shared_ptr<const ExpertSource> source, ExpertStoreOptions options) {
  auto impl = std::make_shared<Impl>();
  const int64_t total = source->model().total_experts();
  MOERT_RETURN_IF_ERROR(CheckBlockBytes(*source));
  const CacheBlocks blocks = MeasureCacheBlocks(*source, {options.version}, BlockKind::kClasses);
  impl->block_bytes = blocks.largest;
  if (options.budget_bytes < impl->block_bytes) {
    return InvalidArgument("budget_bytes {}: one expert of {} takes {}, all {} of them {}",
                           options.budget_bytes, source->name(), impl->block_bytes, total,
                           blocks.all_bytes);
  }
  impl->slots = SlotsOf(options.budget_bytes, blocks.all_bytes, total);
  impl->budget.SetLimit(options.budget_bytes);
  impl->allocator = std::move(options.allocator);
  impl->policy = std::move(options.residency);
  impl->residency = CarryOut(impl->policy.get());
  std::vector<std::unique_ptr<BlockPool>> pools(1);
  MOERT_ASSIGN_OR_RETURN(
      pools[0],
      impl->allocator != nullptr
          ? MakeHostBlockPool(impl->allocator.get(), blocks.sizes, impl->slots, &impl->budget)
          : MakeRamBlockPool(blocks.sizes, impl->slots, &impl->budget));
  pools[0]->SetByteLimit(options.budget_bytes);
  impl->source = std::move(source);
  MOERT_ASSIGN_OR_RETURN(
      std::unique_ptr<TransferQueue> readers,
      MakeReaderQueue(impl->source.get(), &impl->clock, options.io_threads, nullptr));
  impl->store = std::make_unique<VersionedStore>(
      impl->source.get(), std::vector<ServedVersion>{{options.version, 0}}, std::move(pools),
      std::move(readers), impl->residency.get());
  return impl;
}

absl::Status ExpertStore::Impl::CheckKey(ExpertKey key) const {
  MOERT_RETURN_IF_ERROR(CheckLayer(model(), key.layer));
  const int experts = model().layers[key.layer].num_experts;
  if (key.expert >= 0 && key.expert < experts) return absl::OkStatus();
  return InvalidArgument("layer {} expert {}: must be in [0, {})", key.layer, key.expert, experts);
}

PolicyContext ExpertStore::Impl::BeginCall(int layer, Phase phase) {
  if (layer < last_layer) EndStep();
  PolicyContext context;
  context.model = &model();
  context.step = step;
  context.phase = phase;
  context.now_ns = clock.now_ns();
  context.layer = layer;
  if (last_layer < 0) store->RefreshCapacity(context);
  last_layer = layer;
  return context;
}

void ExpertStore::Impl::EndStep() {
  ++step;
  last_layer = -1;
}

absl::Status ExpertStore::Impl::Acquire(int layer, absl::Span<const int32_t> experts, Pins* pins) {
  const PolicyContext context = BeginCall(layer, Phase::kDecode);
  if (on_wait == nullptr) {
    std::vector<int32_t> counts(model().layers[layer].num_experts, 0);
    for (const int32_t e : experts) counts[e] = 1;
    RoutingView routing;  // has only the counts
    routing.tokens = 1;
    routing.counts = counts;
    residency->Observe(LayerEvent::Routed(context, routing));
  }
  const auto wait = [&, this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const int64_t begin_ns = clock.now_ns();
    const bool arrived = store->Wait();
    if (on_wait != nullptr) on_wait(begin_ns, clock.now_ns());
    return arrived;
  };
  return moert::Acquire(store.get(), /*epoch=*/0, context, experts, wait, pins);
}

void ExpertStore::Impl::Release(absl::Span<const ExpertKey> pinned) {
  const MutexLock lock(&mu);
  for (const ExpertKey key : pinned) store->Unpin(key);
  PolicyContext context;
  context.model = &model();
  context.step = step;
  context.now_ns = clock.now_ns();
  for (size_t i = 0; i < pinned.size(); ++i) {
    if (i > 0 && pinned[i].layer == pinned[i - 1].layer) continue;
    context.layer = pinned[i].layer;
    try {
      store->EndLayerCall(context);
    } catch (...) {  // thrown by a policy: the layer gives its surplus back after a later call
    }
  }
}

// --------------------------------------------------------------------------------------------------
// The store.

absl::StatusOr<std::unique_ptr<ExpertStore>> ExpertStore::Create(
    std::shared_ptr<const ExpertSource> source, ExpertStoreOptions options) try {
  MOERT_RETURN_IF_ERROR(Check(source.get(), options));
  MOERT_ASSIGN_OR_RETURN(std::shared_ptr<Impl> impl,
                         Impl::Create(std::move(source), std::move(options)));
  return std::unique_ptr<ExpertStore>(new ExpertStore(std::move(impl)));
} catch (...) {
  return ExceptionStatus("creating an expert store");
}

ExpertStore::ExpertStore(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExpertStore::~ExpertStore() = default;

absl::StatusOr<ExpertStore::Lease> ExpertStore::Fetch(absl::Span<const ExpertKey> keys) try {
  for (const ExpertKey key : keys) MOERT_RETURN_IF_ERROR(impl_->CheckKey(key));
  const MutexLock lock(&impl_->mu);
  Pins pins(impl_->store.get());
  std::vector<int32_t> experts;
  for (size_t i = 0; i < keys.size(); ++i) {
    experts.push_back(keys[i].expert);
    if (i + 1 < keys.size() && keys[i + 1].layer == keys[i].layer) continue;
    MOERT_RETURN_IF_ERROR(impl_->Acquire(keys[i].layer, experts, &pins));
    experts.clear();
  }
  Lease lease;
  for (const ExpertKey key : keys) {
    const ExpertHandle handle = impl_->store->Latest(key);
    lease.views_.push_back({key.expert, handle.record, handle.layout, handle.version});
  }
  lease.keys_ = pins.Take();
  lease.store_ = impl_;
  return lease;
} catch (...) {
  return ExceptionStatus("fetching experts");
}

absl::StatusOr<int64_t> ExpertStore::Prefetch(absl::Span<const ExpertKey> keys) try {
  for (const ExpertKey key : keys) MOERT_RETURN_IF_ERROR(impl_->CheckKey(key));
  const MutexLock lock(&impl_->mu);
  VersionedStore& store = *impl_->store;
  store.Pump();
  PolicyContext context;
  context.model = &impl_->model();
  context.step = impl_->step;
  context.phase = Phase::kDecode;
  context.now_ns = impl_->clock.now_ns();
  int64_t begun = 0;
  for (const ExpertKey key : keys) {
    if (store.Latest(key).record != nullptr || store.Arriving(key)) continue;
    context.layer = key.layer;
    begun += store.StartLoad(key, 0, LoadReason::kPrefetch, context);
  }
  return begun;
} catch (...) {
  return ExceptionStatus("prefetching experts");
}

absl::StatusOr<std::vector<Residency>> ExpertStore::residency(int layer) const try {
  MOERT_RETURN_IF_ERROR(impl_->CheckKey({layer, 0}));
  const MutexLock lock(&impl_->mu);
  impl_->store->Pump();
  return impl_->store->States(layer);
} catch (...) {
  return ExceptionStatus("residency");
}

int64_t ExpertStore::block_bytes() const { return impl_->block_bytes; }
int64_t ExpertStore::slots() const { return impl_->slots; }
const MoeModelSpec& ExpertStore::model() const { return impl_->model(); }

StoreStats ExpertStore::stats() const {
  const MutexLock lock(&impl_->mu);
  return impl_->store->stats();
}

// --------------------------------------------------------------------------------------------------
// Leases.

ExpertStore::Lease& ExpertStore::Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  store_ = std::move(other.store_);
  keys_ = std::exchange(other.keys_, {});
  views_ = std::exchange(other.views_, {});
  return *this;
}

void ExpertStore::Lease::Release() {
  if (store_ == nullptr) return;
  store_->Release(keys_);
  store_ = nullptr;
  keys_.clear();
  views_.clear();
}

}  // namespace moert
