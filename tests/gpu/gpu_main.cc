// main of the GPU tests: skipped, and said to be, where there is no device.
#include <cstdio>

#include "moert/backend.h"
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

int main(int argc, char** argv) {
  const absl::Status cuda = moert::CudaStatus();
  if (!cuda.ok()) {
    std::printf("skipped: %s\n", std::string(cuda.message()).c_str());
    return 77;
  }
  return Catch::Session().run(argc, argv);
}
