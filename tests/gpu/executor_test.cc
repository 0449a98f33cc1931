// The executor contract on a CUDA device.
#include <memory>

#include "tests/gpu/device_step.h"
#include "tests/support/executor_contract.h"

namespace moert {
namespace {

class DeviceMatrices final : public test::Matrices {
 public:
  void* stream() const override { return rows_.stream(); }
  void Set(const std::vector<float>& x, int64_t rows, int64_t cols, ExecutorCall* call) override {
    rows_.Set(x);
    call->hidden = {rows_.x(), DType::kF32, rows, cols, cols};
    call->out = {rows_.y(), DType::kF32, rows, cols, cols};
  }
  std::vector<float> Get() override { return rows_.Get(); }

 private:
  test::DeviceRowsBuffer rows_{test::ExecutorRig::kTokens * 64};
};

TEST_CASE("the CUDA executor keeps the contract of executors") {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  DeviceMatrices matrices;
  test::CheckExecutorContract(options, &matrices);
}

}  // namespace
}  // namespace moert
