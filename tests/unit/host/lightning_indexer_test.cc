// The positions that an indexer chooses: against plain loops, however the sequence is cut into
// steps, and what they are for a model.
#include "host/blocks/lightning_indexer.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "host/blocks/indexed_panels.h"
#include "support/architecture_fixture.h"
#include "support/catch.h"
#include "support/changed_model.h"

namespace moert {
namespace {

using host::ChosenBlocks;
using host::IndexedPanels;
using host::RowGroup;
using host::SequenceState;
using test::ArchitectureDir;

// More than one slice of scores, and sequences of which none ends with a panel.
constexpr int64_t kLengths[] = {2500, 1031};
constexpr int64_t kTopK = 300;

struct Inputs {
  std::vector<float> x, latents;  // [positions, hidden], [positions, q_rank]
};

Inputs RandomInputs(const HfConfig& config, int64_t positions, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Inputs in;
  in.x.resize(positions * config.hidden_size);
  in.latents.resize(positions * config.latent.q_rank);
  for (float& v : in.x) v = normal(random);
  for (float& v : in.latents) v = normal(random);
  return in;
}

struct Indexer {
  explicit Indexer(const char* name, int threads = 2) {
    auto loaded = LoadHfConfig(ArchitectureDir(name));
    REQUIRE_OK(loaded.status());
    config = *std::move(loaded);
    config.indexer.top_k = kTopK;
    auto opened = Checkpoint::Open(ArchitectureDir(name));
    REQUIRE_OK(opened.status());
    checkpoint = *std::move(opened);
    pool = *CreateThreadPool({.threads = threads});
    rope = std::make_unique<host::Rope>(config.rope);
    rope->Extend(kLengths[0]);
    auto block = host::LightningIndexer::Load(*checkpoint, config, 0, kName, rope.get());
    REQUIRE_OK(block.status());
    indexer = *std::move(block);
  }

  std::unique_ptr<SequenceState> NewSequence(int64_t tokens) const {
    std::vector<std::unique_ptr<host::LayerState>> layers;
    layers.push_back(
        std::make_unique<IndexedPanels>(1, 8, 16, config.indexer.head_dim, 1, tokens + 15));
    return std::make_unique<SequenceState>(tokens, tokens + 15, std::move(layers));
  }

  // The positions that each position sees. The sequences run side by side in steps of at most
  // `step` positions.
  std::vector<std::vector<std::vector<int32_t>>> Choose(const std::vector<Inputs>& in,
                                                        int64_t step) {
    std::vector<std::unique_ptr<SequenceState>> states;
    for (const int64_t length : kLengths) states.push_back(NewSequence(length));
    std::vector<std::vector<std::vector<int32_t>>> chosen(states.size());
    for (int64_t at = 0; at < kLengths[0]; at += step) {
      std::vector<RowGroup> groups;
      std::vector<float> x, latents;
      int64_t rows = 0;
      for (size_t s = 0; s < states.size(); ++s) {
        const int64_t count = std::min(step, kLengths[s] - at);
        if (count <= 0) continue;
        const int64_t hidden = config.hidden_size, rank = config.latent.q_rank;
        groups.push_back({states[s].get(), rows, count});
        x.insert(x.end(), &in[s].x[at * hidden], &in[s].x[at * hidden] + count * hidden);
        latents.insert(latents.end(), &in[s].latents[at * rank],
                       &in[s].latents[at * rank] + count * rank);
        rows += count;
      }
      indexer.Forward(pool.get(), groups, x.data(), latents.data(), rows);
      for (size_t g = 0; g < groups.size(); ++g) {
        const auto* state = static_cast<IndexedPanels*>(groups[g].sequence->layer(0));
        for (int64_t i = 0; i < groups[g].rows; ++i) {
          const ChosenBlocks& all = state->chosen();
          const auto row = i < all.first() ? absl::Span<const int32_t>() : all.Row(i, 0);
          chosen[g].emplace_back(row.begin(), row.end());
        }
        groups[g].sequence->Advance(groups[g].rows);
      }
    }
    return chosen;
  }

  static constexpr char kName[] = "model.layers.0.self_attn.indexer.";
  HfConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<host::Rope> rope;
  host::LightningIndexer indexer;
};

std::vector<double> Product(const std::vector<float>& w, const float* x, int64_t in) {
  std::vector<double> y(w.size() / in);
  for (size_t i = 0; i < w.size(); ++i) y[i / in] += double{w[i]} * x[i % in];
  return y;
}

// The formula of the paper in double precision, position by position.
class PlainIndexer {
 public:
  PlainIndexer(const Indexer& of, const Inputs& in, int64_t positions) : config_(of.config) {
    const int64_t hidden = config_.hidden_size, rank = config_.latent.q_rank;
    const int64_t heads = config_.indexer.heads, dim = config_.indexer.head_dim;
    const auto read = [&](const char* part, std::vector<int64_t> shape) {
      return *of.checkpoint->ReadF32(std::string(Indexer::kName) + part, shape);
    };
    const auto wq = read("wq_b.weight", {heads * dim, rank});
    const auto wk = read("wk.weight", {dim, hidden});
    const auto weights = read("weights_proj.weight", {heads, hidden});
    const auto scale = read("k_norm.weight", {dim}), bias = read("k_norm.bias", {dim});
    for (int64_t p = 0; p < positions; ++p) {
      const float* const x = &in.x[p * hidden];
      queries_.push_back(Product(wq, &in.latents[p * rank], rank));
      keys_.push_back(Product(wk, x, hidden));
      weights_.push_back(Product(weights, x, hidden));
      std::vector<double>& k = keys_.back();
      double mean = 0, square = 0;
      for (const double v : k) mean += v / static_cast<double>(dim);
      for (const double v : k) square += (v - mean) * (v - mean) / static_cast<double>(dim);
      for (int64_t d = 0; d < dim; ++d) {
        k[d] = (k[d] - mean) / std::sqrt(square + 1e-6) * scale[d] + bias[d];
      }
      Rotate(*of.rope, p, k.data());
      for (int64_t h = 0; h < heads; ++h) Rotate(*of.rope, p, queries_.back().data() + h * dim);
    }
  }

  // Scores of positions 0 to `position` for the row there.
  std::vector<double> Scores(int64_t position) const {
    const int64_t dim = config_.indexer.head_dim;
    std::vector<double> scores(position + 1);
    for (int64_t t = 0; t <= position; ++t) {
      for (int h = 0; h < config_.indexer.heads; ++h) {
        double product = 0;
        for (int64_t d = 0; d < dim; ++d) product += queries_[position][h * dim + d] * keys_[t][d];
        scores[t] += weights_[position][h] * std::max(0.0, product);
      }
    }
    return scores;
  }

 private:
  void Rotate(const host::Rope& rope, int64_t position, double* x) const {
    const std::vector<float>& frequencies = rope.inverse_frequencies(0);
    const size_t half = frequencies.size();
    for (size_t i = 0; i < half; ++i) {
      const bool pairs = config_.indexer.interleaved;
      double &a = x[pairs ? 2 * i : i], &b = x[pairs ? 2 * i + 1 : half + i];
      const double angle = static_cast<float>(position) * frequencies[i];
      const double c = std::cos(angle), s = std::sin(angle), turned = a * c - b * s;
      b = b * c + a * s;
      a = turned;
    }
  }

  const HfConfig& config_;
  std::vector<std::vector<double>> queries_, keys_, weights_;
};

TEST_CASE("the chosen positions are those of the best scores, in any steps and on any threads") {
  for (const char* name : {"deepseek_v32", "glm_moe_dsa"}) {
    INFO(name);
    Indexer two(name), one(name, 1);
    std::vector<Inputs> in;
    for (const int64_t length : kLengths) {
      in.push_back(RandomInputs(two.config, length, static_cast<uint32_t>(length)));
    }
    const auto chosen = two.Choose(in, kLengths[0]);
    CHECK(one.Choose(in, 211) == chosen);
    for (size_t s = 0; s < in.size(); ++s) {
      const PlainIndexer plain(two, in[s], kLengths[s]);
      REQUIRE(static_cast<int64_t>(chosen[s].size()) == kLengths[s]);
      for (int64_t p = 0; p < kTopK; ++p) CHECK(chosen[s][p].empty());
      for (int64_t p = kTopK; p < kLengths[s]; p += p < kTopK + 3 ? 1 : 97) {
        INFO(p);
        const std::vector<int32_t>& row = chosen[s][p];
        REQUIRE(static_cast<int64_t>(row.size()) == kTopK);
        CHECK(std::adjacent_find(row.begin(), row.end(), std::greater_equal<>()) == row.end());
        REQUIRE(row.back() <= p);
        const std::vector<double> scores = plain.Scores(p);
        std::vector<double> best = scores;
        std::nth_element(best.begin(), best.begin() + kTopK - 1, best.end(), std::greater<>());
        double least = best[0];
        for (const int32_t t : row) least = std::min(least, scores[t]);
        CHECK(least > best[kTopK - 1] - 1e-3);
      }
    }
  }
}

TEST_CASE("of equal scores the earlier positions, also where none is a number") {
  constexpr int64_t kRows = kTopK + 20;
  Indexer indexer("deepseek_v32", 1);
  Inputs in = RandomInputs(indexer.config, kRows, 1);
  std::fill(in.latents.begin(), in.latents.end(), 0.0f);  // all scores are 0
  in.x[(kRows - 1) * indexer.config.hidden_size] = NAN;   // in the last row none is a number
  const auto state = indexer.NewSequence(kRows);
  const RowGroup group = {state.get(), 0, kRows};
  indexer.indexer.Forward(indexer.pool.get(), {&group, 1}, in.x.data(), in.latents.data(), kRows);
  for (const int64_t row : {kRows - 2, kRows - 1}) {
    INFO(row);
    const auto chosen = static_cast<IndexedPanels*>(state->layer(0))->chosen().Row(row, 0);
    REQUIRE(static_cast<int64_t>(chosen.size()) == kTopK);
    for (int64_t i = 0; i < kTopK; ++i) CHECK(chosen[i] == i);
  }
}

TEST_CASE("behind index_topk positions a model's logits are other ones, in front the same") {
  for (const char* name : {"deepseek_v32", "glm_moe_dsa"}) {
    INFO(name);
    auto fields = test::ConfigFieldsOf(name);
    const int64_t top_k = fields["index_topk"];
    fields["index_topk"] = 24;
    const std::vector<float> d = test::DifferencesWith(name, fields);
    CHECK(*std::max_element(d.begin(), d.begin() + top_k) < 1e-4f);
    CHECK(*std::max_element(d.begin() + top_k, d.end()) > 0.1f);
  }
}

}  // namespace
}  // namespace moert
