// The functions of NCCL and the CUDA driver that the NCCL group uses. They are loaded at run time,
// and their declarations are repeated here, so that builds without CUDA have them too.
#ifndef MOERT_LIB_PARALLEL_NCCL_API_H_
#define MOERT_LIB_PARALLEL_NCCL_API_H_

#include <climits>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "moert/parallel/collectives.h"

namespace moert {

// As in nccl.h.
using NcclComm = void*;
using NcclResult = int;
constexpr NcclResult kNcclSuccess = 0;
constexpr NcclResult kNcclInProgress = 7;
constexpr int kNcclInt8 = 0;
constexpr int kNcclFloat32 = 7;
constexpr int kNcclSum = 0;
constexpr int kOldestNccl = 21400;  // 2.14, the first version with nonblocking calls
struct NcclUniqueId {
  char internal[128];
};
static_assert(sizeof(NcclUniqueId) == sizeof(NcclId));
/// The fields of version 2.14. Later versions do not read beyond them, because of `version`.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestNccl;
  int blocking = 0;
  int later = INT_MIN;  // not set
};

// As in cuda.h.
using CudaStream = void*;
using CudaEvent = void*;
using CudaContext = void*;
using CudaAddress = unsigned long long;
constexpr int kCudaSuccess = 0;
constexpr int kCudaNotReady = 600;
constexpr unsigned kCudaEventNoTiming = 2;
constexpr unsigned kCudaStreamNonBlocking = 1;
constexpr int kCudaCaptureRelaxed = 2;

struct NcclApi {
  NcclResult (*GetVersion)(int*) = nullptr;
  NcclResult (*GetUniqueId)(NcclUniqueId*) = nullptr;
  NcclResult (*CommInitRankConfig)(NcclComm*, int, NcclUniqueId, int, NcclConfig*) = nullptr;
  NcclResult (*CommFinalize)(NcclComm) = nullptr;
  NcclResult (*CommDestroy)(NcclComm) = nullptr;
  NcclResult (*CommAbort)(NcclComm) = nullptr;
  NcclResult (*CommGetAsyncError)(NcclComm, NcclResult*) = nullptr;
  NcclResult (*CommCount)(NcclComm, int*) = nullptr;
  NcclResult (*CommUserRank)(NcclComm, int*) = nullptr;
  NcclResult (*CommCuDevice)(NcclComm, int*) = nullptr;
  NcclResult (*AllReduce)(const void*, void*, size_t, int, int, NcclComm, CudaStream) = nullptr;
  NcclResult (*AllGather)(const void*, void*, size_t, int, NcclComm, CudaStream) = nullptr;
  NcclResult (*Send)(const void*, size_t, int, int, NcclComm, CudaStream) = nullptr;
  NcclResult (*Recv)(void*, size_t, int, int, NcclComm, CudaStream) = nullptr;
  NcclResult (*GroupStart)() = nullptr;
  NcclResult (*GroupEnd)() = nullptr;
  const char* (*GetErrorString)(NcclResult) = nullptr;
  const char* (*GetLastError)(NcclComm) = nullptr;

  // The driver's.
  int (*Init)(unsigned) = nullptr;
  int (*CtxGetDevice)(int*) = nullptr;
  int (*PrimaryCtxRetain)(CudaContext*, int) = nullptr;
  int (*PrimaryCtxRelease)(int) = nullptr;
  int (*CtxPush)(CudaContext) = nullptr;
  int (*CtxPop)(CudaContext*) = nullptr;
  int (*ExchangeCaptureMode)(int*) = nullptr;
  int (*StreamCreate)(CudaStream*, unsigned) = nullptr;
  int (*StreamDestroy)(CudaStream) = nullptr;
  int (*StreamQuery)(CudaStream) = nullptr;
  int (*StreamIsCapturing)(CudaStream, int*) = nullptr;
  int (*EventCreate)(CudaEvent*, unsigned) = nullptr;
  int (*EventRecord)(CudaEvent, CudaStream) = nullptr;
  int (*EventQuery)(CudaEvent) = nullptr;
  int (*EventDestroy)(CudaEvent) = nullptr;
  int (*MemAlloc)(CudaAddress*, size_t) = nullptr;
  int (*MemFree)(CudaAddress) = nullptr;
  int (*CopyToDevice)(CudaAddress, const void*, size_t, CudaStream) = nullptr;
  int (*CopyToHost)(void*, CudaAddress, size_t, CudaStream) = nullptr;
};

/// Loads the libraries once and never closes them. Unavailable, with the reason, if one is missing.
absl::StatusOr<const NcclApi*> LoadNccl();

/// Makes a context current for a scope. Calls within the scope leave captures of other threads
/// alone.
class NcclScope {
 public:
  NcclScope(const NcclApi* api, CudaContext context) : api_(api) {
    api_->CtxPush(context);
    api_->ExchangeCaptureMode(&mode_);
  }
  ~NcclScope() {
    CudaContext ours = nullptr;
    api_->ExchangeCaptureMode(&mode_);
    api_->CtxPop(&ours);
  }
  NcclScope(const NcclScope&) = delete;
  NcclScope& operator=(const NcclScope&) = delete;

 private:
  const NcclApi* const api_;
  int mode_ = kCudaCaptureRelaxed;
};

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_NCCL_API_H_
