// Step: an open step that its destructor ends.
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "moert/engine.h"
#include "moert/expert_store.h"

namespace moert {
namespace {

absl::Status Ended() { return absl::FailedPreconditionError("the step has ended"); }

}  // namespace

absl::StatusOr<Step> Engine::Begin(const StepInfo& info) {
  MOERT_ASSIGN_OR_RETURN(const StepId id, BeginStep(info));
  return Step(this, id);
}

Step& Step::operator=(Step&& other) noexcept {
  if (this == &other) return *this;
  if (engine_ != nullptr) End().IgnoreError();
  engine_ = std::exchange(other.engine_, nullptr);
  id_ = other.id_;
  return *this;
}

Step::~Step() {
  if (engine_ != nullptr) End().IgnoreError();
}

absl::Status Step::Forward(int layer, const MatrixView& hidden, const MutableMatrixView& out) {
  return engine_ == nullptr ? Ended() : engine_->Forward(id_, layer, hidden, out);
}

absl::Status Step::ForwardRouted(int layer, const MatrixView& hidden, const RoutedInput& routing,
                                 const MutableMatrixView& out) {
  return engine_ == nullptr ? Ended() : engine_->ForwardRouted(id_, layer, hidden, routing, out);
}

absl::StatusOr<LeaseId> Step::AcquireExperts(int layer, absl::Span<const int32_t> experts,
                                             std::vector<ExpertView>* views) {
  if (engine_ == nullptr) return Ended();
  return engine_->AcquireExperts(id_, layer, experts, views);
}

absl::Status Step::Fetch(int layer, const FetchInput& input, SlotView* view) {
  return engine_ == nullptr ? Ended() : engine_->Fetch(id_, layer, input, view);
}

absl::Status Step::TakeCpuRows(int layer, const MutableMatrixView& rows) {
  return engine_ == nullptr ? Ended() : engine_->TakeCpuRows(id_, layer, rows);
}

absl::Status Step::ReleaseFetched(int layer) {
  return engine_ == nullptr ? Ended() : engine_->ReleaseFetched(id_, layer);
}

absl::Status Step::MultiplyOnCpu(int layer, const OpaqueProduct& product) {
  return engine_ == nullptr ? Ended() : engine_->MultiplyOnCpu(id_, layer, product);
}

absl::Status Step::CopyLayer(int layer, absl::Span<const int32_t> experts, std::byte* to,
                             SlotView* view) {
  return engine_ == nullptr ? Ended() : engine_->CopyLayer(id_, layer, experts, to, view);
}

absl::Status Step::status() const {
  return engine_ == nullptr ? Ended() : engine_->StepStatus(id_);
}

absl::Status Step::Cancel() { return engine_ == nullptr ? Ended() : engine_->CancelStep(id_); }

absl::Status Step::End() {
  Engine* const engine = std::exchange(engine_, nullptr);
  return engine == nullptr ? Ended() : engine->EndStep(id_);
}

}  // namespace moert
