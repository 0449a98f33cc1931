// A host with kernels of its own: libmoert keeps the experts in a quarter of their memory and
// brings ahead what the next layer will use; the products below are the host's. Their results are
// compared, bit for bit, with an Engine's for the same input.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "moert/engine.h"
#include "moert/expert_store.h"
#include "moert/prefetcher.h"
#include "moert/router.h"
#include "moert/strategy.h"
#include "moert/thread_pool.h"
#include "tiny_model.h"

namespace {

using moert::ExpertKey;

/// Weight (row, k) of a bf16 matrix in a record: row blocks of 16, each in pieces of 16 x 16 as a
/// tensor core takes them (docs/reference/layout.md).
float Weight(const moert::ExpertView& expert, const moert::MatrixLayout& m, int64_t row,
             int64_t k) {
  const int64_t lane = row % 8 * 4 + k % 8 / 2, pair = k % 16 / 8 * 2 + row % 16 / 8;
  const int64_t index = row / 16 * 16 * m.padded_k + k / 16 * 256 + lane * 8 + pair * 2 + k % 2;
  uint16_t bits;
  std::memcpy(&bits, expert.record + m.weight_offset + 2 * index, 2);
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

/// The host's product: y = W x, one row after another.
std::vector<float> Product(const moert::ExpertView& expert, const moert::MatrixLayout& m,
                           const std::vector<float>& x) {
  std::vector<float> y(m.rows);
  for (int64_t row = 0; row < m.rows; ++row) {
    double sum = 0;
    for (int64_t k = 0; k < m.k; ++k) sum += double{Weight(expert, m, row, k)} * x[k];
    y[row] = static_cast<float>(sum);
  }
  return y;
}

std::vector<float> Expert(const moert::ExpertView& expert, const std::vector<float>& x) {
  std::vector<float> h = Product(expert, expert.layout->gate, x);
  const std::vector<float> up = Product(expert, expert.layout->up, x);
  for (size_t i = 0; i < h.size(); ++i) {
    h[i] = static_cast<float>(h[i] / (1.0 + std::exp(-double{h[i]})) * up[i]);
  }
  return Product(expert, expert.layout->down, h);
}

// The host takes it by value. NOLINTNEXTLINE(performance-unnecessary-value-param)
absl::StatusOr<std::vector<float>> Run(std::shared_ptr<const moert::ExpertSource> source) {
  const moert::MoeModelSpec& model = source->model();
  const int64_t record = source->layout(0, 0, 0).bytes + moert::kRecordAlignment;
  auto store =
      moert::ExpertStore::Create(source, {.budget_bytes = model.total_experts() / 4 * record});
  if (!store.ok()) return store.status();
  auto strategy = moert::MakeStrategy("fate");
  if (!strategy.ok()) return strategy.status();
  auto prefetcher = moert::Prefetcher::Create(strategy->prefetch.get(), store->get(), {});
  if (!prefetcher.ok()) return prefetcher.status();
  auto pool = moert::CreateThreadPool({.threads = 1});
  if (!pool.ok()) return pool.status();
  auto gates = tiny::Gates::Read(*source);
  if (!gates.ok()) return gates.status();
  auto router = moert::Router::Create(&model, gates->gates, gates->biases, pool->get());
  if (!router.ok()) return router.status();

  const moert::Phase phase = moert::Phase::kDecode;
  std::vector<float> outputs;
  moert::RoutingResult routing;
  for (int token = 0; token < tiny::kTokens; ++token) {
    std::vector<float> x = tiny::Input(token);
    for (int layer = 0; layer < model.num_layers(); ++layer) {
      const bool next_gate = (*prefetcher)->wants_next_gate(phase);
      if (auto s = (*router)->Route(layer, x.data(), 1, {}, {}, {}, next_gate, &routing); !s.ok()) {
        return s;
      }
      if (auto s = (*prefetcher)->Observe(layer, phase, routing); !s.ok()) return s;
      std::vector<ExpertKey> keys;
      for (const int32_t e : routing.ids) keys.push_back({layer, e});
      auto lease = (*store)->Fetch(keys);  // pinned until the end of this block
      if (!lease.ok()) return lease.status();
      if (auto s = (*prefetcher)->Predict(layer, phase, routing); !s.ok()) return s;
      std::vector<float> y(x.size(), 0);
      for (size_t j = 0; j < keys.size(); ++j) {
        const std::vector<float> part = Expert(lease->experts()[j], x);
        for (size_t i = 0; i < y.size(); ++i) y[i] += routing.weights[j] * part[i];
      }
      for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];  // the residual stream
    }
    (*prefetcher)->EndStep();
    outputs.insert(outputs.end(), x.begin(), x.end());
  }
  const moert::StoreStats stats = (*store)->stats();
  std::printf(
      "%d lookups, %d hits, %d loads, %d of %d experts fit\n", static_cast<int>(stats.lookups),
      static_cast<int>(stats.hits_resident + stats.hits_prefetched), static_cast<int>(stats.loads),
      static_cast<int>((*store)->slots()), static_cast<int>(model.total_experts()));
  return outputs;
}

}  // namespace

int main() { return tiny::CompareWithEngine(Run); }
