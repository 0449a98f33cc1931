// A device of offline jobs under CUDA calls that fail.
#ifndef MOERT_TESTS_GPU_OFFLINE_FAULTS_H_
#define MOERT_TESTS_GPU_OFFLINE_FAULTS_H_

#include <cuda_runtime_api.h>

#include "fault_life.h"
#include "offline/offline_device.h"
#include "tests/support/catch.h"

namespace moert::test {

/// Opens a device while the n-th call of a kind fails, once or with all behind it, and gives it to
/// `use` twice. Returns how many calls failed.
template <typename Use>
long FailuresOf(CudaFault kind, long n, bool lasting, const Use& use) {
  INFO(CudaFaultName(kind) << " " << n << (lasting ? " and later" : ""));
  ArmCudaFault(kind, n, lasting);
  absl::Status error;
  {
    const auto device = OfflineDevice::Open();
    for (int i = 0; i < 2 && device.ok(); ++i) use(device->get());
    error = device.ok() ? (*device)->first_error() : device.status();
  }
  const long failed = DisarmCudaFault();
  if (failed == 0) CHECK(error.ok());
  if (n == 1) CHECK_FALSE(error.ok());
  CHECK(cudaGetLastError() == cudaSuccess);
  return failed;
}

/// Every kind of call: all of the first ones fail, and of the later ones the more the greater
/// `density`. Device memory is back behind each kind. Returns how often something failed.
template <typename Use>
long SweepFaults(long density, const Use& use) {
  for (int i = 0; i < 2; ++i) REQUIRE(FailuresOf(CudaFault::kCopy, 1 << 20, false, use) == 0);
  const size_t free = FreeBytes();
  long faults = 0;
  for (const CudaFault kind : {CudaFault::kAllocate, CudaFault::kCopy, CudaFault::kEvent,
                               CudaFault::kLaunch, CudaFault::kStream, CudaFault::kAny}) {
    for (const bool lasting : {false, true}) {
      for (long n = 1; FailuresOf(kind, n, lasting, use) > 0; n += 1 + n / density) ++faults;
      CHECK(FreeBytes() == free);
    }
  }
  return faults;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_OFFLINE_FAULTS_H_
