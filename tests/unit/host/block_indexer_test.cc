// The blocks that an indexer chooses: against plain loops, however the sequence is cut into steps,
// and what they are for a model.
#include "host/blocks/block_indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "host/blocks/indexed_panels.h"
#include "support/architecture_fixture.h"
#include "support/catch.h"
#include "support/changed_model.h"

namespace moert {
namespace {

using host::IndexedPanels;
using host::RowGroup;
using host::SequenceState;
using test::ArchitectureDir;

constexpr char kName[] = "language_model.model.layers.1.self_attn.";
// More than one slice of scores, and a sequence that ends neither with a block nor with a panel.
constexpr int64_t kLength = 2501;
constexpr int64_t kTopK = 40;
constexpr int kLayer = 0;  // of the states

struct Indexer {
  Indexer(int64_t block_size, int64_t local_blocks, int threads) {
    auto loaded = LoadHfConfig(ArchitectureDir("minimax_m3_vl"));
    REQUIRE_OK(loaded.status());
    config = *std::move(loaded);
    config.indexer.top_k = kTopK;
    config.indexer.block_size = block_size;
    config.indexer.local_blocks = local_blocks;
    auto opened = Checkpoint::Open(ArchitectureDir("minimax_m3_vl"));
    REQUIRE_OK(opened.status());
    checkpoint = *std::move(opened);
    pool = *CreateThreadPool({.threads = threads});
    rope = std::make_unique<host::Rope>(config.rope);
    rope->Extend(kLength);
    auto block = host::BlockIndexer::Load(*checkpoint, config, kLayer, kName, rope.get());
    REQUIRE_OK(block.status());
    indexer = *std::move(block);
  }

  // By position and head; empty where a position sees all.
  std::vector<std::vector<std::vector<int32_t>>> Choose(const std::vector<float>& x, int64_t step) {
    std::vector<std::unique_ptr<host::LayerState>> layers;
    layers.push_back(std::make_unique<IndexedPanels>(config.indexer.heads, 8, 16,
                                                     config.indexer.head_dim,
                                                     config.indexer.block_size, kLength + 15));
    SequenceState state(kLength, kLength + 15, std::move(layers));
    std::vector<std::vector<std::vector<int32_t>>> chosen;
    const int64_t hidden = config.hidden_size, length = static_cast<int64_t>(x.size()) / hidden;
    for (int64_t at = 0; at < length; at += step) {
      const RowGroup group = {&state, 0, std::min(step, length - at)};
      indexer.Forward(pool.get(), {&group, 1}, &x[at * hidden], group.rows);
      const host::ChosenBlocks& all = static_cast<IndexedPanels*>(state.layer(kLayer))->chosen();
      for (int64_t i = 0; i < group.rows; ++i) {
        chosen.emplace_back(config.indexer.heads);
        for (int head = 0; i >= all.first() && head < config.indexer.heads; ++head) {
          const auto row = all.Row(i, head);
          chosen.back()[head].assign(row.begin(), row.end());
        }
      }
      state.Advance(group.rows);
    }
    return chosen;
  }

  HfConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<host::Rope> rope;
  host::BlockIndexer indexer;
};

std::vector<float> RandomInput(int64_t hidden, int64_t positions) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(hidden * positions);
  for (float& v : x) v = normal(random);
  return x;
}

// Heads of each position behind norm and RoPE, in double precision.
std::vector<std::vector<double>> PlainHeads(const Indexer& of, const std::vector<float>& x,
                                            const std::string& part, int heads) {
  const int64_t hidden = of.config.hidden_size, dim = of.config.indexer.head_dim;
  const auto w =
      *of.checkpoint->ReadF32(kName + ("index_" + part) + "_proj.weight", {heads * dim, hidden});
  const auto norm = *of.checkpoint->ReadF32(kName + ("index_" + part) + "_norm.weight", {dim});
  const std::vector<float>& frequencies = of.rope->inverse_frequencies(0);
  const size_t half = frequencies.size();
  std::vector<std::vector<double>> out;
  for (int64_t p = 0; p * hidden < static_cast<int64_t>(x.size()); ++p) {
    std::vector<double> y(heads * dim);
    for (size_t i = 0; i < w.size(); ++i)
      y[i / hidden] += double{w[i]} * x[p * hidden + i % hidden];
    for (int h = 0; h < heads; ++h) {
      double* const head = &y[h * dim];
      double square = 0;
      for (int64_t d = 0; d < dim; ++d) square += head[d] * head[d] / static_cast<double>(dim);
      for (int64_t d = 0; d < dim; ++d) head[d] *= (1.0 + norm[d]) / std::sqrt(square + 1e-6);
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<float>(p) * frequencies[i];
        const double c = std::cos(angle), s = std::sin(angle), a = head[i], b = head[half + i];
        head[i] = a * c - b * s;
        head[half + i] = b * c + a * s;
      }
    }
    out.push_back(std::move(y));
  }
  return out;
}

TEST_CASE("the chosen blocks are those of the best scores, in any steps and on any threads") {
  for (const auto& [block_size, local] : {std::pair{3, 1}, std::pair{16, 0}, std::pair{5, 2}}) {
    INFO("blocks of " << block_size << ", " << local << " local");
    Indexer two(block_size, local, 2), one(block_size, local, 1);
    const int64_t dim = two.config.indexer.head_dim, all = kTopK * block_size;
    const std::vector<float> x = RandomInput(two.config.hidden_size, kLength);
    const auto chosen = two.Choose(x, kLength);
    CHECK(one.Choose(x, 211) == chosen);
    REQUIRE(static_cast<int64_t>(chosen.size()) == kLength);
    const auto queries = PlainHeads(two, x, "q", 2), keys = PlainHeads(two, x, "k", 1);
    for (int64_t p = 0; p < all; ++p) CHECK(chosen[p][0].empty());
    for (int64_t p = all; p < kLength; p += p < all + 4 ? 1 : 97) {
      const int64_t own = p / block_size;
      for (int head = 0; head < 2; ++head) {
        INFO(p << " head " << head);
        std::vector<double> scores(own + 1, -std::numeric_limits<double>::infinity());
        for (int64_t t = 0; t <= p; ++t) {
          double product = 0;
          for (int64_t d = 0; d < dim; ++d) product += queries[p][head * dim + d] * keys[t][d];
          scores[t / block_size] = std::max(scores[t / block_size], product);
        }
        for (int64_t b = own - local + 1; b <= own; ++b) scores[b] = 1e9;
        const std::vector<int32_t>& row = chosen[p][head];
        REQUIRE(static_cast<int64_t>(row.size()) == kTopK);
        CHECK(std::adjacent_find(row.begin(), row.end(), std::greater_equal<>()) == row.end());
        REQUIRE(row.back() <= own);
        std::vector<double> best = scores;
        std::nth_element(best.begin(), best.begin() + kTopK - 1, best.end(), std::greater<>());
        double least = 1e9;
        for (const int32_t b : row) least = std::min(least, scores[b]);
        CHECK(least > best[kTopK - 1] - 1e-3);
        for (int64_t b = own - local + 1; b <= own; ++b) {
          CHECK(std::find(row.begin(), row.end(), b) != row.end());
        }
      }
    }
  }
}

TEST_CASE("where no score is a number, the earliest blocks and the local one") {
  Indexer indexer(3, 1, 1);
  constexpr int64_t kRows = kTopK * 3 + 20;
  std::vector<float> x = RandomInput(indexer.config.hidden_size, kRows);
  x[(kRows - 1) * indexer.config.hidden_size] = NAN;
  const auto chosen = indexer.Choose(x, kRows);
  for (const std::vector<int32_t>& row : chosen.back()) {
    REQUIRE(static_cast<int64_t>(row.size()) == kTopK);
    for (int64_t i = 0; i + 1 < kTopK; ++i) CHECK(row[i] == i);
    CHECK(row.back() == (kRows - 1) / 3);
  }
}

TEST_CASE(
    "behind the chosen blocks' positions a model's logits are other ones, in front the same") {
  constexpr char kModel[] = "minimax_m3_vl";
  auto fields = test::ConfigFieldsOf(kModel);
  nlohmann::json& sparse = fields["text_config"]["sparse_attention_config"];
  const int64_t all =
      sparse["sparse_topk_blocks"].get<int64_t>() * sparse["sparse_block_size"].get<int64_t>();
  sparse["sparse_topk_blocks"] = 8;
  const std::vector<float> d = test::DifferencesWith(kModel, fields);
  CHECK(*std::max_element(d.begin(), d.begin() + all) < 1e-4f);
  CHECK(*std::max_element(d.begin() + all, d.end()) > 0.1f);
}

}  // namespace
}  // namespace moert
