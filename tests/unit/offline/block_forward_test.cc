// Rows of a MoE block on a device, over a runtime that does everything as late as it may: the sums
// of expert by expert, in parts, with little memory, and where calls fail. The kernels are here.
#include "offline/cuda/block_forward.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "exec/cuda/route/device_routing.h"
#include "kernels/cuda/offline/block_rows.h"
#include "kernels/cuda/offline/dense_product.h"
#include "late_runtime.h"
#include "moert/thread_pool.h"
#include "route/grouping.h"
#include "support/catch.h"

namespace moert::cuda {
namespace {

template <typename Work>
int Launch(CUstream_st* stream, Work work) {
  if (test::runtime.Fails()) return cudaErrorLaunchOutOfResources;
  test::runtime.Enqueue(stream, std::move(work));
  return cudaSuccess;
}

}  // namespace

int LaunchWiden(const uint16_t* from, int64_t count, float* to, CUstream_st* stream) {
  return Launch(stream, [=] {
    for (int64_t i = 0; i < count; ++i) to[i] = Bf16ToF32(from[i]);
  });
}
int LaunchGatherRows(const float* from, const int32_t* rows, int64_t first, int64_t count,
                     int64_t columns, float* to, CUstream_st* stream) {
  return Launch(stream, [=] {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to + i * columns, from + (rows[i] - first) * columns,
                  static_cast<size_t>(columns) * sizeof(float));
    }
  });
}
int LaunchAddRows(const float* from, const int32_t* rows, const float* weights, int64_t first,
                  int64_t count, int64_t columns, float* to, CUstream_st* stream) {
  return Launch(stream, [=] {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t c = 0; c < columns; ++c) {
        to[(rows[i] - first) * columns + c] += weights[i] * from[i * columns + c];
      }
    }
  });
}
int LaunchProduct(const DenseMatrix& a, const DenseMatrix& b, float* c, int64_t m, int64_t n,
                  int64_t k, CUstream_st* stream) {
  return Launch(stream, [=] {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0;
        for (int64_t p = 0; p < k; ++p) sum += a.data[i * a.stride + p] * b.data[j * b.stride + p];
        c[i * n + j] = sum;
      }
    }
  });
}
int LaunchActivate(const DeviceActivation&, const float* gate, const float* up, const float*,
                   float* out, int64_t count, CUstream_st* stream) {
  return Launch(stream, [=] {
    for (int64_t i = 0; i < count; ++i) out[i] = (gate[i] > 0 ? gate[i] : 0) * up[i];
  });
}

// Functions of the same files, not called.
int LaunchAddProduct(const DenseMatrix&, const DenseMatrix&, float*, int64_t, int64_t, int64_t,
                     int64_t, CUstream_st*) {
  return cudaErrorUnknown;
}
int LaunchMoments(const float*, const float*, int64_t, int64_t, double*, CUstream_st*) {
  return cudaErrorUnknown;
}
int LaunchSquareSums(float*, const float*, int64_t, int64_t, double*, CUstream_st*) {
  return cudaErrorUnknown;
}

}  // namespace moert::cuda

namespace moert::offline {
namespace {

using test::runtime;

/// Wide enough for slices of a few rows: 2^19 floats are on their way at once.
constexpr int64_t kHidden = int64_t{1} << 16, kIntermediate = 2;
constexpr int kExperts = 5;

struct Block {
  MoeLayerSpec layer;
  std::vector<ExpertWeights> experts{kExperts};
  RoutingResult routing;
  std::vector<float> inputs, residual;

  Block(int64_t tokens, int64_t hidden) {
    std::mt19937 rng(5);
    const auto random = [&rng] { return static_cast<float>(rng() % 17) - 8; };
    layer.hidden = hidden;
    layer.intermediate = kIntermediate;
    layer.num_experts = kExperts;
    for (ExpertWeights& e : experts) {
      for (std::vector<uint16_t>* w : {&e.gate, &e.up, &e.down}) {
        for (int64_t i = 0; i < hidden * kIntermediate; ++i) {
          w->push_back(F32ToBf16(random() / 64));
        }
      }
    }
    for (int64_t i = 0; i < tokens * hidden; ++i) {
      inputs.push_back(random());
      residual.push_back(random() * 0.3f);
    }
    routing.tokens = tokens;
    routing.top_k = 2;
    routing.num_experts = kExperts;
    for (int64_t t = 0; t < tokens; ++t) {  // nobody chooses expert 3
      const auto first = static_cast<int32_t>(t % 3);
      for (const int32_t e : {first, t % 4 == 0 ? 4 : (first + 1) % 3}) routing.ids.push_back(e);
      for (int j = 0; j < 2; ++j)
        routing.weights.push_back(0.1f * static_cast<float>(1 + rng() % 7));
    }
    GroupByExpert(&routing);
  }

  /// Expert by expert.
  std::vector<float> Expected() const {
    std::vector<float> sums = residual;
    const int64_t hidden = layer.hidden;
    for (int e = 0; e < kExperts; ++e) {
      const ExpertWeights& w = experts[static_cast<size_t>(e)];
      for (int32_t i = routing.offsets[e]; i < routing.offsets[e + 1]; ++i) {
        const int64_t row = routing.grouped_tokens[i];
        const float* const x = inputs.data() + row * hidden;
        float h[kIntermediate];
        for (int64_t j = 0; j < kIntermediate; ++j) {
          float gate = 0, up = 0;
          for (int64_t p = 0; p < hidden; ++p) {
            gate += x[p] * Bf16ToF32(w.gate[j * hidden + p]);
            up += x[p] * Bf16ToF32(w.up[j * hidden + p]);
          }
          h[j] = (gate > 0 ? gate : 0) * up;
        }
        for (int64_t c = 0; c < hidden; ++c) {
          float y = 0;
          for (int64_t j = 0; j < kIntermediate; ++j) {
            y += h[j] * Bf16ToF32(w.down[c * kIntermediate + j]);
          }
          sums[row * hidden + c] += routing.weights[routing.grouped_slots[i]] * y;
        }
      }
    }
    return sums;
  }
};

/// The rows of a block behind it.
struct Run {
  absl::Status status, read;
  std::vector<float> residual;
  std::vector<uint8_t> done;

  Run(const Block& block, ThreadPool* pool, Lanes<ExpertLane>* lanes,
      const ExpertReader& read_expert = nullptr, const BlockLimits& limits = BlockLimits())
      : residual(block.residual), done(static_cast<size_t>(block.routing.tokens), 0) {
    const ExpertReader stored = [&block](int e, ExpertWeights* out) {
      *out = block.experts[static_cast<size_t>(e)];
      return absl::OkStatus();
    };
    const BlockRows rows = {block.layer, block.routing, block.inputs.data(), residual.data()};
    BlockForward forward(0, rows, read_expert ? read_expert : stored, pool, lanes, limits);
    status = forward.Run(&done);
    read = forward.read_error();
  }
  int64_t count() const { return std::count(done.begin(), done.end(), 1); }
  /// Every row is the one or the other, as `done` says.
  bool Right(const Block& block, const std::vector<float>& expected) const {
    const auto hidden = static_cast<size_t>(block.layer.hidden);
    for (size_t row = 0; row < done.size(); ++row) {
      const std::vector<float>& from = done[row] != 0 ? expected : block.residual;
      if (std::memcmp(residual.data() + row * hidden, from.data() + row * hidden,
                      hidden * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }
};

struct Fixture {
  explicit Fixture(int threads) : pool(*CreateThreadPool({.threads = threads})) {
    runtime.Begin();
    REQUIRE_OK(lanes.Init(2));
  }
  const std::unique_ptr<ThreadPool> pool;
  Lanes<ExpertLane> lanes;
};

TEST_CASE("all rows have the sums of expert by expert, whatever the threads and slices") {
  for (const int threads : {1, 3}) {
    Fixture f(threads);
    for (const auto& [tokens, hidden] :
         {std::pair<int64_t, int64_t>{1, 8}, {17000, 8}, {11, kHidden}}) {
      for (const bool refuses : {false, true}) {
        INFO(tokens << " rows of " << hidden << ", " << threads << " threads");
        const Block block(tokens, hidden);
        runtime.refuses_pinning = refuses;
        const size_t left = runtime.left();
        const Run run(block, f.pool.get(), &f.lanes);
        REQUIRE_OK(run.status);
        CHECK(run.count() == tokens);
        CHECK(run.Right(block, block.Expected()));
        CHECK(runtime.left() <= left + 6);  // two lanes' memory and events
      }
    }
    f.lanes.Clear();
    CHECK(runtime.left() == 0);
  }
}

TEST_CASE("parts of rows, one expert at a time, products of few rows: the same sums") {
  Fixture f(2);
  const Block block(1000, 8);
  const std::vector<float> expected = block.Expected();
  const int64_t expert = 3 * 8 * kIntermediate * static_cast<int64_t>(sizeof(uint16_t));
  for (const int64_t rows : {1000, 333, 1}) {
    for (const int64_t experts : {1, 3}) {
      for (const int64_t together : {7, 16384}) {
        INFO(rows << " rows, " << experts << " experts, products of " << together);
        const BlockLimits limits = {rows * 64, experts * expert, together};
        const Run run(block, f.pool.get(), &f.lanes, nullptr, limits);
        REQUIRE_OK(run.status);
        CHECK(run.count() == 1000);
        CHECK(run.Right(block, expected));
      }
    }
  }
}

TEST_CASE("with little memory rows go in parts, and with too little not at all") {
  Fixture f(2);
  const Block block(17000, 8);
  const std::vector<float> expected = block.Expected();
  // Sets of weights, one expert's, and 16,384 rows of it are 1.5 MB; all rows are 1.1 MB.
  for (const int64_t free : {int64_t{8} << 20, int64_t{2000} << 10, int64_t{100} << 10}) {
    INFO(free << " bytes");
    runtime.Begin();
    runtime.device_bytes = free;
    std::atomic<int> reads{0};
    const Run run(block, f.pool.get(), &f.lanes, [&](int e, ExpertWeights* out) {
      ++reads;
      *out = block.experts[static_cast<size_t>(e)];
      return absl::OkStatus();
    });
    const bool enough = free > 1 << 20;
    CHECK(run.status.ok() == enough);
    CHECK(run.count() == (enough ? 17000 : 0));
    CHECK(run.Right(block, expected));
    if (free == 8 << 20) CHECK(reads == 4);  // each that is chosen once
    if (free == 2000 << 10) CHECK(reads > 4);
  }
}

TEST_CASE("a reader's error is its own, and touches no row") {
  Fixture f(2);
  const Block block(100, 8);
  const Run run(block, f.pool.get(), &f.lanes, [&](int e, ExpertWeights* out) {
    *out = block.experts[static_cast<size_t>(e)];
    return e == 1 ? absl::DataLossError("gone") : absl::OkStatus();
  });
  CHECK(run.status.ok());
  CHECK(run.read == absl::DataLossError("gone"));
  CHECK(run.count() == 0);
  CHECK(run.Right(block, block.residual));
}

TEST_CASE("any call that fails leaves rows whole or as they were, and the next block is right") {
  const Block block(11, kHidden);
  const std::vector<float> expected = block.Expected();
  int partly = 0;
  for (const bool lasting : {false, true}) {
    for (int n = 1;; ++n) {
      INFO("call " << n << (lasting ? " and later" : ""));
      Fixture f(1);
      runtime.Begin(n, lasting);
      const Run run(block, f.pool.get(), &f.lanes);
      const bool failed = runtime.calls() >= n;
      CHECK(run.Right(block, expected));
      CHECK(run.read.ok());
      if (run.status.ok()) CHECK(run.count() == 11);
      partly += run.count() > 0 && run.count() < 11;
      runtime.Begin();
      const Run next(block, f.pool.get(), &f.lanes);
      REQUIRE_OK(next.status);
      CHECK(next.Right(block, expected));
      CHECK(next.count() == 11);
      f.lanes.Clear();
      CHECK(runtime.left() == 0);
      if (!failed) {
        CHECK(n > 60);
        break;
      }
    }
  }
  CHECK(partly > 0);
}

}  // namespace
}  // namespace moert::offline
