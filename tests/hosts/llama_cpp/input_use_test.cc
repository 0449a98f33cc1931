#include "input_use.h"

#include <ggml-impl.h>

#include <memory>
#include <vector>

#include "support/catch.h"

namespace moert_ggml {
namespace {

/// A graph of products of `inputs`, two parts of it ours.
struct Graph {
  Graph(ggml_tensor** at, ggml_tensor* first, ggml_tensor* second, ggml_tensor* both) : nodes(at) {
    for (int i = 0; i < 4; ++i) nodes[i] = &made[i];
    made[0].src[0] = first;
    made[0].src[1] = both;
    made[1].src[0] = &made[0];
    made[1].src[1] = first;
    made[3].src[0] = second;
    made[3].src[1] = both;
  }
  ggml_cgraph Part(int begin, int end) {
    ggml_cgraph part = {};
    part.nodes = nodes + begin;
    part.n_nodes = end - begin;
    part.use_counts = counts;
    return part;
  }
  void Plan(InputUse* use) {
    const ggml_cgraph one = Part(0, 2), other = Part(3, 4);
    use->Plan(&one);
    use->Plan(&other);
  }

  ggml_tensor** const nodes;
  ggml_tensor made[4] = {};
  int32_t counts[1] = {};
};

TEST_CASE("an input that one part alone reads needs no copy, in graph after graph") {
  std::vector<ggml_tensor*> memory(64);
  ggml_tensor a = {}, b = {}, both = {};
  InputUse use;
  // Nodes of graphs that follow one another may lie behind those of the last or in front.
  std::vector<std::unique_ptr<Graph>> graphs;
  for (const int at : {0, 8, 16, 4, 24}) {
    graphs.push_back(std::make_unique<Graph>(memory.data() + at, &a, &b, &both));
    Graph& graph = *graphs.back();
    graph.Plan(&use);
    CHECK(use.Once(&a));
    CHECK(use.Once(&b));
    CHECK(!use.Once(&both));
    graph.Plan(&use);  // the same graph again
    CHECK(use.Once(&a));
  }
}

TEST_CASE("what is skipped stands for its copy until the part ends") {
  ggml_tensor copy = {}, input = {};
  InputUse use;
  use.Skip(&copy, &input);
  CHECK(use.InputOf(&copy) == &input);
  use.EndPart();
  CHECK(use.InputOf(&copy) == nullptr);
}

TEST_CASE("what was skipped can still be copied") {
  ggml_tensor copy = {}, input = {};
  InputUse use;
  use.Skip(&copy, &input);
  const auto skipped = use.TakeSkipped();
  REQUIRE(skipped.size() == 1);
  CHECK(skipped.at(&copy) == &input);
  CHECK(use.InputOf(&copy) == nullptr);
  CHECK(use.TakeSkipped().empty());
}

}  // namespace
}  // namespace moert_ggml
