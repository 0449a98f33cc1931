#include <memory>

#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

moert_step_info DefaultStep() {
  moert_step_info info{};
  info.rows = 1;
  info.phase = MOERT_DECODE;
  return info;
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

void moert_step_info_init(moert_step_info* info, uint64_t size) {
  InitStruct(info, size, DefaultStep());
}

moert_code moert_step_begin(moert_engine* engine, const moert_step_info* info,
                            const int64_t* request_ids, const int32_t* positions,
                            moert_stream stream, moert_step** step, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    MOERT_REQUIRE_NOT_NULL(step);
    moert_step_info checked = DefaultStep();
    MOERT_RETURN_IF_ERROR(ReadStruct(info, "info", &checked));
    if (checked.phase != MOERT_PREFILL && checked.phase != MOERT_DECODE) {
      return absl::InvalidArgumentError(absl::StrCat("info.phase is ", checked.phase,
                                                     ", legal is MOERT_PREFILL or MOERT_DECODE"));
    }
    if (checked.reserved0 != 0) return absl::InvalidArgumentError("info.reserved0: must be 0");
    if (checked.rows < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("info.rows is ", checked.rows, ", legal is 1 or more"));
    }
    if (stream != nullptr && engine->state->engine->backend() == moert::BackendKind::kCpu) {
      return absl::InvalidArgumentError("stream: the CPU backend has no streams, it must be NULL");
    }
    moert::StepInfo cpp;
    cpp.stream = stream;
    cpp.phase = static_cast<moert::Phase>(checked.phase);
    cpp.rows = checked.rows;
    const size_t rows = static_cast<size_t>(checked.rows);
    if (request_ids != nullptr) cpp.request_ids = absl::MakeConstSpan(request_ids, rows);
    if (checked.predict_next != nullptr) {
      cpp.predict_next = [predict = checked.predict_next,
                          user = checked.user_data](const moert::PartialOutput& partial) {
        return predict(user, partial.layer, static_cast<const float*>(partial.output.data),
                       partial.output.rows,
                       static_cast<float*>(partial.next_input.data)) == MOERT_OK;
      };
    }
    if (positions != nullptr) cpp.positions = absl::MakeConstSpan(positions, rows);
    auto handle = std::make_unique<moert_step>();
    handle->state = engine->state;
    handle->stream = stream;
    handle->unfinished = std::make_shared<std::atomic<int64_t>>(0);
    MOERT_ASSIGN_OR_RETURN(handle->id, engine->state->engine->BeginStep(cpp));
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
                     " split calls of the step are not finished: call "
                     "moert_layer_finish on each before moert_step_end (the step has ended)"));
  });
}

}  // extern "C"
