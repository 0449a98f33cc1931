// Split layer calls: begin, do something else, finish.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"
#include "base/posix_error.h"
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

absl::Status WrongEventfd(int fd, absl::string_view what) {
  return Illegal("completion.eventfd is ", fd, ", ", what,
                 "; legal is -1, or what eventfd(2) returns with EFD_NONBLOCK");
}

/// The target of Notify: an eventfd, so that a write cannot raise SIGPIPE, and a non-blocking one,
/// so that no write waits. It is a duplicate: the host may close its own descriptor, whose number
/// may be reused.
absl::StatusOr<std::shared_ptr<Descriptor>> TakeEventfd(int fd) {
  if (fd == -1) return nullptr;
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags == -1) return WrongEventfd(fd, "not an open descriptor");
  char kind[32] = {};
  const std::string link = absl::StrCat("/proc/self/fd/", fd);
  if (::readlink(link.c_str(), kind, sizeof(kind) - 1) < 0) {
    return moert::PosixError(errno, absl::StrCat("completion.eventfd: ", link));
  }
  if (absl::string_view(kind) != "anon_inode:[eventfd]") return WrongEventfd(fd, "no eventfd");
  if ((flags & O_NONBLOCK) == 0) return WrongEventfd(fd, "an eventfd that blocks");
  auto taken = std::make_shared<Descriptor>(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (taken->get() < 0) return moert::PosixError(errno, "completion.eventfd: duplicating it");
  return taken;
}

void Notify(const moert_completion& completion, const Descriptor* eventfd,
            const absl::Status& status) {
  // A counter that is full has a notification pending already.
  if (eventfd != nullptr) (void)eventfd_write(eventfd->get(), 1);
  if (completion.done == nullptr) return;
  try {
    completion.done(completion.user_data, -static_cast<moert_code>(status.code()));
  } catch (...) {  // the contract forbids exceptions; aborting would help nobody
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
    MOERT_ASSIGN_OR_RETURN(const std::shared_ptr<moert::Descriptor> eventfd,
                           TakeEventfd(checked.eventfd));
    MOERT_ASSIGN_OR_RETURN(const LayerArguments arguments,
                           ReadLayerCall(step, layer, x, routing, out));
    MOERT_RETURN_IF_ERROR(step->state->CheckProcess());
    auto handle = std::make_unique<moert_call>();
    handle->state = step->state;
    // The call holds no reference to the state: the queue is part of it, and its own thread must
    // not destroy it.
    moert::Engine* engine = step->state->engine.get();
    const moert::StepId id = step->id;
    return step->state->calls.Submit(
        [engine, id, layer, arguments] { return RunLayer(engine, id, layer, arguments); },
        [checked, eventfd](const absl::Status& status) { Notify(checked, eventfd.get(), status); },
        [&](std::shared_ptr<Ticket> ticket) {
          handle->ticket = std::move(ticket);
          handle->unfinished = step->unfinished;
          ++*handle->unfinished;
          *call = handle.release();
        });
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
