// A rank of an NCCL communicator. NCCL and the driver are loaded at run time; the few of their
// declarations that are needed are below.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/exception_status.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "moert/collectives.h"

namespace moert {
namespace {

// Of nccl.h, since 2.0 but for CommGetAsyncError (2.4).
using NcclComm = void*;
using NcclStream = void*;
using NcclResult = int;
constexpr NcclResult kNcclSuccess = 0;
constexpr NcclResult kNcclInProgress = 7;
constexpr int kNcclInt8 = 0;
constexpr int kNcclFloat32 = 7;
constexpr int kNcclSum = 0;
constexpr int kOldestNccl = 21400;
struct NcclUniqueId {
  char internal[128];
};
static_assert(sizeof(NcclUniqueId) == sizeof(NcclId));

// Of cuda.h.
constexpr int kCudaSuccess = 0;
constexpr int kCudaNotReady = 600;

struct Nccl {
  NcclResult (*GetVersion)(int*) = nullptr;
  NcclResult (*GetUniqueId)(NcclUniqueId*) = nullptr;
  NcclResult (*CommInitRank)(NcclComm*, int, NcclUniqueId, int) = nullptr;
  NcclResult (*CommDestroy)(NcclComm) = nullptr;
  NcclResult (*CommAbort)(NcclComm) = nullptr;
  NcclResult (*CommGetAsyncError)(NcclComm, NcclResult*) = nullptr;
  NcclResult (*CommCount)(NcclComm, int*) = nullptr;
  NcclResult (*CommUserRank)(NcclComm, int*) = nullptr;
  NcclResult (*AllReduce)(const void*, void*, size_t, int, int, NcclComm, NcclStream) = nullptr;
  NcclResult (*AllGather)(const void*, void*, size_t, int, NcclComm, NcclStream) = nullptr;
  NcclResult (*Send)(const void*, size_t, int, int, NcclComm, NcclStream) = nullptr;
  NcclResult (*Recv)(void*, size_t, int, int, NcclComm, NcclStream) = nullptr;
  NcclResult (*GroupStart)() = nullptr;
  NcclResult (*GroupEnd)() = nullptr;
  const char* (*GetErrorString)(NcclResult) = nullptr;
  int (*StreamQuery)(void*) = nullptr;  // of the driver
};

template <typename F>
absl::Status Find(void* library, const char* name, F* f) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) return absl::UnavailableError(fmt::format("NCCL: no {}", name));
  *f = reinterpret_cast<F>(symbol);
  return absl::OkStatus();
}

absl::StatusOr<Nccl> Load() {
  // Never closed: communicators may live until the process ends.
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(fmt::format("NCCL: {}: install libnccl2", dlerror()));
  }
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return absl::UnavailableError(fmt::format("CUDA: {}", dlerror()));
  Nccl n;
  MOERT_RETURN_IF_ERROR(Find(library, "ncclGetVersion", &n.GetVersion));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclGetUniqueId", &n.GetUniqueId));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclCommInitRank", &n.CommInitRank));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclCommDestroy", &n.CommDestroy));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclCommAbort", &n.CommAbort));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclCommGetAsyncError", &n.CommGetAsyncError));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclCommCount", &n.CommCount));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclCommUserRank", &n.CommUserRank));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclAllReduce", &n.AllReduce));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclAllGather", &n.AllGather));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclSend", &n.Send));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclRecv", &n.Recv));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclGroupStart", &n.GroupStart));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclGroupEnd", &n.GroupEnd));
  MOERT_RETURN_IF_ERROR(Find(library, "ncclGetErrorString", &n.GetErrorString));
  MOERT_RETURN_IF_ERROR(Find(driver, "cuStreamQuery", &n.StreamQuery));
  int version = 0;
  if (n.GetVersion(&version) != kNcclSuccess || version < kOldestNccl) {
    return absl::UnavailableError(
        fmt::format("NCCL: version {} is older than {}", version, kOldestNccl));
  }
  return n;
}

absl::StatusOr<const Nccl*> TheNccl() {
  static const absl::StatusOr<Nccl>* const nccl = new absl::StatusOr<Nccl>(Load());
  if (!nccl->ok()) return nccl->status();
  return &**nccl;
}

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const Nccl* nccl, NcclComm comm, bool own, int rank, int size)
      : nccl_(nccl), comm_(comm), own_(own), rank_(rank), size_(size) {}
  ~NcclCollectives() override {
    if (own_ && comm_ != nullptr) nccl_->CommDestroy(comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::Status AllReduce(float* data, int64_t count, void* stream) override {
    return Enqueue("all_reduce", [&] {
      return nccl_->AllReduce(data, data, static_cast<size_t>(count), kNcclFloat32, kNcclSum, comm_,
                              stream);
    });
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all, void* stream) override {
    return Enqueue("all_gather", [&] {
      return nccl_->AllGather(mine, all, static_cast<size_t>(bytes), kNcclInt8, comm_, stream);
    });
  }
  absl::Status AllToAll(const void* send, absl::Span<const int64_t> send_bytes, void* recv,
                        absl::Span<const int64_t> recv_bytes, void* stream) override {
    const auto ranks = static_cast<size_t>(size_);
    if (send_bytes.size() != ranks || recv_bytes.size() != ranks) {
      return absl::InvalidArgumentError(
          fmt::format("all_to_all: {} counts to send, {} to receive; the group has {} ranks",
                      send_bytes.size(), recv_bytes.size(), size_));
    }
    return Enqueue("all_to_all", [&] {
      const auto* from = static_cast<const std::byte*>(send);
      auto* to = static_cast<std::byte*>(recv);
      NcclResult result = nccl_->GroupStart();
      for (size_t r = 0; r < ranks && result == kNcclSuccess; ++r) {
        const auto out = static_cast<size_t>(send_bytes[r]),
                   in = static_cast<size_t>(recv_bytes[r]);
        const int peer = static_cast<int>(r);
        if (out > 0) result = nccl_->Send(from, out, kNcclInt8, peer, comm_, stream);
        if (in > 0 && result == kNcclSuccess) {
          result = nccl_->Recv(to, in, kNcclInt8, peer, comm_, stream);
        }
        from += out;
        to += in;
      }
      const NcclResult end = nccl_->GroupEnd();  // also behind a failure
      return result == kNcclSuccess ? end : result;
    });
  }

  absl::Status Wait(void* stream, int64_t timeout_ns) override {
    const auto begin = std::chrono::steady_clock::now();
    while (true) {
      MOERT_RETURN_IF_ERROR(failure_);
      NcclResult state = kNcclSuccess;
      NcclResult asked = nccl_->CommGetAsyncError(comm_, &state);
      if (asked == kNcclSuccess) asked = state;
      if (asked != kNcclSuccess && asked != kNcclInProgress) return Fail("wait", asked);
      const int query = nccl_->StreamQuery(stream);
      if (query == kCudaSuccess) return absl::OkStatus();
      if (query != kCudaNotReady) {
        return GiveUp(absl::StatusCode::kInternal, "the stream failed: CUDA error {}", query);
      }
      if (std::chrono::steady_clock::now() - begin > std::chrono::nanoseconds(timeout_ns)) {
        return GiveUp(absl::StatusCode::kDeadlineExceeded, "some rank did not come within {} ms",
                      timeout_ns / 1'000'000);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  void Abort(const absl::Status& why) override {
    if (!failure_.ok()) return;
    failure_ = why.ok() ? absl::Status(absl::StatusCode::kAborted, "") : why;
    if (comm_ != nullptr) nccl_->CommAbort(comm_);
    comm_ = nullptr;  // aborted ones are freed
  }

 private:
  template <typename Call>
  absl::Status Enqueue(const char* what, const Call& call) {
    MOERT_RETURN_IF_ERROR(failure_);
    const NcclResult result = call();
    return result == kNcclSuccess ? absl::OkStatus() : Fail(what, result);
  }
  absl::Status Fail(const char* what, NcclResult result) {
    return GiveUp(absl::StatusCode::kUnavailable, "{}: {}", what, nccl_->GetErrorString(result));
  }
  template <typename... Args>
  absl::Status GiveUp(absl::StatusCode code, fmt::format_string<Args...> text, Args&&... args) {
    Abort(ErrorOr(code, [&] {
      return absl::Status(code, fmt::format("NCCL: rank {} of {}: {}", rank_, size_,
                                            fmt::format(text, std::forward<Args>(args)...)));
    }));
    return failure_;
  }

  const Nccl* const nccl_;
  NcclComm comm_;
  const bool own_;
  const int rank_, size_;
  absl::Status failure_;
};

absl::Status CheckCommunicator(const Nccl& nccl, const NcclOptions& options) {
  int size = 0, rank = 0;
  if (nccl.CommCount(options.communicator, &size) != kNcclSuccess ||
      nccl.CommUserRank(options.communicator, &rank) != kNcclSuccess) {
    return absl::InvalidArgumentError("NCCL: communicator: cannot be asked for its size");
  }
  if (size == options.size && rank == options.rank) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("NCCL: communicator: it has rank {} of {}, the options say rank {} of {}", rank,
                  size, options.rank, options.size));
}

}  // namespace

absl::StatusOr<NcclId> MakeNcclId() try {
  MOERT_ASSIGN_OR_RETURN(const Nccl* const nccl, TheNccl());
  NcclUniqueId id{};
  if (const NcclResult result = nccl->GetUniqueId(&id); result != kNcclSuccess) {
    return absl::UnavailableError(
        fmt::format("NCCL: a unique id: {}", nccl->GetErrorString(result)));
  }
  NcclId bytes;
  std::copy(std::begin(id.internal), std::end(id.internal), bytes.begin());
  return bytes;
} catch (...) {
  return ExceptionStatus("a unique id of NCCL");
}

absl::StatusOr<std::unique_ptr<Collectives>> MakeNcclCollectives(const NcclOptions& options) try {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        fmt::format("NCCL: rank {} of {}: must be in [0, size)", options.rank, options.size));
  }
  MOERT_ASSIGN_OR_RETURN(const Nccl* const nccl, TheNccl());
  NcclComm comm = options.communicator;
  if (comm != nullptr) {
    MOERT_RETURN_IF_ERROR(CheckCommunicator(*nccl, options));
  } else {
    NcclUniqueId id{};
    std::copy(options.id.begin(), options.id.end(), id.internal);
    const NcclResult result = nccl->CommInitRank(&comm, options.size, id, options.rank);
    if (result != kNcclSuccess) {
      return absl::UnavailableError(fmt::format("NCCL: a communicator of {} ranks: {}",
                                                options.size, nccl->GetErrorString(result)));
    }
  }
  return std::make_unique<NcclCollectives>(nccl, comm, options.communicator == nullptr,
                                           options.rank, options.size);
} catch (...) {
  return ExceptionStatus("a communicator of NCCL");
}

}  // namespace moert
