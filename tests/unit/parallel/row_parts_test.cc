// Steps in parts: all rows once, in order, and views of what belongs to them.
#include "parallel/row_parts.h"

#include <numeric>
#include <vector>

#include "support/catch.h"

namespace moert {
namespace {

TEST_CASE("rows are cut into nearly equal parts of at most so many") {
  for (const int64_t rows : {0, 1, 7, 2048, 2049, 8192, 10000}) {
    for (const int64_t most : {0, 1, 5, 2048}) {
      CAPTURE(rows, most);
      const std::vector<RowPart> parts = CutRows(rows, most);
      REQUIRE_FALSE(parts.empty());
      int64_t next = 0;
      for (const RowPart& part : parts) {
        CHECK(part.first == next);
        next += part.count;
        if (most > 0) CHECK(part.count <= most);
        CHECK(part.count >= rows / static_cast<int64_t>(parts.size()));
      }
      CHECK(next == rows);
      if (most == 0 || rows <= most) CHECK(parts.size() == 1);
    }
  }
}

TEST_CASE("views, routings and steps of a part") {
  std::vector<float> values(6 * 10);
  std::iota(values.begin(), values.end(), 0.0f);
  const RowPart part{2, 3};
  const MatrixView x = PartOf(MatrixView{values.data(), DType::kF32, 6, 8, 10}, part);
  CHECK(x.rows == 3);
  CHECK(*static_cast<const float*>(x.data) == 20);
  std::vector<uint16_t> halves(6 * 8);
  const MutableMatrixView y = PartOf(MutableMatrixView{halves.data(), DType::kBF16, 6, 8, 8}, part);
  CHECK(y.data == halves.data() + 16);

  std::vector<int32_t> ids(6 * 2), used(6 * 2);
  std::iota(ids.begin(), ids.end(), 0);
  const std::vector<float> weights(6 * 2), scores(6 * 5);
  RoutedInput routing;
  routing.ids = ids;
  routing.weights = weights;
  routing.scores = scores;
  routing.used_ids = absl::MakeSpan(used);
  const RoutedInput of = PartOf(routing, 6, part);
  CHECK(of.ids.size() == 6);
  CHECK(of.ids[0] == 4);
  CHECK(of.weights.data() == weights.data() + 4);
  CHECK(of.scores.data() == scores.data() + 10);
  CHECK(of.scores.size() == 15);
  CHECK(of.next_scores.empty());
  CHECK(of.used_ids.data() == used.data() + 4);

  const std::vector<int64_t> requests = {5, 5, 6, 6, 7, 7};
  StepInfo info;
  info.rows = 6;
  info.request_ids = requests;
  const StepInfo step = PartOf(info, part);
  CHECK(step.rows == 3);
  CHECK(std::vector<int64_t>(step.request_ids.begin(), step.request_ids.end()) ==
        std::vector<int64_t>{6, 6, 7});
  CHECK(step.positions.empty());
}

}  // namespace
}  // namespace moert
