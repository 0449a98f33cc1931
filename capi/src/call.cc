// Split layer calls: begin, do something else, finish.
#include <fcntl.h>
#include <sys/eventfd.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "layer_call.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

moert_completion DefaultCompletion() {
  moert_completion completion{};
  completion.eventfd = -1;
  return completion;
}

void Notify(const moert_completion& completion, const absl::Status& status) {
  // A counter that cannot take one more is full of news already.
  if (completion.eventfd >= 0) (void)eventfd_write(completion.eventfd, 1);
  if (completion.done == nullptr) return;
  try {
    completion.done(completion.user_data, -static_cast<moert_code>(status.code()));
  } catch (...) {  // the contract forbids it; dying for it helps nobody
  }
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

void moert_completion_init(moert_completion* completion, uint64_t size) {
  InitStruct(completion, size, DefaultCompletion());
}

moert_code moert_layer_begin(moert_step* step, int32_t layer, const moert_tensor* x,
                             const moert_routing* routing, const moert_tensor* out,
                             const moert_completion* completion, moert_call** call,
                             moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(call);
    moert_completion checked = DefaultCompletion();
    if (completion != nullptr) {
      MOERT_RETURN_IF_ERROR(ReadStruct(completion, "completion", &checked));
    }
    if (checked.eventfd != -1 && ::fcntl(checked.eventfd, F_GETFD) == -1) {
      return absl::InvalidArgumentError(absl::StrCat("completion.eventfd is ", checked.eventfd,
                                                     ", legal is an open descriptor or -1"));
    }
    MOERT_ASSIGN_OR_RETURN(const LayerArguments arguments,
                           ReadLayerCall(step, layer, x, routing, out));
    MOERT_RETURN_IF_ERROR(step->state->CheckProcess());
    auto handle = std::make_unique<moert_call>();
    handle->state = step->state;
    // Not the state: the queue is part of it, and its thread must not be the one that destroys it.
    moert::Engine* engine = step->state->engine.get();
    const moert::StepId id = step->id;
    MOERT_ASSIGN_OR_RETURN(
        handle->ticket,
        step->state->calls.Submit(
            [engine, id, layer, arguments] { return RunLayer(engine, id, layer, arguments); },
            [checked](const absl::Status& status) { Notify(checked, status); }));
    handle->unfinished = step->unfinished;
    ++*handle->unfinished;
    *call = handle.release();
    return absl::OkStatus();
  });
}

int32_t moert_call_done(const moert_call* call) { return call == nullptr || call->ticket->done(); }

moert_code moert_layer_finish(moert_call* call, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    if (call == nullptr) return absl::OkStatus();
    const std::unique_ptr<moert_call> owned(call);
    --*owned->unfinished;
    MOERT_RETURN_IF_ERROR(owned->state->CheckProcess());
    return owned->ticket->Wait();
  });
}

}  // extern "C"
