// Code that the indexers share: finding the rows that choose, multiplying their queries by the keys
// of positions, and choosing the largest scores.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_INDEX_CHOICE_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_INDEX_CHOICE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "host/blocks/indexed_panels.h"
#include "host/sequence_state.h"

namespace moert::host {

/// Number of scores in memory at once, in each layer.
constexpr int64_t kIndexScores = int64_t{1} << 20;

/// A row that chooses the positions it sees.
struct Chooser {
  const RowGroup* group;
  int64_t index;  // within the group
  int64_t positions() const { return group->sequence->length() + index + 1; }
  int64_t row() const { return group->first_row + index; }
};

/// Finds the rows that have more than `seen` positions. Each chooses `count` blocks, for which the
/// states of `layer` get room; earlier rows see everything.
void FindChoosers(absl::Span<const RowGroup> groups, int layer, int64_t seen, int64_t count,
                  std::vector<Chooser>* choosers);

/// The largest number of positions that a chooser has.
int64_t LongestOf(absl::Span<const Chooser> choosers);

/// Multiplies `queries` [heads, dim] by the keys of `count` positions from `first` on; products:
/// [heads, count]. Both first and count are multiples of the panel width, so that a position's
/// product does not depend on the number of other positions.
void MultiplyIndexKeys(const KvPanels& keys, const float* queries, int heads, int64_t dim,
                       int64_t first, int64_t count, float* products);

/// Writes the indices of the `to.size()` largest scores, ascending; among equals the first ones. No
/// score is NaN. `order` is scratch.
void ChooseLargest(absl::Span<const float> scores, std::vector<int32_t>* order,
                   absl::Span<int32_t> to);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_INDEX_CHOICE_H_
