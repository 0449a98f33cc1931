#include "parallel/nccl_api.h"

#include <dlfcn.h>

#include "base/errors.h"
#include "base/status_macros.h"

namespace moert {
namespace {

/// Finds functions in a library; the first that is missing is the status.
class Finder {
 public:
  Finder(void* library, const char* of) : library_(library), of_(of) {}

  template <typename F>
  Finder& operator()(const char* name, F* f) {
    void* symbol = dlsym(library_, name);
    if (symbol == nullptr) status_.Update(Unavailable("{}: no {}", of_, name));
    *f = reinterpret_cast<F>(symbol);
    return *this;
  }
  const absl::Status& status() const { return status_; }

 private:
  void* const library_;
  const char* const of_;
  absl::Status status_;
};

absl::Status FindNccl(void* library, NcclApi* n) {
  Finder find(library, "NCCL");
  find("ncclGetVersion", &n->GetVersion)("ncclGetUniqueId", &n->GetUniqueId)(
      "ncclCommInitRankConfig", &n->CommInitRankConfig)("ncclCommFinalize", &n->CommFinalize)(
      "ncclCommDestroy", &n->CommDestroy)("ncclCommAbort", &n->CommAbort)(
      "ncclCommGetAsyncError", &n->CommGetAsyncError)("ncclCommCount", &n->CommCount)(
      "ncclCommUserRank", &n->CommUserRank)("ncclCommCuDevice", &n->CommCuDevice)(
      "ncclAllReduce", &n->AllReduce)("ncclAllGather", &n->AllGather)("ncclSend", &n->Send)(
      "ncclRecv", &n->Recv)("ncclGroupStart", &n->GroupStart)("ncclGroupEnd", &n->GroupEnd)(
      "ncclGetErrorString", &n->GetErrorString)("ncclGetLastError", &n->GetLastError);
  return find.status();
}

absl::Status FindDriver(void* library, NcclApi* n) {
  Finder find(library, "CUDA");
  find("cuInit", &n->Init)("cuCtxGetDevice", &n->CtxGetDevice)("cuDevicePrimaryCtxRetain",
                                                               &n->PrimaryCtxRetain)(
      "cuDevicePrimaryCtxRelease_v2", &n->PrimaryCtxRelease)("cuCtxPushCurrent_v2", &n->CtxPush)(
      "cuCtxPopCurrent_v2", &n->CtxPop)("cuThreadExchangeStreamCaptureMode",
                                        &n->ExchangeCaptureMode)(
      "cuStreamCreate", &n->StreamCreate)("cuStreamDestroy_v2", &n->StreamDestroy)(
      "cuStreamQuery", &n->StreamQuery)("cuStreamIsCapturing", &n->StreamIsCapturing)(
      "cuEventCreate", &n->EventCreate)("cuEventRecord", &n->EventRecord)(
      "cuEventQuery", &n->EventQuery)("cuEventDestroy_v2", &n->EventDestroy)(
      "cuMemAlloc_v2", &n->MemAlloc)("cuMemFree_v2", &n->MemFree)(
      "cuMemcpyHtoDAsync_v2", &n->CopyToDevice)("cuMemcpyDtoHAsync_v2", &n->CopyToHost);
  return find.status();
}

absl::StatusOr<NcclApi> Load() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unavailable("NCCL: {}: install libnccl2", dlerror());
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return Unavailable("CUDA: {}", dlerror());
  NcclApi n;
  // Checks the version first: an old library may lack some functions.
  int version = 0;
  MOERT_RETURN_IF_ERROR(Finder(library, "NCCL")("ncclGetVersion", &n.GetVersion).status());
  if (n.GetVersion(&version) != kNcclSuccess || version < kOldestNccl) {
    return Unavailable("NCCL: version {} is older than {}", version, kOldestNccl);
  }
  MOERT_RETURN_IF_ERROR(FindNccl(library, &n));
  MOERT_RETURN_IF_ERROR(FindDriver(driver, &n));
  if (n.Init(0) != kCudaSuccess) return absl::UnavailableError("CUDA: no device");
  return n;
}

}  // namespace

absl::StatusOr<const NcclApi*> LoadNccl() {
  static const absl::StatusOr<NcclApi>* const nccl = new absl::StatusOr<NcclApi>(Load());
  if (!nccl->ok()) return nccl->status();
  return &**nccl;
}

}  // namespace moert
