// Rows of a MoE block on a device, and an expert that is rounded and passed there: the same as one
// by one, with and without pinned memory, and where calls fail.
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "offline/cuda/lanes.h"
#include "offline/expert_quantizer.h"
#include "offline/moe_block.h"
#include "offline/offline_device.h"
#include "offline_faults.h"
#include "offline_inputs.h"
#include "quant/quantized_matrix.h"
#include "route/grouping.h"
#include "tests/support/relative_error.h"

namespace moert::test {
namespace {

using offline::Floats;

/// No more pinned memory, for a scope.
struct NoPinning {
  NoPinning() { cuda::Buffer::LimitPinning(0); }
  ~NoPinning() { cuda::Buffer::LimitPinning(-1); }
};

bool SameFloats(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("staged copies of every size, pinned or not, there and back in the stream's order") {
  constexpr int64_t kHalf = offline::Staging::kHalfBytes;
  for (const bool pinned : {true, false}) {
    std::unique_ptr<NoPinning> no_pinning;
    if (!pinned) no_pinning = std::make_unique<NoPinning>();
    offline::LaneStream lane;
    REQUIRE(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking) == cudaSuccess);
    DeviceArray<uint8_t> a(static_cast<size_t>(5 * kHalf + 13)), b(static_cast<size_t>(kHalf));
    std::mt19937 rng(1);
    for (const int64_t size : {int64_t{0}, int64_t{1}, kHalf - 1, kHalf, kHalf + 1, 2 * kHalf,
                               3 * kHalf + 5, 5 * kHalf + 13}) {
      INFO(size << (pinned ? " bytes" : " bytes, not pinned"));
      std::vector<uint8_t> first(static_cast<size_t>(size)), second(100);
      for (uint8_t& v : first) v = static_cast<uint8_t>(rng());
      for (uint8_t& v : second) v = static_cast<uint8_t>(rng());
      const std::vector<uint8_t> sent = first, also_sent = second;
      REQUIRE_OK(lane.Upload(first.data(), size, a.get()));
      std::fill(first.begin(), first.end(), uint8_t{0});  // it was read
      REQUIRE_OK(lane.Upload(second.data(), 100, b.get()));
      std::fill(second.begin(), second.end(), uint8_t{0});
      REQUIRE_OK(lane.Download<uint8_t>(a.get(), size, first.data()));
      CHECK(first == sent);
      REQUIRE_OK(lane.Download<uint8_t>(b.get(), 100, second.data()));
      CHECK(second == also_sent);
    }
  }
}

/// A layer's experts, tokens and what these choose: some experts few, one nobody.
struct SmallBlock {
  static constexpr int kExperts = 9;
  MoeLayerSpec layer;
  std::vector<ExpertWeights> experts;
  RoutingResult routing;
  Floats inputs, residual;

  explicit SmallBlock(int64_t tokens) {
    std::mt19937 rng(17);
    layer.hidden = 264;
    layer.intermediate = 136;
    layer.num_experts = kExperts;
    const auto size = static_cast<size_t>(layer.hidden * layer.intermediate);
    for (int e = 0; e < kExperts; ++e) {
      experts.push_back({Rounded(RandomFloats(size, &rng, 0.1f)),
                         Rounded(RandomFloats(size, &rng, 0.1f)),
                         Rounded(RandomFloats(size, &rng, 0.1f))});
    }
    inputs = RandomFloats(static_cast<size_t>(tokens * layer.hidden), &rng);
    residual = RandomFloats(static_cast<size_t>(tokens * layer.hidden), &rng);
    routing.tokens = tokens;
    routing.top_k = 3;
    routing.num_experts = kExperts;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto first = static_cast<int32_t>(t % 7);
      for (const int32_t e : {first, first + 1, t % 50 == 0 ? 8 : (first + 3) % 7}) {
        routing.ids.push_back(e == 7 ? 0 : e);
        routing.weights.push_back(0.1f + 0.01f * static_cast<float>(rng() % 50));
      }
    }
    GroupByExpert(&routing);
  }

  ExpertReader reader() const {
    return [this](int e, ExpertWeights* out) {
      *out = experts[static_cast<size_t>(e)];
      return absl::OkStatus();
    };
  }

  /// Expert by expert.
  Floats Expected(OfflineDevice* device) const {
    Floats sums = residual;
    for (int e = 0; e < kExperts; ++e) {
      const offline::ExpertRows rows = offline::RowsOf(routing, e);
      if (rows.rows.empty()) continue;
      offline::ExpertMatrices weights;
      REQUIRE_OK(offline::WidenExpert(experts[static_cast<size_t>(e)], &weights));
      Floats x = offline::GatherRows(inputs.data(), layer.hidden, rows.rows);
      REQUIRE_OK(offline::ForwardExpert(layer, weights, {}, device, &x));
      for (size_t i = 0; i < rows.rows.size(); ++i) {
        for (int64_t c = 0; c < layer.hidden; ++c) {
          sums[static_cast<size_t>(rows.rows[i] * layer.hidden + c)] +=
              rows.weights[i] * x[i * static_cast<size_t>(layer.hidden) + static_cast<size_t>(c)];
        }
      }
    }
    return sums;
  }
};

TEST_CASE("a block's rows: the bits of expert by expert, pinned or not") {
  const auto pool = *CreateThreadPool({.threads = 3});
  for (const bool pinned : {true, false}) {
    std::unique_ptr<NoPinning> no_pinning;
    if (!pinned) no_pinning = std::make_unique<NoPinning>();
    const auto device = OfflineDevice::Open();
    REQUIRE_OK(device.status());
    for (const int64_t tokens : {int64_t{1}, int64_t{333}, int64_t{40000}}) {
      INFO(tokens << (pinned ? " rows" : " rows, not pinned"));
      const SmallBlock block(tokens);
      Floats residual = block.residual;
      std::vector<uint8_t> done(static_cast<size_t>(tokens), 0);
      REQUIRE_OK(
          (*device)->AddExperts({block.layer, block.routing, block.inputs.data(), residual.data()},
                                block.reader(), pool.get(), &done));
      CHECK(std::count(done.begin(), done.end(), 1) == tokens);
      CHECK(SameFloats(residual, block.Expected(device->get())));
    }
    CHECK((*device)->first_error().ok());
  }
}

TEST_CASE("a reader's error is the block's, and no row is touched") {
  const auto pool = *CreateThreadPool({.threads = 2});
  const auto device = OfflineDevice::Open();
  REQUIRE_OK(device.status());
  const SmallBlock block(100);
  Floats residual = block.residual;
  std::vector<uint8_t> done(100, 0);
  const ExpertReader read = [&](int e, ExpertWeights* out) {
    return e == 5 ? absl::DataLossError("gone") : block.reader()(e, out);
  };
  const absl::Status status = (*device)->AddExperts(
      {block.layer, block.routing, block.inputs.data(), residual.data()}, read, pool.get(), &done);
  CHECK(status == absl::DataLossError("gone"));
  CHECK(std::count(done.begin(), done.end(), 1) == 0);
  CHECK(SameFloats(residual, block.residual));
  CHECK((*device)->first_error().ok());
}

/// An expert of SmallExpert's by GPTQ.
struct Passed {
  std::vector<std::byte> record;
  Floats outputs;
  offline::GptqOutcome outcome;
};

Passed Pass(const SmallExpert& expert, const RecordLayout& layout, OfflineDevice* device) {
  Passed passed;
  passed.record.assign(static_cast<size_t>(layout.bytes), std::byte{0});
  passed.outputs = expert.x;
  PlainProducts products;
  const auto outcome = offline::PassExpertGptq(expert.layer, layout, expert.weights,
                                               expert.token_weights, {expert.pool.get(), &products},
                                               device, passed.record.data(), &passed.outputs);
  REQUIRE_OK(outcome.status());
  passed.outcome = *outcome;
  return passed;
}

RecordLayout LayoutOf(const SmallExpert& expert, const char* scheme) {
  return *MakeRecordLayout(expert.layer.hidden, expert.layer.intermediate,
                           ExpertFormat::Uniform(*Scheme::Parse(scheme)));
}

/// Relative, of vectors.
double Apart(const Floats& a, const Floats& b) {
  REQUIRE(a.size() == b.size());
  return RelativeError(a, b);
}

TEST_CASE("an expert rounded and passed on the device: the CPU's but for rounding") {
  for (const char* scheme : {"w4a16_g128", "w3a16_g-1_asym", "nvfp4", "bf16", "w8a8"}) {
    for (const int64_t rows : {int64_t{700}, int64_t{40}}) {  // few tokens: hqq
      INFO(scheme << ", " << rows << " rows");
      const SmallExpert expert(rows, 11);
      const RecordLayout layout = LayoutOf(expert, scheme);
      const Passed on_cpu = Pass(expert, layout, nullptr);
      Passed pinned;
      for (const bool pin : {true, false}) {
        std::unique_ptr<NoPinning> no_pinning;
        if (!pin) no_pinning = std::make_unique<NoPinning>();
        const auto device = OfflineDevice::Open();
        REQUIRE_OK(device.status());
        const Passed found = Pass(expert, layout, device->get());
        CHECK((*device)->first_error().ok());
        CHECK(found.outcome.gptq_matrices == on_cpu.outcome.gptq_matrices);
        CHECK(found.outcome.fallback_matrices == on_cpu.outcome.fallback_matrices);
        // A sum that is rounded otherwise tips a few codes of down over.
        double equal = 0;
        for (size_t i = 0; i < found.record.size(); ++i) {
          equal += found.record[i] == on_cpu.record[i] ? 1 : 0;
        }
        CHECK(equal > 0.9 * static_cast<double>(found.record.size()));
        CHECK(Apart(found.outputs, on_cpu.outputs) < 0.05);
        // A run that is continued passes the record that was written.
        Floats x = expert.x;
        PlainProducts products;
        const auto again =
            offline::ForwardRecord(expert.layer, layout, found.record.data(), &x, rows,
                                   {expert.pool.get(), &products}, device->get());
        REQUIRE_OK(again.status());
        CHECK(SameFloats(*again, found.outputs));
        if (pin) {
          pinned = found;
        } else {
          CHECK(found.record == pinned.record);
          CHECK(SameFloats(found.outputs, pinned.outputs));
        }
      }
    }
  }
}

TEST_CASE("calls that fail leave rows and experts to the CPU, and nothing behind") {
  const auto pool = *CreateThreadPool({.threads = 1});  // the n-th call is the same each time
  const SmallBlock block(500);
  const SmallExpert expert(600, 12);
  const RecordLayout layout = LayoutOf(expert, "w4a16_g-1_asym");
  const Floats expected = [&] {
    const auto device = OfflineDevice::Open();
    REQUIRE_OK(device.status());
    return block.Expected(device->get());
  }();
  const Passed on_cpu = Pass(expert, layout, nullptr);
  const auto hidden = static_cast<size_t>(block.layer.hidden);
  const long faults = SweepFaults(6, [&](OfflineDevice* device) {
    Floats residual = block.residual;
    std::vector<uint8_t> done(500, 0);
    CHECK(device
              ->AddExperts({block.layer, block.routing, block.inputs.data(), residual.data()},
                           block.reader(), pool.get(), &done)
              .ok());
    int wrong = 0;
    for (size_t row = 0; row < done.size(); ++row) {
      const Floats& right = done[row] != 0 ? expected : block.residual;
      wrong += std::memcmp(residual.data() + row * hidden, right.data() + row * hidden,
                           hidden * sizeof(float)) != 0;
    }
    CHECK(wrong == 0);
    CHECK(Apart(Pass(expert, layout, device).outputs, on_cpu.outputs) < 0.05);
  });
  CHECK(faults > 60);
}

}  // namespace
}  // namespace moert::test
