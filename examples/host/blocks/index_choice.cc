#include "host/blocks/index_choice.h"

#include <algorithm>
#include <numeric>

#include "host/blocks/panel_gemm.h"

namespace moert::host {

void FindChoosers(absl::Span<const RowGroup> groups, int layer, int64_t seen, int64_t count,
                  std::vector<Chooser>* choosers) {
  choosers->clear();
  for (const RowGroup& group : groups) {
    const int64_t first = std::clamp<int64_t>(seen - group.sequence->length(), 0, group.rows);
    IndexedState(group, layer).chosen().Reset(first, group.rows, count);
    for (int64_t i = first; i < group.rows; ++i) choosers->push_back({&group, i});
  }
}

int64_t LongestOf(absl::Span<const Chooser> choosers) {
  int64_t longest = 0;
  for (const Chooser& chooser : choosers) longest = std::max(longest, chooser.positions());
  return longest;
}

void MultiplyIndexKeys(const KvPanels& keys, const float* queries, int heads, int64_t dim,
                       int64_t first, int64_t count, float* products) {
  PanelGemm g{};
  g.x = queries;
  g.x_stride = g.k = dim;
  g.rows = heads;
  g.panels = keys.keys(0) + first / kPanelWidth * keys.key_panel_stride();
  g.panel_stride = keys.key_panel_stride();
  g.num_panels = count / kPanelWidth;
  g.y = products;
  g.y_stride = count;
  Panel().f32(g);
}

void ChooseLargest(absl::Span<const float> scores, std::vector<int32_t>* order,
                   absl::Span<int32_t> to) {
  order->resize(scores.size());
  std::iota(order->begin(), order->end(), 0);
  const auto end = order->begin() + static_cast<std::ptrdiff_t>(to.size());
  std::nth_element(order->begin(), end, order->end(), [scores](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  std::sort(order->begin(), end);
  std::copy(order->begin(), end, to.begin());
}

}  // namespace moert::host
