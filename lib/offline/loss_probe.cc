#include "offline/loss_probe.h"

#include <algorithm>
#include <cmath>

#include "base/checked_math.h"
#include "base/status_macros.h"

namespace moert::offline {
namespace {

// The logarithm of the sum of exponentials.
double LogSum(const float* logits, int64_t count) {
  const float largest = *std::max_element(logits, logits + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(double{logits[i]} - largest);
  return std::log(sum) + largest;
}

// Computes the distribution of logits: p, and returns the sum of p log p.
double Distribution(const float* logits, int64_t count, double* p) {
  const double total = LogSum(logits, count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double log_p = logits[i] - total;
    p[i] = std::exp(log_p);
    sum += p[i] * log_p;
  }
  return sum;
}

// The Kullback-Leibler divergence of the distribution of `logits` from p.
double Divergence(const double* p, double p_log_p, const float* logits, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += p[i] * logits[i];
  return std::max(p_log_p - sum + LogSum(logits, count), 0.0);
}

}  // namespace

LossProbe::LossProbe(const ModelContext& context, OfflineDevice* device, int64_t window,
                     int64_t tokens)
    : context_(context), device_(device), tokens_(tokens), copies_(context, window) {
  for (Floats& change : changes_) change.resize(tokens_ * copies_.hidden());
}

absl::StatusOr<std::unique_ptr<LossProbe>> LossProbe::Create(const ModelContext& context,
                                                             const CheckpointExperts* experts,
                                                             OfflineDevice* device, int64_t window,
                                                             int64_t tokens) {
  std::unique_ptr<LossProbe> probe(new LossProbe(context, device, window, tokens));
  probe->copies_.Reserve(2 * tokens * experts->model().num_layers());
  MOERT_ASSIGN_OR_RETURN(probe->blocks_,
                         MoeBlocks::Create(experts, {context.pool, context.model->products()}));
  return probe;
}

void LossProbe::AddExpert(const ExpertRows& tokens, const ExpertChanges& changes) {
  const int64_t hidden = copies_.hidden();
  const Floats* const from[] = {&changes.gate_up, &changes.down};
  const int64_t rows =
      std::lower_bound(tokens.rows.begin(), tokens.rows.end(), tokens_) - tokens.rows.begin();
  constexpr int64_t kRowsAJob = 32;
  for (size_t part = 0; part < changes_.size(); ++part) {
    if (from[part]->empty()) continue;  // nothing chose the expert, or its scheme is bf16
    context_.pool->Run(CeilDiv(rows, kRowsAJob), [&](int64_t job, int) {
      for (int64_t t = job * kRowsAJob; t < std::min(rows, (job + 1) * kRowsAJob); ++t) {
        const auto i = static_cast<size_t>(t);
        float* const to = changes_[part].data() + tokens.rows[i] * hidden;
        const float* const change = from[part]->data() + t * hidden;
        for (int64_t c = 0; c < hidden; ++c) to[c] += tokens.weights[i] * change[c];
      }
    });
  }
}

absl::Status LossProbe::EndLayer(int layer, CalibrationStream* stream) {
  if (copies_.rows() == 0) {
    copies_.ToMoe(layer);
  } else {
    MOERT_RETURN_IF_ERROR(blocks_->Forward(layer, &copies_, device_));
  }
  const int64_t hidden = copies_.hidden();
  for (Floats& change : changes_) {
    context_.pool->Run(tokens_, [&](int64_t row, int) {
      for (int64_t i = row * hidden; i < (row + 1) * hidden; ++i) {
        change[i] += stream->residual()[i];
      }
    });
    copies_.Add(change.data(), tokens_);
    std::fill(change.begin(), change.end(), 0.0f);
  }
  return absl::OkStatus();
}

std::vector<std::array<double, 2>> LossProbe::Divergences(const float* hidden) {
  const int64_t vocab = context_.config->vocab_size;
  const int64_t copies = copies_.rows() / tokens_;
  const float* const other = copies_.FinishHidden();
  std::vector<double> sums(static_cast<size_t>(copies), 0.0);
  constexpr int64_t kLogits = int64_t{1} << 26;  // in memory at once
  const int64_t most = std::clamp<int64_t>(kLogits / vocab, 1, std::min<int64_t>(tokens_, 1024));
  Floats logits(most * vocab);
  std::vector<double> p(logits.size()), p_log_p(static_cast<size_t>(most)), rows(p_log_p.size());
  for (int64_t first = 0; first < tokens_; first += most) {
    const int64_t count = std::min(most, tokens_ - first);
    context_.model->Logits(count, hidden + first * copies_.hidden(), logits.data());
    context_.pool->Run(count, [&](int64_t i, int) {
      p_log_p[i] = Distribution(logits.data() + i * vocab, vocab, p.data() + i * vocab);
    });
    for (int64_t copy = 0; copy < copies; ++copy) {
      context_.model->Logits(count, other + (copy * tokens_ + first) * copies_.hidden(),
                             logits.data());
      context_.pool->Run(count, [&](int64_t i, int) {
        rows[i] = Divergence(p.data() + i * vocab, p_log_p[i], logits.data() + i * vocab, vocab);
      });
      for (int64_t i = 0; i < count; ++i) sums[copy] += rows[i];
    }
  }
  std::vector<std::array<double, 2>> means(copies / 2);
  for (size_t copy = 0; copy < sums.size(); ++copy) {
    means[copy / 2][copy % 2] = sums[copy] / static_cast<double>(tokens_);
  }
  return means;
}

}  // namespace moert::offline
