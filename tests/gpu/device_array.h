// Arrays in device memory for tests of single kernels.
#ifndef MOERT_TESTS_GPU_DEVICE_ARRAY_H_
#define MOERT_TESTS_GPU_DEVICE_ARRAY_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "tests/support/catch.h"

namespace moert::test {

template <typename T>
class DeviceArray {
 public:
  /// Filled with 0xff: what a kernel leaves unwritten is no number.
  explicit DeviceArray(size_t count) : count_(count) {
    REQUIRE(cudaMalloc(&data_, count * sizeof(T)) == cudaSuccess);
    REQUIRE(cudaMemset(data_, 0xff, count * sizeof(T)) == cudaSuccess);
    AwaitCopies();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { Set(values); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return static_cast<T*>(data_); }
  void Set(const std::vector<T>& values) {
    REQUIRE(values.size() <= count_);
    REQUIRE(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) ==
            cudaSuccess);
    AwaitCopies();
  }
  /// Waits for the device.
  std::vector<T> Get() const {
    std::vector<T> values(count_);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    return values;
  }

 private:
  // Streams that do not block would not wait for them.
  static void AwaitCopies() { REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess); }

  const size_t count_;
  void* data_ = nullptr;
};

inline std::vector<float> RandomFloats(size_t count, std::mt19937* rng, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& v : values) v = normal(*rng);
  return values;
}

inline std::vector<uint16_t> Rounded(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float v : values) out.push_back(F32ToBf16(v));
  return out;
}

inline std::vector<float> Widened(const std::vector<uint16_t>& values) {
  std::vector<float> out;
  for (const uint16_t v : values) out.push_back(Bf16ToF32(v));
  return out;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_DEVICE_ARRAY_H_
