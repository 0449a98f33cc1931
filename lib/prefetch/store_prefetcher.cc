#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "model/check_layer.h"
#include "moert/prefetcher.h"
#include "prefetch/layer_prefetcher.h"
#include "store/store_impl.h"
#include "transfer/link_pacer.h"

namespace moert {

struct Prefetcher::Impl {
  Impl(PrefetchPolicy* policy, std::shared_ptr<ExpertStore::Impl> s, PrefetcherOptions o)
      : store(std::move(s)),
        options(std::move(o)),
        link(&options.profile),
        ahead(PartsOf(policy)) {}

  PrefetcherParts PartsOf(PrefetchPolicy* policy) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    PrefetcherParts parts;
    parts.model = &store->model();
    parts.policy = policy;
    parts.profile = &options.profile;
    parts.link = &link;
    parts.store = store->store.get();
    parts.controlled = options.controlled;
    return parts;
  }
  absl::Status Check(int layer, const RoutingResult& routing) const;
  void Attach() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store->mu);
  void Detach() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store->mu);

  const std::shared_ptr<ExpertStore::Impl> store;
  const PrefetcherOptions options;
  LinkEstimate link ABSL_GUARDED_BY(store->mu);
  LayerPrefetcher ahead ABSL_GUARDED_BY(store->mu);
  PolicyContext context ABSL_GUARDED_BY(store->mu);  // of the last Observe
  int64_t tokens ABSL_GUARDED_BY(store->mu) = 0;     // likewise
};

absl::Status Prefetcher::Impl::Check(int layer, const RoutingResult& routing) const {
  MOERT_RETURN_IF_ERROR(CheckLayer(store->model(), layer));
  const int experts = store->model().layers[layer].num_experts;
  if (routing.num_experts == experts && static_cast<int>(routing.counts.size()) == experts) {
    return absl::OkStatus();
  }
  return InvalidArgument("routing of layer {}: {} experts, {} counts; takes {} of each", layer,
                         routing.num_experts, routing.counts.size(), experts);
}

void Prefetcher::Impl::Attach() {
  store->on_wait = [this](int64_t begin_ns, int64_t now_ns) {
    store->mu.AssertHeld();
    ahead.WaitedForLoads(begin_ns, now_ns);
  };
  store->store->Attach({&link, ahead.outlook()});
}

void Prefetcher::Impl::Detach() {
  store->on_wait = nullptr;
  store->store->Attach({});
}

absl::StatusOr<std::unique_ptr<Prefetcher>> Prefetcher::Create(PrefetchPolicy* policy,
                                                               ExpertStore* store,
                                                               PrefetcherOptions options) try {
  if (policy == nullptr) return absl::InvalidArgumentError("policy: must not be null");
  if (store == nullptr) return absl::InvalidArgumentError("store: must not be null");
  if (policy->rule().has_value()) MOERT_RETURN_IF_ERROR(policy->rule()->Validate());
  auto impl = std::make_unique<Impl>(policy, store->impl_, std::move(options));
  const MutexLock lock(&impl->store->mu);
  if (impl->store->on_wait != nullptr) {
    return absl::FailedPreconditionError("store: another prefetcher drives it");
  }
  absl::Cleanup detach = [&impl]() ABSL_NO_THREAD_SAFETY_ANALYSIS { impl->Detach(); };
  impl->Attach();
  std::unique_ptr<Prefetcher> prefetcher(new Prefetcher(std::move(impl)));
  std::move(detach).Cancel();
  return prefetcher;
} catch (...) {
  return ExceptionStatus("creating a prefetcher");
}

Prefetcher::Prefetcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Prefetcher::~Prefetcher() {
  const MutexLock lock(&impl_->store->mu);
  impl_->Detach();
}

bool Prefetcher::wants_next_gate(Phase phase) const {
  const MutexLock lock(&impl_->store->mu);
  return impl_->ahead.wants_next_gate(phase);
}

absl::Status Prefetcher::Observe(int layer, Phase phase, const RoutingResult& routing) try {
  if (absl::Status status = impl_->Check(layer, routing); !status.ok()) return status;
  const MutexLock lock(&impl_->store->mu);
  impl_->store->store->Pump();
  impl_->context = impl_->store->BeginCall(layer, phase);
  impl_->tokens = routing.tokens;
  impl_->ahead.Resolve(impl_->context, routing);
  impl_->store->residency->Observe(LayerEvent::Routed(impl_->context, routing.view()));
  return absl::OkStatus();
} catch (...) {
  return ExceptionStatus("observing a routing");
}

absl::Status Prefetcher::Predict(int layer, Phase phase, const RoutingResult& routing) try {
  if (absl::Status status = impl_->Check(layer, routing); !status.ok()) return status;
  const MutexLock lock(&impl_->store->mu);
  if (impl_->context.layer != layer || impl_->context.phase != phase || impl_->tokens == 0) {
    return FailedPrecondition("layer {}: Observe its routing first, in the same phase", layer);
  }
  impl_->ahead.Predict(impl_->context, routing, impl_->store->clock.now_ns());
  return absl::OkStatus();
} catch (...) {
  return ExceptionStatus("predicting");
}

void Prefetcher::EndStep() {
  const MutexLock lock(&impl_->store->mu);
  impl_->ahead.EndCall(impl_->context, impl_->tokens, impl_->store->clock.now_ns());
  impl_->store->EndStep();
}

PrefetchStats Prefetcher::stats() const {
  const MutexLock lock(&impl_->store->mu);
  return impl_->ahead.stats();
}

}  // namespace moert
