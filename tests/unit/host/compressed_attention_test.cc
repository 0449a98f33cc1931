// Attention to a window and to entries that stand for several positions: each kind of layer against
// plain loops, however the sequence is cut into steps.
#include "host/blocks/compressed_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "host/blocks/compressed_state.h"
#include "support/architecture_fixture.h"
#include "support/catch.h"
#include "support/changed_model.h"

namespace moert {
namespace {

using host::RowGroup;
using host::SequenceState;
using test::ArchitectureDir;

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;

// Neither a whole number of entries nor of panels.
constexpr int64_t kLength = 211;
constexpr int64_t kTopK = 6, kSpan = 21;

struct Layer {
  Layer(int index, int threads) : index(index) {
    config = *LoadHfConfig(ArchitectureDir("deepseek_v4"));
    config.indexer.top_k = kTopK;
    for (MixerConfig& mixer : config.mixers) mixer.span = kSpan;
    checkpoint = *Checkpoint::Open(ArchitectureDir("deepseek_v4"));
    pool = *CreateThreadPool({.threads = threads});
    rope = std::make_unique<host::Rope>(config.Rope(index));
    rope->Extend(kLength);
    auto loaded = host::LoadMixer(*checkpoint, config, index, rope.get());
    REQUIRE_OK(loaded.status());
    mixer = *std::move(loaded);
  }

  std::vector<float> Run(const std::vector<float>& x, int64_t step) {
    constexpr int64_t kCapacity = (kLength + 15) / 16 * 16;
    std::vector<std::unique_ptr<host::LayerState>> layers;
    for (int i = 0; i < index; ++i) layers.push_back(std::make_unique<host::LayerState>());
    layers.push_back(mixer->NewState(kCapacity));
    SequenceState state(kLength, kCapacity, std::move(layers));
    std::vector<float> out(x.size());
    for (int64_t at = 0; at < kLength; at += step) {
      const RowGroup group = {&state, 0, std::min(step, kLength - at)};
      const int64_t from = at * config.hidden_size;
      for (int again = 0; again < 2; ++again) {  // a step may be repeated
        mixer->Forward(pool.get(), {&group, 1}, &x[from], group.rows, &out[from]);
      }
      state.Advance(group.rows);
    }
    return out;
  }

  int index;
  HfConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<host::Rope> rope;
  std::unique_ptr<host::Mixer> mixer;
};

// The layer as its formulas are, in double precision.
class Plain {
 public:
  explicit Plain(const Layer& of)
      : of_(of), name_("layers." + std::to_string(of.index) + ".attn.") {}

  // Rows whose choice hangs on rounding are left empty.
  Rows Run(const Rows& x) {
    const HfConfig& c = of_.config;
    const MixerConfig& mixer = c.mixers[of_.index];
    const int heads = c.num_attention_heads;
    const bool chooses = mixer.kind == MixerKind::kCompressed && !mixer.ignores_index;
    const Rows latents = Normed(Times("wq_a", c.compressed.q_rank, x), "q_norm");
    Rows queries = Times("wq_b", heads * c.head_dim, latents);
    Rows keys = Normed(Times("wkv", c.head_dim, x), "kv_norm");
    for (size_t p = 0; p < x.size(); ++p) Rotate(p, 1, &keys[p], c.head_dim);
    Rows entries;
    if (mixer.rate > 0) entries = Entries("compressor.", c.head_dim, chooses, x);
    if (chooses) Index(latents, x);
    Rows out;
    for (size_t p = 0; p < x.size(); ++p) {
      const auto count = mixer.rate > 0 ? static_cast<int>(p + 1) / mixer.rate : 0;
      std::vector<int64_t> chosen;
      if (!Choose(p, count, chooses, &chosen)) {
        out.emplace_back();
        continue;
      }
      std::vector<const Vector*> seen;
      for (size_t k = p + 1 > kSpan ? p + 1 - kSpan : 0; k <= p; ++k) seen.push_back(&keys[k]);
      for (const int64_t e : chosen) seen.push_back(&entries[e]);
      out.push_back(Attend(p, &queries[p], seen));
    }
    return Times("wo_b", c.hidden_size, out);
  }

 private:
  std::vector<float> Read(const std::string& part, std::vector<int64_t> shape) {
    return *of_.checkpoint->ReadF32(name_ + part, shape);
  }
  Rows Times(const std::string& part, int64_t out, const Rows& x) {
    const auto in = static_cast<int64_t>(x[0].size());
    const auto w = Read(part + ".weight", {out, in});
    Rows y;
    for (const Vector& row : x) {
      y.emplace_back(row.empty() ? 0 : out);
      for (int64_t o = 0; o < static_cast<int64_t>(y.back().size()); ++o) {
        for (int64_t i = 0; i < in; ++i) y.back()[o] += w[o * in + i] * row[i];
      }
    }
    return y;
  }
  static double Root(const Vector& x, size_t from, size_t count) {
    double square = 0;
    for (size_t i = from; i < from + count; ++i) square += x[i] * x[i] / static_cast<double>(count);
    return std::sqrt(square + 1e-6);
  }
  Rows Normed(Rows x, const std::string& part) {
    const auto w = Read(part + ".weight", {static_cast<int64_t>(x[0].size())});
    for (Vector& row : x) {
      const double root = Root(row, 0, row.size());
      for (size_t i = 0; i < row.size(); ++i) row[i] *= w[i] / root;
    }
    return x;
  }
  // The last channels of every `dim`, forward or back.
  void Rotate(size_t position, double sign, Vector* x, int64_t dim) const {
    const std::vector<float>& frequencies = of_.rope->inverse_frequencies(0);
    const auto half = static_cast<int64_t>(frequencies.size());
    for (int64_t head = dim; head <= static_cast<int64_t>(x->size()); head += dim) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = sign * static_cast<float>(position) * frequencies[i];
        double &a = (*x)[head - 2 * (half - i)], &b = (*x)[head - 2 * (half - i) + 1];
        const double first = a;
        a = a * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + first * std::sin(angle);
      }
    }
  }
  Rows Entries(const std::string& part, int64_t dim, bool overlaps, const Rows& x) {
    const int64_t rate = of_.config.mixers[of_.index].rate, series = overlaps ? 2 * dim : dim;
    const Rows values = Times(part + "wkv", series, x), gates = Times(part + "wgate", series, x);
    const auto bias = Read(part + "ape", {rate, series});
    Rows entries;
    for (int64_t e = 0; (e + 1) * rate <= static_cast<int64_t>(x.size()); ++e) {
      Vector entry(dim);
      for (int64_t d = 0; d < dim; ++d) {
        double sum = 0;
        for (int64_t i = overlaps && e > 0 ? -rate : 0; i < rate; ++i) {
          const int64_t at = d + (overlaps && i >= 0 ? dim : 0);
          const double share =
              std::exp(gates[e * rate + i][at] + bias[(i + rate) % rate * series + at]);
          entry[d] += share * values[e * rate + i][at];
          sum += share;
        }
        entry[d] /= sum;
      }
      entries.push_back(entry);
    }
    entries = Normed(entries, part + "norm");
    for (size_t e = 0; e < entries.size(); ++e) Rotate(e * rate, 1, &entries[e], dim);
    return entries;
  }
  void Index(const Rows& latents, const Rows& x) {
    const IndexerConfig& i = of_.config.indexer;
    index_keys_ = Entries("indexer.compressor.", i.head_dim, true, x);
    index_queries_ = Times("indexer.wq_b", i.heads * i.head_dim, latents);
    index_weights_ = Times("indexer.weights_proj", i.heads, x);
    for (size_t p = 0; p < x.size(); ++p) Rotate(p, 1, &index_queries_[p], i.head_dim);
  }
  // False: two scores are too near to tell which is the better one.
  bool Choose(size_t p, int count, bool chooses, std::vector<int64_t>* chosen) const {
    std::vector<std::pair<double, int64_t>> scores;
    for (int64_t e = 0; e < count; ++e) {
      chosen->push_back(e);
      double score = 0;
      for (int h = 0; chooses && h < of_.config.indexer.heads; ++h) {
        double product = 0;
        for (size_t d = 0; d < index_keys_[e].size(); ++d) {
          product += index_queries_[p][h * index_keys_[e].size() + d] * index_keys_[e][d];
        }
        score += index_weights_[p][h] * std::max(0.0, product);
      }
      scores.emplace_back(score, e);
    }
    if (!chooses || count <= kTopK) return true;
    std::sort(scores.begin(), scores.end(), std::greater<>());
    chosen->clear();
    for (int64_t i = 0; i < kTopK; ++i) chosen->push_back(scores[i].second);
    return scores[kTopK - 1].first - scores[kTopK].first > 1e-3;
  }
  Vector Attend(size_t p, Vector* queries, const std::vector<const Vector*>& seen) {
    const HfConfig& c = of_.config;
    const auto dim = static_cast<size_t>(c.head_dim);
    const auto sinks = Read("attn_sink", {c.num_attention_heads});
    Vector mixed(queries->size());
    for (int h = 0; h < c.num_attention_heads; ++h) {
      const double root = Root(*queries, h * dim, dim);
      for (size_t d = 0; d < dim; ++d) (*queries)[h * dim + d] /= root;
    }
    Rotate(p, 1, queries, c.head_dim);
    for (int h = 0; h < c.num_attention_heads; ++h) {
      double sum = std::exp(sinks[h]);
      for (const Vector* key : seen) {
        double score = 0;
        for (size_t d = 0; d < dim; ++d) score += (*queries)[h * dim + d] * (*key)[d];
        const double share = std::exp(score / std::sqrt(static_cast<double>(dim)));
        sum += share;
        for (size_t d = 0; d < dim; ++d) mixed[h * dim + d] += share * (*key)[d];
      }
      for (size_t d = 0; d < dim; ++d) mixed[h * dim + d] /= sum;
    }
    Rotate(p, -1, &mixed, c.head_dim);
    const int64_t groups = c.compressed.groups, rank = c.compressed.group_rank;
    const auto in = static_cast<int64_t>(mixed.size()) / groups;
    const auto w = Read("wo_a.weight", {groups * rank, in});
    Vector out(groups * rank);
    for (int64_t o = 0; o < groups * rank; ++o) {
      for (int64_t i = 0; i < in; ++i) out[o] += w[o * in + i] * mixed[o / rank * in + i];
    }
    return out;
  }

  const Layer& of_;
  const std::string name_;
  Rows index_keys_, index_queries_, index_weights_;
};

TEST_CASE("each kind of layer gives what plain loops give, in any steps and on any threads") {
  for (const int index : {0, 1, 2}) {
    INFO("layer " << index);
    Layer two(index, 2), one(index, 1);
    const int64_t hidden = two.config.hidden_size;
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> x(kLength * hidden);
    for (float& v : x) v = normal(random);
    const std::vector<float> got = two.Run(x, kLength);
    for (const int64_t step : {1, 7, 16, 100}) CHECK(one.Run(x, step) == got);
    Rows rows;
    for (int64_t p = 0; p < kLength; ++p) {
      rows.emplace_back(x.begin() + p * hidden, x.begin() + (p + 1) * hidden);
    }
    const Rows want = Plain(two).Run(rows);
    int64_t compared = 0;
    for (int64_t p = 0; p < kLength; ++p) {
      compared += want[p].empty() ? 0 : 1;
      for (size_t i = 0; i < want[p].size(); ++i) {
        REQUIRE(got[p * hidden + i] == Approx(want[p][i]).margin(5e-5));
      }
    }
    CHECK(compared > kLength * 9 / 10);
  }
}

TEST_CASE(
    "behind the chosen entries' positions a model's logits are other ones, in front the same") {
  constexpr char kModel[] = "deepseek_v4";
  auto fields = test::ConfigFieldsOf(kModel);
  const int64_t all = (fields["index_topk"].get<int64_t>() + 1) * 4 - 1;
  fields["index_topk"] = 8;
  const std::vector<float> d = test::DifferencesWith(kModel, fields);
  CHECK(*std::max_element(d.begin(), d.begin() + all) < 1e-4f);
  CHECK(*std::max_element(d.begin() + all, d.end()) > 0.1f);
}

}  // namespace
}  // namespace moert
