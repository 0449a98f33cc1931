// The seam below the library's CUDA code: the linker puts a wrapper in front of every runtime call
// in cuda_calls.txt, and of the driver calls that the library looks up, so that a test can make the
// n-th of a kind fail.
#ifndef MOERT_TESTS_GPU_CUDA_FAULT_H_
#define MOERT_TESTS_GPU_CUDA_FAULT_H_

namespace moert::test {

enum class CudaFault {
  kAllocate,  // cudaErrorMemoryAllocation
  kCopy,
  kEvent,
  kLaunch,  // cudaErrorLaunchOutOfResources
  kStream,
  kDevice,
  kDriver,  // CUDA_ERROR_OUT_OF_MEMORY from calls for contexts and virtual memory
  kAny,     // with lasting: a device that is lost
  kKinds,
};
const char* CudaFaultName(CudaFault kind);

/// From now on the n-th call of `kind` fails (n counts from 1), with `lasting` all later ones too.
void ArmCudaFault(CudaFault kind, long n, bool lasting);
/// How many calls failed.
long DisarmCudaFault();

/// Calls of this thread are the test's own, for a scope: they never fail.
class TestsOwnCalls {
 public:
  TestsOwnCalls();
  ~TestsOwnCalls();
  TestsOwnCalls(const TestsOwnCalls&) = delete;
  TestsOwnCalls& operator=(const TestsOwnCalls&) = delete;
};

/// Within those: calls of this thread are the engine's again, for a scope.
class EnginesCalls {
 public:
  EnginesCalls();
  ~EnginesCalls();
  EnginesCalls(const EnginesCalls&) = delete;
  EnginesCalls& operator=(const EnginesCalls&) = delete;

 private:
  const int outside_;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_CUDA_FAULT_H_
