#include "host/blocks/attend_entries.h"

#include <algorithm>
#include <cmath>

#include "host/blocks/compressed_state.h"
#include "host/blocks/panel_gemm.h"
#include "util/rounding.h"

namespace moert::host {

int64_t AttendEntries::Seen::padded() const { return util::RoundUp(end - first, kPanelWidth); }

void AttendEntries::Forward(ThreadPool* pool, absl::Span<const RowGroup> groups,
                            const float* queries, float* mixed) {
  jobs_.clear();
  for (const RowGroup& group : groups) {
    const int64_t share = group.rows * shape_.heads / pool->num_threads();
    const int step = static_cast<int>(std::clamp<int64_t>(share, 1, shape_.heads));
    for (int64_t row = 0; row < group.rows; ++row) {
      for (int head = 0; head < shape_.heads; head += step) {
        jobs_.push_back({&group, row, head, std::min(step, shape_.heads - head)});
      }
    }
  }
  scratch_.resize(pool->num_threads());
  pool->Run(static_cast<int64_t>(jobs_.size()), [&](int64_t index, int worker) {
    Run(jobs_[index], queries, mixed, &scratch_[worker]);
  });
  for (Scratch& scratch : scratch_) scratch.gathered.reset();  // too large to keep for every layer
}

AttendEntries::Seen AttendEntries::WindowOf(const Job& job) const {
  const int64_t position = job.group->sequence->length() + job.index;
  Seen seen{&CompressedStateOf(*job.group, shape_.layer), 0, 0, position + 1};
  seen.begin = std::max<int64_t>(0, seen.end - shape_.span);
  seen.first = seen.begin / kPanelWidth * kPanelWidth;
  return seen;
}

// Returns all entries that are complete at the row's position, or gathers those that it has chosen.
AttendEntries::Seen AttendEntries::EntriesOf(const Job& job,
                                             std::unique_ptr<KvPanels>* gathered) const {
  if (shape_.rate == 0) return {};
  const CompressedState& state = CompressedStateOf(*job.group, shape_.layer);
  Seen seen{&state.entries(), 0, 0, 0};
  seen.end = (job.group->sequence->length() + job.index + 1) / shape_.rate;
  const ChosenBlocks& chosen = state.chosen();
  if (!shape_.chooses || job.index < chosen.first()) return seen;
  if (*gathered == nullptr) {
    const int64_t capacity = util::RoundUp(chosen.width(), kPanelWidth);
    *gathered = std::make_unique<KvPanels>(1, shape_.dim, shape_.dim, capacity);
  }
  seen.panels = gathered->get();
  seen.end = 0;
  for (const int64_t entry : chosen.Row(job.index, 0)) {
    (*gathered)->Copy(state.entries(), 0, entry, 0, seen.end++);
  }
  return seen;
}

void AttendEntries::Run(const Job& job, const float* queries, float* mixed,
                        Scratch* scratch) const {
  const Seen seen[] = {WindowOf(job), EntriesOf(job, &scratch->gathered)};
  const int64_t stride = seen[0].padded() + seen[1].padded();
  const int64_t at = ((job.group->first_row + job.index) * shape_.heads + job.head) * shape_.dim;
  scratch->scores.resize(job.heads * stride);
  scratch->part.resize(job.heads * shape_.dim);
  PanelGemm g{};
  g.rows = job.heads;
  g.x = queries + at;
  g.x_stride = g.k = shape_.dim;
  g.y = scratch->scores.data();
  g.y_stride = stride;
  for (const Seen& s : seen) {
    if (s.end == 0) continue;
    g.panel_stride = s.panels->key_panel_stride();
    g.panels = s.panels->keys(0) + s.first / kPanelWidth * g.panel_stride;
    g.num_panels = s.padded() / kPanelWidth;
    Panel().f32(g);
    g.y += s.padded();
  }
  for (int head = 0; head < job.heads; ++head) {
    Softmax(job.head + head, seen[0], seen[1], scratch->scores.data() + head * stride);
  }
  g.x = scratch->scores.data();
  g.x_stride = stride;
  g.num_panels = shape_.dim / kPanelWidth;
  g.y = mixed + at;
  g.y_stride = shape_.dim;
  for (const Seen& s : seen) {
    if (s.end == 0) continue;
    g.k = s.end - s.first;
    g.panels = s.panels->values(0) + s.first * kPanelWidth;
    g.panel_stride = s.panels->value_panel_stride();
    Panel().f32(g);
    g.x += s.padded();
    g.y = scratch->part.data();
  }
  if (seen[1].end == 0) return;
  for (int64_t i = 0; i < job.heads * shape_.dim; ++i) mixed[at + i] += scratch->part[i];
}

// Turns the scores of the window and of the entries behind it into probabilities; keys that the row
// does not see get 0.
void AttendEntries::Softmax(int head, const Seen& window, const Seen& entries,
                            float* scores) const {
  float* const others = scores + window.padded();
  const int64_t first = window.begin - window.first, end = window.end - window.first;
  float largest = shape_.sinks[head];
  for (int64_t i = first; i < end; ++i) largest = std::max(largest, scores[i] *= shape_.scale);
  for (int64_t i = 0; i < entries.end; ++i) largest = std::max(largest, others[i] *= shape_.scale);
  double sum = std::exp(shape_.sinks[head] - largest);
  const auto weigh = [&](float* s) {
    *s = std::exp(*s - largest);
    sum += *s;
  };
  for (int64_t i = first; i < end; ++i) weigh(scores + i);
  for (int64_t i = 0; i < entries.end; ++i) weigh(others + i);
  const auto inverse = static_cast<float>(1.0 / sum);
  for (int64_t i = first; i < end; ++i) scores[i] *= inverse;
  for (int64_t i = 0; i < entries.end; ++i) others[i] *= inverse;
  std::fill(scores, scores + first, 0.0f);
}

}  // namespace moert::host
