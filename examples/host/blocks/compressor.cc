#include "host/blocks/compressor.h"

#include <algorithm>
#include <cmath>

#include "util/status_macros.h"

namespace moert::host {

absl::StatusOr<Compressor> Compressor::Load(const Checkpoint& checkpoint, const HfConfig& config,
                                            const std::string& name, const Shape& shape,
                                            const Rope* rope) {
  Compressor c;
  c.shape_ = shape;
  c.rope_ = rope;
  const std::vector<MatrixPart> parts = {{name + "wkv", c.series()}, {name + "wgate", c.series()}};
  MOERT_ASSIGN_OR_RETURN(c.project_,
                         Linear::Load(checkpoint, config.quantization, parts, config.hidden_size));
  MOERT_ASSIGN_OR_RETURN(c.bias_, checkpoint.ReadF32(name + "ape", {shape.rate, c.series()}));
  MOERT_ASSIGN_OR_RETURN(c.norm_, Norm::Load(checkpoint, name + "norm", config.norm, shape.dim,
                                             static_cast<float>(config.norm_eps)));
  return c;
}

CompressorTail Compressor::NewTail() const {
  const int64_t positions = (shape_.overlaps ? 2 : 1) * shape_.rate - 1;
  return CompressorTail(positions * width());
}

int64_t Compressor::FirstKept(int64_t length) const {
  return std::max<int64_t>(0, length / shape_.rate - (shape_.overlaps ? 1 : 0)) * shape_.rate;
}

const float* Compressor::At(const RowGroup& group, const CompressorTail& tail,
                            int64_t position) const {
  const int64_t length = group.sequence->length();
  if (position < length) return tail.rows() + (position - FirstKept(length)) * width();
  return projected_.data() + (group.first_row + position - length) * width();
}

void Compressor::Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x,
                         int64_t rows, const Tail& tail, const Put& put) {
  projected_.resize(rows * width());
  project_.Forward(pool, x, rows, projected_.data());
  jobs_.clear();
  for (const RowGroup& group : groups) {
    const int64_t length = group.sequence->length();
    const int64_t end = (length + group.rows) / shape_.rate;
    for (int64_t entry = length / shape_.rate; entry < end; ++entry) {
      jobs_.push_back({&group, &tail(group), entry});
    }
  }
  entries_.resize(pool->num_threads());
  pool->Run(static_cast<int64_t>(jobs_.size()), [&](int64_t index, int worker) {
    AlignedVector<float>& entry = entries_[worker];
    entry.resize(shape_.dim);
    Mix(jobs_[index], entry.data());
    put(*jobs_[index].group, jobs_[index].entry, entry.data());
  });
  for (const RowGroup& group : groups) Keep(group, &tail(group));
}

// Each channel has weights of its own: a softmax over the positions.
void Compressor::Mix(const Job& job, float* entry) const {
  const int64_t dim = shape_.dim, rate = shape_.rate, first = job.entry * rate;
  const int64_t before = shape_.overlaps && job.entry > 0 ? rate : 0;
  std::vector<float> largest(dim, -INFINITY), sum(dim, 0.0f);
  // Calls `use` with the channel, value and weight of every channel of every position.
  const auto each = [&](const auto& use) {
    for (int64_t i = -before; i < rate; ++i) {
      const int64_t from = shape_.overlaps && i >= 0 ? dim : 0;
      const float* const values = At(*job.group, *job.tail, first + i) + from;
      const float* const bias = bias_.data() + (i < 0 ? i + rate : i) * series() + from;
      for (int64_t d = 0; d < dim; ++d) use(d, values[d], values[series() + d] + bias[d]);
    }
  };
  each([&](int64_t d, float, float weight) { largest[d] = std::max(largest[d], weight); });
  std::fill_n(entry, dim, 0.0f);
  each([&](int64_t d, float value, float weight) {
    const float share = std::exp(weight - largest[d]);
    entry[d] += share * value;
    sum[d] += share;
  });
  for (int64_t d = 0; d < dim; ++d) entry[d] /= sum[d];
  norm_.Apply(entry, entry);
  rope_->Rotate(rope_->SetOf(job.group->sequence->max_tokens()), first,
                entry + dim - shape_.rope_dim);
}

void Compressor::Keep(const RowGroup& group, CompressorTail* tail) const {
  const int64_t end = group.sequence->length() + group.rows, first = FirstKept(end);
  for (int64_t position = first; position < end; ++position) {
    std::copy_n(At(group, *tail, position), width(), tail->next() + (position - first) * width());
  }
}

}  // namespace moert::host
