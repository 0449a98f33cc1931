
#include "base/errors.h"
#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "layer_call.h"
#include "moert/source/opaque_source.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

static_assert(MOERT_MAX_PARTS == kMaxRecordParts);

/// A tensor without data is a view without rows.
absl::StatusOr<MatrixView> RowsOf(const char* name, const moert_tensor& rows,
                                  const moert_step& step) {
  if (rows.data == nullptr) return MatrixView{};
  MOERT_RETURN_IF_ERROR(CheckPlace(name, rows, step.state->engine->backend()));
  return MatrixView{rows.data, static_cast<DType>(rows.dtype), rows.rows, rows.cols,
                    rows.row_stride};
}

absl::StatusOr<FetchInput> ReadFetch(const moert_fetch& c, const moert_step& step, int32_t layer) {
  const MoeModelSpec& model = step.state->engine->model();
  const int64_t next = model.layers[(layer + 1) % model.num_layers()].num_experts;
  const int64_t k = c.ids.cols;
  constexpr int64_t kMaxK = 65536;
  MOERT_RETURN_IF_ERROR(CheckRange("fetch.ids.cols", k, 1, kMaxK));
  FetchInput input;
  const moert_place place = c.ids.place == MOERT_DEVICE ? MOERT_DEVICE : MOERT_HOST;
  if (place == MOERT_DEVICE) {
    MOERT_RETURN_IF_ERROR(CheckPlace("fetch.ids", c.ids, step.state->engine->backend()));
    input.place = Place::kDevice;
  }
  MOERT_ASSIGN_OR_RETURN(input.ids, TensorSpan<const int32_t>("fetch.ids", c.ids, MOERT_I32,
                                                              step.rows, k, false, place));
  MOERT_ASSIGN_OR_RETURN(
      input.weights,
      TensorSpan<const float>("fetch.weights", c.weights, MOERT_F32, step.rows, k, true, place));
  MOERT_ASSIGN_OR_RETURN(input.next_scores,
                         TensorSpan<const float>("fetch.next_scores", c.next_scores, MOERT_F32,
                                                 step.rows, next, true));
  MOERT_ASSIGN_OR_RETURN(input.slot_ids, TensorSpan<int32_t>("fetch.slot_ids", c.slot_ids,
                                                             MOERT_I32, step.rows, k, true, place));
  MOERT_ASSIGN_OR_RETURN(input.hidden, RowsOf("fetch.hidden", c.hidden, step));
  MOERT_ASSIGN_OR_RETURN(input.cpu_rows, RowsOf("fetch.cpu_rows", c.cpu_rows, step));
  MOERT_RETURN_IF_ERROR(CheckFlag("fetch.any_slot", c.any_slot));
  input.any_slot = c.any_slot == 1;
  return input;
}

moert_slots ToC(const SlotView& view) {
  moert_slots slots{};
  for (size_t p = 0; p < view.parts.size(); ++p) {
    slots.base[p] = view.parts[p].base;
    slots.stride[p] = view.parts[p].stride;
    slots.bytes[p] = view.parts[p].bytes;
  }
  slots.slot_of_expert = view.slot_of_expert.data();
  slots.slots = view.slots;
  slots.parts = static_cast<int64_t>(view.parts.size());
  slots.device_slot_of_expert = view.device_slot_of_expert;
  return slots;
}

absl::StatusOr<std::vector<OpaqueProduct::Expert>> ReadExperts(const int32_t* experts,
                                                               const int64_t* pairs,
                                                               int64_t num_experts) {
  constexpr int64_t kMost = 1 << 20;
  MOERT_RETURN_IF_ERROR(CheckRange("num_experts", num_experts, 0, kMost));
  std::vector<OpaqueProduct::Expert> read(static_cast<size_t>(num_experts));
  for (size_t i = 0; i < read.size(); ++i) {
    read[i].expert = experts[i];
    read[i].pairs = pairs[i];
    MOERT_RETURN_IF_ERROR(CheckRange("pairs", pairs[i], 1, INT32_MAX));
  }
  return read;
}

absl::Status CheckLayer(const moert_step& step, int32_t layer) {
  return CheckRange("layer", layer, 0, step.state->engine->model().num_layers() - 1);
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

moert_code moert_layer_fetch(moert_step* step, int32_t layer, const moert_fetch* fetch,
                             moert_slots* slots, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(step);
    MOERT_REQUIRE_NOT_NULL(slots);
    MOERT_RETURN_IF_ERROR(CheckSize(*slots, "slots"));
    moert_fetch checked{};
    MOERT_RETURN_IF_ERROR(ReadStruct(fetch, "fetch", &checked));
    MOERT_RETURN_IF_ERROR(CheckLayer(*step, layer));
    MOERT_ASSIGN_OR_RETURN(const moert::FetchInput input, ReadFetch(checked, *step, layer));
    moert::SlotView view;
    MOERT_RETURN_IF_ERROR(step->state->engine->Fetch(step->id, layer, input, &view));
    return WriteStruct(ToC(view), slots, "slots");
  });
}

moert_code moert_cpu_rows_take(moert_step* step, int32_t layer, const moert_tensor* rows,
                               moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(step);
    MOERT_REQUIRE_NOT_NULL(rows);
    MOERT_RETURN_IF_ERROR(CheckLayer(*step, layer));
    MOERT_ASSIGN_OR_RETURN(const moert::MatrixView view, RowsOf("rows", *rows, *step));
    return step->state->engine->TakeCpuRows(
        step->id, layer,
        {const_cast<void*>(view.data), view.dtype, view.rows, view.cols, view.row_stride});
  });
}

moert_code moert_slots_release(moert_step* step, int32_t layer, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(step);
    return step->state->engine->ReleaseFetched(step->id, layer);
  });
}

moert_code moert_layer_copy(moert_step* step, int32_t layer, const int32_t* experts,
                            int64_t num_experts, void* to, moert_slots* slots,
                            moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(step);
    MOERT_REQUIRE_NOT_NULL(slots);
    MOERT_RETURN_IF_ERROR(CheckSize(*slots, "slots"));
    MOERT_RETURN_IF_ERROR(CheckLayer(*step, layer));
    if (experts != nullptr && num_experts == 0) return absl::OkStatus();
    if (num_experts < 0 || (experts == nullptr && num_experts > 0)) {
      return moert::InvalidArgument("num_experts is {}, legal is 0 or more, and 0 without experts",
                                    num_experts);
    }
    const absl::Span<const int32_t> named(experts, static_cast<size_t>(num_experts));
    moert::SlotView view;
    MOERT_RETURN_IF_ERROR(
        step->state->engine->CopyLayer(step->id, layer, named, static_cast<std::byte*>(to), &view));
    return WriteStruct(ToC(view), slots, "slots");
  });
}

moert_code moert_cpu_multiply(moert_step* step, int32_t layer, const int32_t* experts,
                              const int64_t* pairs, int64_t num_experts, const moert_tensor* x,
                              const int32_t* row_of, const moert_tensor* rows,
                              moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(step);
    MOERT_REQUIRE_NOT_NULL(experts);
    MOERT_REQUIRE_NOT_NULL(pairs);
    MOERT_REQUIRE_NOT_NULL(x);
    MOERT_REQUIRE_NOT_NULL(row_of);
    MOERT_REQUIRE_NOT_NULL(rows);
    MOERT_RETURN_IF_ERROR(CheckLayer(*step, layer));
    MOERT_ASSIGN_OR_RETURN(const auto read, ReadExperts(experts, pairs, num_experts));
    int64_t all = 0;
    for (const moert::OpaqueProduct::Expert& expert : read) all += expert.pairs;
    moert::OpaqueProduct product;
    product.hidden = step->state->engine->model().layers[layer].hidden;
    MOERT_ASSIGN_OR_RETURN(
        const absl::Span<const float> from,
        TensorSpan<const float>("x", *x, MOERT_F32, x->rows, product.hidden, false));
    MOERT_ASSIGN_OR_RETURN(const absl::Span<float> to,
                           TensorSpan<float>("rows", *rows, MOERT_F32, all, product.hidden, false));
    product.rows = x->rows;
    product.x = from.data();
    product.experts = read;
    product.row_of = {row_of, static_cast<size_t>(all)};
    product.out = to.data();
    return step->state->engine->MultiplyOnCpu(step->id, layer, product);
  });
}

}  // extern "C"
