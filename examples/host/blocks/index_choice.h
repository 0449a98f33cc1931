// The parts that indexers share: which rows choose, products of their queries with the keys of
// positions, and the choice of the largest scores.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_INDEX_CHOICE_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_INDEX_CHOICE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "host/blocks/indexed_panels.h"
#include "host/sequence_state.h"

namespace moert::host {

/// Scores that are in memory at once, in each layer.
constexpr int64_t kIndexScores = int64_t{1} << 20;

/// A row that chooses.
struct Chooser {
  const RowGroup* group;
  int64_t index;  // within the group
  int64_t positions() const { return group->sequence->length() + index + 1; }
  int64_t row() const { return group->first_row + index; }
};

/// The rows that have more than `seen` positions. Each chooses `count` blocks, for which the states
/// of `layer` get room; rows in front see everything.
void FindChoosers(absl::Span<const RowGroup> groups, int layer, int64_t seen, int64_t count,
                  std::vector<Chooser>* choosers);

/// The most positions that one of them has.
int64_t LongestOf(absl::Span<const Chooser> choosers);

/// products: [heads, count], of `queries` [heads, dim] and the keys of positions from `first` on.
/// Both first and count are whole panels: what a position's product is does not depend on how many
/// others there are.
void MultiplyIndexKeys(const KvPanels& keys, const float* queries, int heads, int64_t dim,
                       int64_t first, int64_t count, float* products);

/// Writes the indices of the `to.size()` largest scores, ascending; of equals the first. None is a
/// NaN. `order` is scratch.
void ChooseLargest(absl::Span<const float> scores, std::vector<int32_t>* order,
                   absl::Span<int32_t> to);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_INDEX_CHOICE_H_
