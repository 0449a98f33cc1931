// A rank of an NCCL communicator: the five functions of Collectives over NcclCommunicator. Data in
// host memory goes through a staging buffer on the device.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <numeric>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "moert/parallel/collectives.h"
#include "parallel/nccl_api.h"
#include "parallel/nccl_communicator.h"

namespace moert {
namespace {

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const NcclApi* api, const NcclOptions& options, int device, CudaContext context)
      : api_(api), o_(options), communicator_(api, options, device, context) {}
  ~NcclCollectives() override {
    const NcclScope scope(api_, communicator_.context());
    if (staging_ != 0) api_->MemFree(staging_);
    if (stream_ != nullptr) api_->StreamDestroy(stream_);
  }
  absl::Status Init() { return communicator_.Init(); }

  int rank() const override { return o_.rank; }
  int size() const override { return o_.size; }

  absl::Status AllReduce(float* data, int64_t count, void* stream) override {
    const auto bytes = count * static_cast<int64_t>(sizeof(float));
    return Run("all_reduce", {data, bytes, data, bytes}, stream, [&](const Buffers& at) {
      return api_->AllReduce(at.in, at.out, static_cast<size_t>(count), kNcclFloat32, kNcclSum,
                             at.comm, at.stream);
    });
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all, void* stream) override {
    return Run("all_gather", {mine, bytes, all, bytes * o_.size}, stream, [&](const Buffers& at) {
      return api_->AllGather(at.in, at.out, static_cast<size_t>(bytes), kNcclInt8, at.comm,
                             at.stream);
    });
  }
  absl::Status AllToAll(const void* send, absl::Span<const int64_t> send_bytes, void* recv,
                        absl::Span<const int64_t> recv_bytes, void* stream) override;
  absl::Status Wait(void* stream, int64_t timeout_ns) override {
    return communicator_.Wait(stream, timeout_ns);
  }
  void Abort(const absl::Status& why) override { communicator_.Abort(why); }

 private:
  struct Memory {
    const void* in;
    int64_t in_bytes;
    void* out;
    int64_t out_bytes;
  };
  struct Buffers {  // on the device
    const std::byte* in;
    std::byte* out;
    NcclComm comm;
    CudaStream stream;
  };

  /// Runs call(buffers), which enqueues. stream null: works on copies of host memory and is done on
  /// return.
  template <typename Call>
  absl::Status Run(const char* what, const Memory& memory, CudaStream stream, const Call& call) {
    if (stream == nullptr) return RunStaged(what, memory, call);
    return communicator_.Enqueue(what, stream, [&](NcclComm comm) {
      return call({static_cast<const std::byte*>(memory.in), static_cast<std::byte*>(memory.out),
                   comm, stream});
    });
  }
  template <typename Call>
  absl::Status RunStaged(const char* what, const Memory& memory, const Call& call);
  int Reserve(size_t bytes);
  NcclResult Exchange(const Buffers& at, absl::Span<const int64_t> send_bytes,
                      absl::Span<const int64_t> recv_bytes) const;

  const NcclApi* const api_;
  const NcclOptions o_;
  NcclCommunicator communicator_;
  // The stream for calls with host memory.
  CudaStream stream_ = nullptr;
  CudaAddress staging_ = 0;
  size_t staging_bytes_ = 0;
};

/// Makes the stream and the staging buffer. Returns an error of the driver, or 0.
int NcclCollectives::Reserve(size_t bytes) {
  if (stream_ == nullptr) {
    if (const int error = api_->StreamCreate(&stream_, kCudaStreamNonBlocking); error != 0) {
      return error;
    }
  }
  if (bytes <= staging_bytes_) return 0;
  if (staging_ != 0) api_->MemFree(staging_);
  staging_ = 0;
  staging_bytes_ = 0;
  const int error = api_->MemAlloc(&staging_, bytes);
  if (error == 0) staging_bytes_ = bytes;
  return error;
}

template <typename Call>
absl::Status NcclCollectives::RunStaged(const char* what, const Memory& memory, const Call& call) {
  const auto in_bytes = static_cast<size_t>(memory.in_bytes);
  const auto out_bytes = static_cast<size_t>(memory.out_bytes);
  const size_t out_at = memory.in == memory.out ? 0 : (in_bytes + 255) / 256 * 256;
  const NcclScope scope(api_, communicator_.context());
  int error = Reserve(std::max<size_t>(256, out_at + out_bytes));
  if (error == 0 && in_bytes > 0) {
    error = api_->CopyToDevice(staging_, memory.in, in_bytes, stream_);
  }
  if (error != 0) return communicator_.DriverFailed(what, error);
  auto* const base = reinterpret_cast<std::byte*>(staging_);
  MOERT_RETURN_IF_ERROR(communicator_.Enqueue(what, stream_, [&](NcclComm comm) {
    return call({base, base + out_at, comm, stream_});
  }));
  MOERT_RETURN_IF_ERROR(communicator_.Wait(stream_, o_.timeout_ns));
  if (out_bytes == 0) return absl::OkStatus();
  error = api_->CopyToHost(memory.out, staging_ + out_at, out_bytes, stream_);
  if (error != 0) return communicator_.DriverFailed(what, error);
  return communicator_.Wait(stream_, o_.timeout_ns);
}

absl::Status NcclCollectives::AllToAll(const void* send, absl::Span<const int64_t> send_bytes,
                                       void* recv, absl::Span<const int64_t> recv_bytes,
                                       void* stream) {
  const auto ranks = static_cast<size_t>(o_.size);
  if (send_bytes.size() != ranks || recv_bytes.size() != ranks) {
    return InvalidArgument("all_to_all: {} counts to send, {} to receive; the group has {} ranks",
                           send_bytes.size(), recv_bytes.size(), o_.size);
  }
  const auto sum = [](absl::Span<const int64_t> bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  };
  return Run("all_to_all", {send, sum(send_bytes), recv, sum(recv_bytes)}, stream,
             [&](const Buffers& at) { return Exchange(at, send_bytes, recv_bytes); });
}

NcclResult NcclCollectives::Exchange(const Buffers& at, absl::Span<const int64_t> send_bytes,
                                     absl::Span<const int64_t> recv_bytes) const {
  const std::byte* from = at.in;
  std::byte* to = at.out;
  NcclResult result = api_->GroupStart();
  for (size_t r = 0; r < send_bytes.size() && result == kNcclSuccess; ++r) {
    const auto out = static_cast<size_t>(send_bytes[r]), in = static_cast<size_t>(recv_bytes[r]);
    const int peer = static_cast<int>(r);
    if (out > 0) result = api_->Send(from, out, kNcclInt8, peer, at.comm, at.stream);
    if (in > 0 && result == kNcclSuccess) {
      result = api_->Recv(to, in, kNcclInt8, peer, at.comm, at.stream);
    }
    from += out;
    to += in;
  }
  const NcclResult end = api_->GroupEnd();  // also after a failure
  return result == kNcclSuccess ? end : result;
}

}  // namespace

absl::StatusOr<NcclId> MakeNcclId() try {
  MOERT_ASSIGN_OR_RETURN(const NcclApi* const nccl, LoadNccl());
  NcclUniqueId id{};
  if (const NcclResult result = nccl->GetUniqueId(&id); result != kNcclSuccess) {
    return Unavailable("NCCL: a unique id: {}", nccl->GetErrorString(result));
  }
  NcclId bytes;
  std::copy(std::begin(id.internal), std::end(id.internal), bytes.begin());
  return bytes;
} catch (...) {
  return ExceptionStatus("a unique id of NCCL");
}

absl::StatusOr<std::unique_ptr<Collectives>> MakeNcclCollectives(const NcclOptions& options) try {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidArgument("NCCL: rank {} of {}: must be in [0, size)", options.rank, options.size);
  }
  if (options.timeout_ns < 1) {
    return InvalidArgument("NCCL: timeout_ns {}: must be 1 or more", options.timeout_ns);
  }
  MOERT_ASSIGN_OR_RETURN(const NcclApi* const nccl, LoadNccl());
  int device = options.device;
  if (options.communicator != nullptr) {
    if (nccl->CommCuDevice(options.communicator, &device) != kNcclSuccess) {
      return absl::InvalidArgumentError("NCCL: communicator: cannot be asked for its device");
    }
  } else if (device < 0 && nccl->CtxGetDevice(&device) != kCudaSuccess) {
    device = 0;  // the thread has no current device yet
  }
  CudaContext context = nullptr;
  if (nccl->PrimaryCtxRetain(&context, device) != kCudaSuccess) {
    return InvalidArgument("NCCL: device {} does not exist", device);
  }
  auto rank = std::make_unique<NcclCollectives>(nccl, options, device, context);
  MOERT_RETURN_IF_ERROR(rank->Init());
  return rank;
} catch (...) {
  return ExceptionStatus("a communicator of NCCL");
}

}  // namespace moert
