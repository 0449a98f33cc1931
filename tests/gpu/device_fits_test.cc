// Scales that a device finds: whole matrices are quantized to the same bits as without one, from
// several threads, and most groups without the CPU.
#include "offline/device_fits.h"

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "device_array.h"
#include "fault_life.h"
#include "offline/hqq.h"
#include "offline/rtn.h"

namespace moert::test {
namespace {

MatrixLayout GateOf(const char* scheme, int64_t hidden, int64_t intermediate) {
  return MakeRecordLayout(hidden, intermediate, ExpertFormat::Uniform(*Scheme::Parse(scheme)))
      ->gate;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
bool Same(const QuantizedMatrix& a, const QuantizedMatrix& b) {
  return a.codes == b.codes && SameBits(a.scales, b.scales) && SameBits(a.offsets, b.offsets) &&
         a.matrix_scale == b.matrix_scale;
}

double KnownShare(const std::vector<GroupScale>& fits) {
  double known = 0;
  for (const GroupScale& fit : fits) known += fit.Known() ? 1 : 0;
  return fits.empty() ? 0 : known / static_cast<double>(fits.size());
}

TEST_CASE("every scheme: the same bits as on the CPU") {
  const auto device = DeviceFits::Open();
  REQUIRE_OK(device.status());
  std::mt19937 rng(5);
  for (const Scheme& scheme : Scheme::All()) {
    if (scheme.is_bf16()) continue;
    // The second has rows that end in a smaller group, and more values a row than a CTA's share.
    for (const auto& [hidden, rows] : {std::pair<int64_t, int64_t>{2048, 96}, {2864, 17}}) {
      const MatrixLayout m = GateOf(scheme.Name().c_str(), hidden, rows);
      const std::vector<float> w = RandomFloats(static_cast<size_t>(rows * hidden), &rng, 0.03f);
      INFO(scheme.Name() << " " << rows << " x " << hidden);
      const std::vector<GroupScale> rtn = (*device)->Rtn(m, w, RtnOptions());
      CHECK(KnownShare(rtn) > 0.85);
      CHECK(Same(QuantizeRtn(m, w, {}, device->get()), QuantizeRtn(m, w)));
      if (!HasPlainCodes(scheme)) continue;
      CHECK(KnownShare((*device)->Hqq(m, w, HqqOptions())) > 0.99);
      CHECK(Same(QuantizeHqq(m, w, {}, device->get()), QuantizeHqq(m, w)));
    }
  }
  CHECK((*device)->first_error().ok());
}

TEST_CASE("weights unlike others: zeros, outliers, one sign, tiny and large ones") {
  const auto device = DeviceFits::Open();
  REQUIRE_OK(device.status());
  std::mt19937 rng(6);
  for (const char* scheme : {"w4a16_g128", "w2a16_g64_asym", "w3a16_g-1_asym", "w4a16_g128_zp",
                             "w4a16_g32_f16", "mxfp4", "nvfp4", "fp8_b128"}) {
    const MatrixLayout m = GateOf(scheme, 1024, 64);
    std::vector<float> w = RandomFloats(static_cast<size_t>(m.rows * m.k), &rng, 0.03f);
    for (int64_t i = 0; i < m.rows * m.k; ++i) {
      const int64_t row = i / m.k;
      float& v = w[static_cast<size_t>(i)];
      if (row % 8 == 1) v = 0;
      if (row % 8 == 2) v = std::abs(v);
      if (row % 8 == 3) v = -std::abs(v);
      if (row % 8 == 4 && i % 97 == 0) v = 2;
      if (row % 8 == 5) v *= 1e-12f;
      if (row % 8 == 6) v *= 1e4f;
      if (row % 8 == 7) v = i % 3 == 0 ? 0.25f : 0;
    }
    INFO(scheme);
    CHECK(Same(QuantizeRtn(m, w, {}, device->get()), QuantizeRtn(m, w)));
    CHECK(Same(QuantizeHqq(m, w, {}, device->get()), QuantizeHqq(m, w)));
  }
}

TEST_CASE("more threads than lanes, and groups that a CTA cannot hold") {
  const auto device = DeviceFits::Open();
  REQUIRE_OK(device.status());
  const MatrixLayout m = GateOf("w4a16_g128", 512, 64);
  std::vector<int> same(24, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < same.size(); ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 rng(static_cast<uint32_t>(t));
      const std::vector<float> w = RandomFloats(static_cast<size_t>(m.rows * m.k), &rng, 0.02f);
      same[t] = Same(QuantizeHqq(m, w, {}, device->get()), QuantizeHqq(m, w)) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int s : same) CHECK(s == 1);

  const MatrixLayout wide = GateOf("w4a16_g-1_asym", 16384, 16);
  std::mt19937 rng(9);
  const std::vector<float> w = RandomFloats(static_cast<size_t>(wide.rows * wide.k), &rng, 0.02f);
  CHECK((*device)->Rtn(wide, w, RtnOptions()).empty());
  CHECK(Same(QuantizeRtn(wide, w, {}, device->get()), QuantizeRtn(wide, w)));
}

TEST_CASE("calls that fail leave the search to the CPU, and nothing behind") {
  const MatrixLayout m = GateOf("w4a16_g128", 512, 64);
  std::mt19937 rng(8);
  const std::vector<float> w = RandomFloats(static_cast<size_t>(m.rows * m.k), &rng, 0.02f);
  const QuantizedMatrix expected = QuantizeHqq(m, w);
  const auto failures = [&](CudaFault kind, long n, bool lasting) {
    INFO(CudaFaultName(kind) << " " << n << (lasting ? " and later" : ""));
    ArmCudaFault(kind, n, lasting);
    absl::Status error;
    {
      const auto device = DeviceFits::Open();
      for (int i = 0; i < 2 && device.ok(); ++i) {
        CHECK(Same(QuantizeHqq(m, w, {}, device->get()), expected));
      }
      error = device.ok() ? (*device)->first_error() : device.status();
    }
    const long failed = DisarmCudaFault();
    if (failed == 0) CHECK(error.ok());
    if (n == 1) CHECK_FALSE(error.ok());
    CHECK(cudaGetLastError() == cudaSuccess);
    return failed;
  };
  for (int i = 0; i < 2; ++i) REQUIRE(failures(CudaFault::kCopy, 1000, false) == 0);
  const size_t free = FreeBytes();
  long faults = 0;
  for (const CudaFault kind : {CudaFault::kAllocate, CudaFault::kCopy, CudaFault::kLaunch,
                               CudaFault::kStream, CudaFault::kAny}) {
    for (const bool lasting : {false, true}) {
      for (long n = 1; failures(kind, n, lasting) > 0; ++n) ++faults;
      CHECK(FreeBytes() == free);
    }
  }
  CHECK(faults > 20);
}

}  // namespace
}  // namespace moert::test
