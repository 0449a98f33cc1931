#include <algorithm>
#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "moert/expert_store.h"
#include "quant/packing.h"
#include "record.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

/// Calls `use` with one leased expert, which stays where it is until it returns.
template <typename Use>
absl::Status UseExpert(const moert_lease& lease, int64_t index, Use&& use) {
  return lease.state->engine->UseLease(
      lease.id, [&](absl::Span<const moert::ExpertView> views) -> absl::Status {
        const int64_t count = static_cast<int64_t>(views.size());
        if (index < 0 || index >= count) {
          return Illegal("index is ", index, ", the lease has ", count, " experts");
        }
        return use(views[index]);
      });
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

moert_code moert_lease_acquire(moert_step* step, int32_t layer, const int32_t* experts,
                               int64_t count, moert_lease** lease, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(step);
    MOERT_REQUIRE_NOT_NULL(experts);
    MOERT_REQUIRE_NOT_NULL(lease);
    if (count < 1 || count > INT32_MAX) return Illegal("count is ", count, ", legal is 1 or more");
    auto handle = std::make_unique<moert_lease>();
    handle->state = step->state;
    const auto wanted = absl::MakeConstSpan(experts, count);
    std::vector<moert::ExpertView> views;
    MOERT_ASSIGN_OR_RETURN(handle->id,
                           step->state->engine->AcquireExperts(step->id, layer, wanted, &views));
    *lease = handle.release();
    return absl::OkStatus();
  });
}

moert_code moert_lease_view(const moert_lease* lease, int64_t index, moert_expert_view* view,
                            moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(lease);
    return UseExpert(*lease, index, [&](const moert::ExpertView& v) {
      moert_expert_view value{};
      value.record = v.record;
      value.bytes = v.layout->bytes;
      value.expert = v.expert;
      value.version = v.version;
      value.gate = ToC(v.layout->gate);
      value.up = ToC(v.layout->up);
      value.down = ToC(v.layout->down);
      return WriteStruct(value, view, "view");
    });
  });
}

moert_code moert_lease_read(const moert_lease* lease, int64_t index, moert_part part, float* dst,
                            uint64_t count, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(lease);
    MOERT_REQUIRE_NOT_NULL(dst);
    if (lease->state->engine->backend() != moert::BackendKind::kCpu) {
      return absl::UnimplementedError("moert_lease_read needs records in host memory");
    }
    return UseExpert(*lease, index, [&](const moert::ExpertView& v) -> absl::Status {
      const moert::MatrixLayout* matrix = part == MOERT_PART_GATE_PROJ   ? &v.layout->gate
                                          : part == MOERT_PART_UP_PROJ   ? &v.layout->up
                                          : part == MOERT_PART_DOWN_PROJ ? &v.layout->down
                                                                         : nullptr;
      if (matrix == nullptr) return Illegal("part is ", part, ", legal are the three projections");
      if (count != static_cast<uint64_t>(matrix->rows * matrix->k)) {
        return Illegal("count is ", count, ", the matrix is [", matrix->rows, ", ", matrix->k, "]");
      }
      std::vector<float> widened;
      MOERT_RETURN_IF_ERROR(moert::UnpackMatrix(*matrix, v.record, &widened));
      std::copy(widened.begin(), widened.end(), dst);
      return absl::OkStatus();
    });
  });
}

void moert_lease_release(moert_lease* lease) {
  if (lease == nullptr) return;
  Guard(__func__, nullptr, [&] {
    // Not held any more when its step has ended.
    return lease->state->engine->ReleaseExperts(lease->id);
  });
  delete lease;
}

}  // extern "C"
