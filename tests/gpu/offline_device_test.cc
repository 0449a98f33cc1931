// A device's part in quantizing and calibrating: the same bits as without one where scales are
// searched for and GPTQ rounds, from several threads, and the same changes but for rounding.
#include "offline/offline_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device_array.h"
#include "moert/thread_pool.h"
#include "offline/dense_lanes.h"
#include "offline/gptq.h"
#include "offline/hqq.h"
#include "offline/moe_block.h"
#include "offline/rtn.h"
#include "offline/sensitivity.h"
#include "offline_faults.h"
#include "offline_inputs.h"

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
  const auto device = OfflineDevice::Open();
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
  const auto device = OfflineDevice::Open();
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
  const auto device = OfflineDevice::Open();
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

TEST_CASE("GPTQ: every scheme, the same bits as on the CPU") {
  const auto device = OfflineDevice::Open();
  REQUIRE_OK(device.status());
  std::mt19937 rng(15);
  for (const auto& [hidden, rows] : {std::pair<int64_t, int64_t>{1024, 96}, {688, 37}}) {
    const std::vector<float> x = Inputs(1500, hidden, &rng);
    const std::vector<float> w = RandomFloats(static_cast<size_t>(rows * hidden), &rng, 0.03f);
    InputMoments moments(hidden);
    REQUIRE_OK(moments.Add(x, {}));
    const auto factor = FactorMoments(moments, {});
    REQUIRE_OK(factor.status());
    for (const Scheme& scheme : Scheme::All()) {
      if (scheme.is_bf16()) continue;
      const MatrixLayout m = GateOf(scheme.Name().c_str(), hidden, rows);
      INFO(scheme.Name() << " " << rows << " x " << hidden);
      const auto rounded = (*device)->Gptq(m, w, *factor, GptqOptions());
      CHECK(rounded.has_value() == (scheme.scales != ScaleType::kE4M3));
      if (!rounded) continue;
      const auto expected = QuantizeGptq(m, w, *factor);
      REQUIRE_OK(expected.status());
      if (FusedOnCpu()) CHECK(Same(*rounded, *expected));
      CHECK(EqualShare(rounded->codes, expected->codes) > 0.9);
    }
  }
  CHECK((*device)->first_error().ok());
}

TEST_CASE("moments: the same bits as on the CPU") {
  const auto device = OfflineDevice::Open();
  REQUIRE_OK(device.status());
  const SmallExpert expert(700, 3);
  const auto on_device = (*device)->Expert(expert.layer, 700);
  REQUIRE(on_device != nullptr);
  REQUIRE_OK(on_device->Run(expert.weights, expert.x.data()));
  REQUIRE_OK(on_device->PrepareChanges(expert.token_weights));
  for (const bool down : {false, true}) {
    const int64_t k = down ? expert.layer.intermediate : expert.layer.hidden;
    offline::Floats inputs = expert.x;
    if (down) {
      inputs.resize(static_cast<size_t>(700 * k));
      REQUIRE_OK(on_device->Hidden(inputs.data()));
    }
    InputMoments expected(k);
    REQUIRE_OK(expected.Add(inputs, expert.token_weights));
    const auto moments = on_device->Moments(down);
    REQUIRE_OK(moments.status());
    CHECK(moments->tokens() == 700);
    int apart = 0;
    double most = 0, farthest = 0;
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        const double found = moments->lower()[i * k + j], right = expected.lower()[i * k + j];
        apart += found != right ? 1 : 0;
        most = std::max(most, std::abs(right));
        farthest = std::max(farthest, std::abs(found - right));
      }
    }
    if (FusedOnCpu()) CHECK(apart == 0);
    CHECK(farthest <= 1e-5 * most);
  }
}

TEST_CASE("an expert's changes: those of the CPU but for rounding") {
  const auto device = OfflineDevice::Open();
  REQUIRE_OK(device.status());
  PlainProducts products;
  for (const int64_t rows : {int64_t{900}, int64_t{33}}) {  // few tokens: no GPTQ
    const SmallExpert expert(rows, 4);
    offline::SensitivitySettings settings;
    for (const char* name : {"w2a16_g64_asym", "w3a16_g-1_asym", "w4a8_g128", "nvfp4", "bf16"}) {
      settings.schemes.push_back(*Scheme::Parse(name));
    }
    settings.probe = 1;
    const int64_t probe_rows = rows / 2;
    offline::Floats on_cpu = expert.x, on_device = expert.x;
    const auto cpu =
        offline::ExpertSensitivity(expert.layer, settings, expert.weights, expert.token_weights,
                                   probe_rows, {expert.pool.get(), &products}, &on_cpu);
    REQUIRE_OK(cpu.status());
    settings.device = device->get();
    const auto found =
        offline::ExpertSensitivity(expert.layer, settings, expert.weights, expert.token_weights,
                                   probe_rows, {expert.pool.get(), nullptr}, &on_device);
    REQUIRE_OK(found.status());  // without products: nothing fell back
    REQUIRE(found->delta.size() == cpu->delta.size());
    for (size_t i = 0; i < cpu->delta.size(); ++i) {
      INFO("delta " << i);
      CHECK(found->delta[i] == Approx(cpu->delta[i]).epsilon(2e-3));
    }
    const auto near = [&](const offline::Floats& a, const offline::Floats& b, size_t size,
                          double share) {
      REQUIRE(a.size() == size);
      REQUIRE(b.size() == size);
      double most = 0, sum = 0, apart = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        sum += double{b[i]} * b[i];
        apart += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
        most = std::max(most, std::abs(double{b[i]}));
      }
      CHECK(most > 0);
      CHECK(std::sqrt(apart / sum) < share);
    };
    const auto hidden = static_cast<size_t>(expert.layer.hidden);
    near(on_device, on_cpu, static_cast<size_t>(rows) * hidden, 1e-5);
    // A code that tips over changes a whole column of these.
    near(found->gate_up, cpu->gate_up, static_cast<size_t>(probe_rows) * hidden, 0.05);
    near(found->down, cpu->down, static_cast<size_t>(probe_rows) * hidden, 0.05);
  }
  CHECK((*device)->first_error().ok());
}

TEST_CASE("more experts under way than lanes") {
  const auto device = OfflineDevice::Open();
  REQUIRE_OK(device.status());
  std::vector<int> good(40, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < good.size(); ++t) {
    threads.emplace_back([&, t] {
      const SmallExpert expert(100, static_cast<uint32_t>(t));
      offline::Floats x = expert.x, y = expert.x;
      PlainProducts products;
      const offline::Compute compute{expert.pool.get(), &products};
      const bool ok =
          offline::ForwardExpert(expert.layer, expert.weights, compute, device->get(), &x).ok() &&
          offline::ForwardExpert(expert.layer, expert.weights, compute, nullptr, &y).ok();
      double apart = 0;
      for (size_t i = 0; i < x.size(); ++i) apart = std::max(apart, std::abs(double{x[i]} - y[i]));
      good[t] = ok && apart < 1e-4 ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int g : good) CHECK(g == 1);
  CHECK((*device)->first_error().ok());
}

TEST_CASE("calls that fail leave the search to the CPU, and nothing behind") {
  const MatrixLayout m = GateOf("w4a16_g128", 512, 64);
  std::mt19937 rng(8);
  const std::vector<float> w = RandomFloats(static_cast<size_t>(m.rows * m.k), &rng, 0.02f);
  const QuantizedMatrix expected = QuantizeHqq(m, w);
  const SmallExpert expert(600, 5);
  PlainProducts products;
  const auto factor = [&] {
    InputMoments moments(m.k);
    CHECK(moments.Add(Inputs(700, m.k, &rng), {}).ok());
    return *FactorMoments(moments, {});
  }();
  const QuantizedMatrix by_gptq = *QuantizeGptq(m, w, factor);
  offline::SensitivitySettings settings;
  settings.schemes = {*Scheme::Parse("w4a16_g-1_asym")};
  const long faults = SweepFaults(16, [&](OfflineDevice* device) {
    CHECK(Same(QuantizeHqq(m, w, {}, device), expected));
    const auto rounded = QuantizeGptq(m, w, factor, {}, device);
    REQUIRE_OK(rounded.status());
    if (FusedOnCpu()) CHECK(Same(*rounded, by_gptq));
    settings.device = device;
    offline::Floats x = expert.x;
    CHECK(offline::ExpertSensitivity(expert.layer, settings, expert.weights, expert.token_weights,
                                     0, {expert.pool.get(), &products}, &x)
              .ok());
  });
  CHECK(faults > 20);
}

}  // namespace
}  // namespace moert::test
