// Products that the device does for calibration: against fp64, in parts, from many threads; and the
// Delta of every scheme, which must not depend on who multiplied.
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "cli/pack/host_model.h"
#include "device_array.h"
#include "host/blocks/linear.h"
#include "host/device_products.h"
#include "moert/thread_pool.h"
#include "offline/sensitivity.h"

namespace moert::test {
namespace {

using host::DeviceProducts;
using offline::Floats;

/// The largest error of a product's elements, of the sum of their terms' magnitudes.
double Error(const std::vector<float>& w, int64_t out, int64_t in, const std::vector<float>& x,
             const std::vector<float>& y, int64_t rows, int64_t step) {
  double worst = 0;
  for (int64_t r = 0; r < rows; r += step) {
    for (int64_t o = 0; o < out; o += step) {
      double sum = 0, magnitude = 0;
      for (int64_t i = 0; i < in; ++i) {
        const double term = double{x[r * in + i]} * w[o * in + i];
        sum += term;
        magnitude += std::abs(term);
      }
      worst = std::max(worst, std::abs(sum - y[r * out + o]) / magnitude);
    }
  }
  return worst;
}

TEST_CASE("products of host memory, on several threads") {
  auto products = DeviceProducts::Open(2);
  REQUIRE_OK(products.status());
  CHECK_FALSE((*products)->name().empty());
  // Errors of tf32 would be some 1e-4.
  constexpr double kRounding = 2e-6;
  struct Shape {
    int64_t rows, in, out;
  };
  const Shape shapes[] = {{1, 64, 16}, {33, 100, 7}, {700, 256, 128}, {513, 768, 300}};
  std::vector<std::thread> threads;
  std::vector<double> errors(std::size(shapes), 1);
  std::vector<absl::Status> statuses(std::size(shapes));
  for (size_t s = 0; s < std::size(shapes); ++s) {
    threads.emplace_back([&, s] {
      const Shape& shape = shapes[s];
      std::mt19937 rng(static_cast<uint32_t>(s));
      const auto w = RandomFloats(static_cast<size_t>(shape.out * shape.in), &rng);
      const auto x = RandomFloats(static_cast<size_t>(shape.rows * shape.in), &rng);
      errors[s] = 0;
      for (int repeat = 0; repeat < 5; ++repeat) {  // buffers grow, and are used again
        std::vector<float> y(static_cast<size_t>(shape.rows * shape.out), NAN);
        statuses[s].Update(
            (*products)->Multiply(w.data(), shape.out, shape.in, x.data(), shape.rows, y.data()));
        const double error = Error(w, shape.out, shape.in, x, y, shape.rows, 1);
        if (!(error <= errors[s])) errors[s] = error;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (size_t s = 0; s < std::size(shapes); ++s) {
    REQUIRE_OK(statuses[s]);
    CHECK(errors[s] < kRounding);
  }
  CHECK((*products)->first_error().ok());
}

TEST_CASE("rows beyond what is on the device at once go in parts") {
  auto products = DeviceProducts::Open(1);
  REQUIRE_OK(products.status());
  const int64_t rows = 70001, in = 1024, out = 8;  // 65027 rows at once
  std::mt19937 rng(7);
  const auto w = RandomFloats(static_cast<size_t>(out * in), &rng);
  const auto x = RandomFloats(static_cast<size_t>(rows * in), &rng);
  std::vector<float> y(static_cast<size_t>(rows * out), NAN);
  REQUIRE_OK((*products)->Multiply(w.data(), out, in, x.data(), rows, y.data()));
  CHECK(Error(w, out, in, x, y, rows, 7) < 2e-6);
}

/// Forwards and counts.
class Counting final : public DeviceProducts {
 public:
  explicit Counting(DeviceProducts* to) : to_(to) {}
  absl::Status Multiply(const float* w, int64_t out, int64_t in, const float* x, int64_t rows,
                        float* y) override {
    ++count;
    return to_->Multiply(w, out, in, x, rows, y);
  }
  absl::StatusOr<std::unique_ptr<host::KeptWeights>> Keep(const float* w, int64_t out,
                                                          int64_t in) override {
    return to_->Keep(w, out, in);
  }
  absl::Status MultiplyKept(const host::KeptWeights& w, const float* x, int64_t rows,
                            float* y) override {
    return to_->MultiplyKept(w, x, rows, y);
  }
  absl::Status first_error() const override { return to_->first_error(); }
  const std::string& name() const override { return to_->name(); }
  int count = 0;

 private:
  DeviceProducts* const to_;
};

TEST_CASE("weights that stay there: the threads' outputs, biases too, and few rows are theirs") {
  auto products = DeviceProducts::Open(1);
  REQUIRE_OK(products.status());
  auto pool = CreateThreadPool({.threads = 2});
  REQUIRE_OK(pool.status());
  std::mt19937 rng(8);
  const int64_t out = 1030, in = 512;
  const auto w = RandomFloats(static_cast<size_t>(out * in), &rng, 0.1f);
  const auto bias = RandomFloats(static_cast<size_t>(out), &rng);
  for (const int64_t rows : {int64_t{700}, int64_t{6000}, int64_t{5}}) {  // some in parts
    const auto x = RandomFloats(static_cast<size_t>(rows * in), &rng);
    for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
      host::Linear linear = host::Linear::FromF32(w.data(), out, in, b);
      std::vector<float> expected(static_cast<size_t>(rows * out)), found = expected;
      linear.Forward(pool->get(), x.data(), rows, expected.data());
      linear.UseDevice(products->get());
      linear.Forward(pool->get(), x.data(), rows, found.data());
      double apart = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        apart = std::max(apart, std::abs(double{found[i]} - expected[i]));
      }
      CHECK(apart < 1e-3);
      CHECK((apart == 0) == (rows == 5));
    }
  }
  CHECK((*products)->first_error().ok());
}

TEST_CASE("a calibration's Delta does not depend on who multiplies") {
  auto products = DeviceProducts::Open(1);
  REQUIRE_OK(products.status());
  auto pool = CreateThreadPool({.threads = 1});
  REQUIRE_OK(pool.status());
  MoeLayerSpec layer;
  layer.hidden = 256;
  layer.intermediate = 128;
  const int64_t rows = 1500;  // products of 49 million multiply-adds
  std::mt19937 rng(3);
  offline::ExpertMatrices weights;
  const size_t size = static_cast<size_t>(layer.hidden * layer.intermediate);
  weights.gate = RandomFloats(size, &rng, 0.1f);
  weights.up = RandomFloats(size, &rng, 0.1f);
  weights.down = RandomFloats(size, &rng, 0.1f);
  const auto values = RandomFloats(static_cast<size_t>(rows * layer.hidden), &rng);
  const std::vector<float> token_weights(static_cast<size_t>(rows), 0.25f);
  for (const bool hadamard : {false, true}) {
    offline::SensitivitySettings settings;
    for (const char* name : {"w2a16_g128_asym", "w4a16_g-1_asym", "w4a8_g128"}) {
      settings.schemes.push_back(*Scheme::Parse(name));
    }
    settings.method = QuantMethod::kRtn;
    settings.hadamard = hadamard;
    Floats on_cpu(values.begin(), values.end()), on_device = on_cpu;
    cli::HostProducts plain;
    const auto cpu = offline::ExpertSensitivity(layer, settings, weights, token_weights, 0,
                                                {pool->get(), &plain}, &on_cpu);
    Counting counting(products->get());
    cli::HostProducts counted(&counting);
    const auto device = offline::ExpertSensitivity(layer, settings, weights, token_weights, 0,
                                                   {pool->get(), &counted}, &on_device);
    CHECK(counting.count == 3 + 5 * 3);  // the expert, and five products a scheme
    REQUIRE_OK(cpu.status());
    REQUIRE_OK(device.status());
    REQUIRE(cpu->delta.size() == 9);
    for (size_t i = 0; i < cpu->delta.size(); ++i) {
      INFO("delta " << i);
      CHECK(cpu->delta[i] > 0);
      CHECK(device->delta[i] == Approx(cpu->delta[i]).epsilon(1e-3));
    }
    double most = 0, apart = 0;
    for (size_t i = 0; i < on_cpu.size(); ++i) {
      most = std::max(most, std::abs(double{on_cpu[i]}));
      apart = std::max(apart, std::abs(double{on_cpu[i]} - on_device[i]));
    }
    CHECK(apart < 1e-5 * most);
  }
  CHECK((*products)->first_error().ok());
}

}  // namespace
}  // namespace moert::test
