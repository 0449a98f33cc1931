#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

moert_step_options DefaultStep() {
  moert_step_options options{};
  options.rows = 1;
  options.phase = MOERT_DECODE;
  return options;
}

/// A tensor of fp32 in host memory.
moert_tensor ToC(const void* data, int64_t rows, int64_t cols, int64_t row_stride) {
  return {const_cast<void*>(data), rows, cols, row_stride, MOERT_F32, MOERT_HOST};
}

PredictNext AdaptPredictNext(moert_predict_next predict, void* user) {
  return [predict, user](const PartialOutput& partial) {
    const moert_tensor output = ToC(partial.output.data, partial.output.rows, partial.output.cols,
                                    partial.output.row_stride);
    const moert_tensor next = ToC(partial.next_input.data, partial.next_input.rows,
                                  partial.next_input.cols, partial.next_input.row_stride);
    return predict(user, partial.layer, &output, &next) == MOERT_OK;
  };
}

absl::StatusOr<StepInfo> ReadStep(const moert_step_options* options, const Engine& engine) {
  moert_step_options checked = DefaultStep();
  if (options != nullptr) MOERT_RETURN_IF_ERROR(ReadStruct(options, "options", &checked));
  if (checked.phase != MOERT_PREFILL && checked.phase != MOERT_DECODE) {
    return Illegal("options.phase is ", checked.phase, ", legal is MOERT_PREFILL or MOERT_DECODE");
  }
  if (checked.rows < 1) return Illegal("options.rows is ", checked.rows, ", legal is 1 or more");
  if (checked.stream != nullptr && engine.backend() == BackendKind::kCpu) {
    return absl::InvalidArgumentError(
        "options.stream: the CPU backend has no streams, it must be NULL");
  }
  StepInfo info;
  info.stream = checked.stream;
  info.phase = static_cast<Phase>(checked.phase);
  info.rows = checked.rows;
  if (checked.request_ids != nullptr) {
    info.request_ids = absl::MakeConstSpan(checked.request_ids, checked.rows);
  }
  if (checked.token_ids != nullptr) {
    info.token_ids = absl::MakeConstSpan(checked.token_ids, checked.rows);
  }
  if (checked.predict_next != nullptr) {
    info.predict_next = AdaptPredictNext(checked.predict_next, checked.user_data);
  }
  return info;
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

void moert_step_options_init(moert_step_options* options, uint64_t size) {
  InitStruct(options, size, DefaultStep());
}

moert_code moert_step_begin(moert_engine* engine, const moert_step_options* options,
                            moert_step** step, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    MOERT_REQUIRE_NOT_NULL(step);
    MOERT_ASSIGN_OR_RETURN(const moert::StepInfo info, ReadStep(options, *engine->state->engine));
    auto handle = std::make_unique<moert_step>();
    handle->state = engine->state;
    handle->rows = info.rows;
    handle->unfinished = std::make_shared<std::atomic<int64_t>>(0);
    MOERT_ASSIGN_OR_RETURN(handle->id, engine->state->engine->BeginStep(info));
    *step = handle.release();
    return absl::OkStatus();
  });
}

moert_code moert_step_status(const moert_step* step, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(step);
    return step->state->engine->StepStatus(step->id);
  });
}

moert_code moert_step_cancel(moert_step* step, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(step);
    return step->state->engine->CancelStep(step->id);
  });
}

moert_code moert_step_end(moert_step* step, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    if (step == nullptr) return absl::OkStatus();
    const std::unique_ptr<moert_step> owned(step);
    const absl::Status ended = owned->state->engine->EndStep(owned->id);
    const int64_t unfinished = *owned->unfinished;
    if (!ended.ok() || unfinished == 0) return ended;
    return absl::FailedPreconditionError(
        absl::StrCat(unfinished,
                     " split calls of the step are not finished: call moert_layer_finish on each "
                     "before moert_step_end (the step has ended)"));
  });
}

}  // extern "C"
