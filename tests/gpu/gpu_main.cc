// main of the GPU tests: skipped, and said to be, where there are too few devices.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "devices_needed.h"
#include "moert/backend.h"
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

// A test that needs several has its own.
__attribute__((weak)) int moert::test::DevicesNeeded() { return 1; }

int main(int argc, char** argv) {
  const absl::Status cuda = moert::CudaStatus();
  if (!cuda.ok()) {
    std::printf("skipped: %s\n", std::string(cuda.message()).c_str());
    return 77;
  }
  const int needed = moert::test::DevicesNeeded();
  int devices = 1;
  if (needed > 1 && (cudaGetDeviceCount(&devices) != cudaSuccess || devices < needed)) {
    std::printf("skipped: all cases need %d devices, there are %d\n", needed, devices);
    return 77;
  }
  return Catch::Session().run(argc, argv);
}
