// The rows and tiles of a step of attention, for tests of its kernels.
#ifndef MOERT_TESTS_GPU_STEP_ROWS_H_
#define MOERT_TESTS_GPU_STEP_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "host/cuda/step_inputs.h"

namespace moert::test {

struct StepRows {
  /// By sequence: tokens stored before, and rows of the step.
  explicit StepRows(const std::vector<std::pair<int, int>>& sequences) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto& [before, added] = sequences[s];
      for (int i = 0; i < added; ++i) {
        if (i % host::QueryTile::kRows == 0) {
          tiles.push_back({static_cast<int32_t>(rows.size()),
                           std::min(added - i, int32_t{host::QueryTile::kRows})});
        }
        rows.push_back({0, before + i, static_cast<int32_t>(s), i});
      }
      last = std::max(last, before + added - 1);
    }
  }

  std::vector<host::RowInput> rows;
  std::vector<host::QueryTile> tiles;
  int last = 0;  // position
};

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_STEP_ROWS_H_
