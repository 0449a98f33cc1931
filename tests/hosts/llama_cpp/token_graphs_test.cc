// Which graphs are recorded, and how long a recording is valid.
#include "token_graphs.h"

#include <set>

#include "support/catch.h"

namespace moert_ggml {
namespace {

std::set<void*> dropped;

}  // namespace

// The stream's part: recordings are addresses here.
bool CudaStream::Synchronize() { return true; }
void CudaStream::Drop(void* recording) { REQUIRE(dropped.insert(recording).second); }

namespace {

class Fixture {
 public:
  Fixture() { dropped.clear(); }

  /// A graph with calls of these layers, all served.
  void Run(uint64_t uid, std::initializer_list<int> layers, int64_t tokens = 1,
           bool shares = false) {
    graphs.Begin(uid);
    for (const int layer : layers) {
      graphs.Call();
      graphs.Add(model, layer, tokens, shares);
    }
  }

  alignas(CudaStream) char stream[sizeof(CudaStream)];
  Model* const model = reinterpret_cast<Model*>(this);
  int first = 0, second = 0;
  TokenGraphs graphs{reinterpret_cast<CudaStream*>(stream)};
};

TEST_CASE("a graph is known once all its layer calls were served") {
  Fixture f;
  CHECK_FALSE(f.graphs.Knows(0));
  f.Run(7, {0, 1, 2}, 3);
  CHECK(f.graphs.Knows(7));
  CHECK_FALSE(f.graphs.Knows(8));
  CHECK(f.graphs.tokens() == 3);
  CHECK(f.graphs.layers() == std::vector<int>{0, 1, 2});

  f.graphs.Begin(7);  // the host takes part in the second call
  f.graphs.Call();
  f.graphs.Add(f.model, 0, 1, false);
  f.graphs.Call();
  CHECK_FALSE(f.graphs.Knows(7));

  f.Run(0, {0, 1});  // llama.cpp may change a graph without a uid
  CHECK_FALSE(f.graphs.Knows(0));
  f.Run(9, {});  // no experts
  CHECK_FALSE(f.graphs.Knows(9));
}

TEST_CASE("calls that are not one pass over one model's layers are not recorded") {
  Fixture f;
  f.Run(1, {0, 2, 1});
  CHECK_FALSE(f.graphs.Knows(1));
  f.graphs.Begin(2);
  for (const int64_t tokens : {4, 1}) {  // the last layer computes fewer rows
    f.graphs.Call();
    f.graphs.Add(f.model, static_cast<int>(4 - tokens), tokens, false);
  }
  CHECK_FALSE(f.graphs.Knows(2));
  f.graphs.Begin(3);
  for (int l = 0; l < 2; ++l) {
    f.graphs.Call();
    f.graphs.Add(f.model + l, l, 1, false);
  }
  CHECK_FALSE(f.graphs.Knows(3));
}

TEST_CASE("a recording is of one way to compute, and ends with its graph or the store's slots") {
  Fixture f;
  f.Run(5, {0, 1}, 1, /*shares=*/true);
  CHECK(f.graphs.Ran(true));
  CHECK_FALSE(f.graphs.Ran(false));
  CHECK(f.graphs.Find(true, 0) == nullptr);
  f.graphs.Keep(true, &f.first);
  f.Run(5, {0, 1}, 1, /*shares=*/false);
  CHECK(f.graphs.Ran(false));
  f.graphs.Keep(false, &f.second);
  CHECK(f.graphs.Find(true, 0) == &f.first);
  CHECK(f.graphs.Find(false, 0) == &f.second);
  CHECK(dropped.empty());

  CHECK(f.graphs.Find(true, 1) == nullptr);  // another budget
  CHECK(dropped == std::set<void*>{&f.first, &f.second});
  CHECK_FALSE(f.graphs.Ran(true));
  CHECK(f.graphs.Knows(5));

  f.Run(5, {0, 1});
  f.graphs.Keep(false, &f.first);
  dropped.clear();
  f.Run(6, {0, 1}, 1, /*shares=*/true);
  CHECK(dropped == std::set<void*>{&f.first});
  CHECK_FALSE(f.graphs.Ran(false));
}

TEST_CASE("as many tokens as ggml's kernels take without the host") {
  CHECK(TokenGraphs::MostTokens(GGML_TYPE_Q4_0, true) == 8);
  CHECK(TokenGraphs::MostTokens(GGML_TYPE_Q4_0, false) == 4);
  CHECK(TokenGraphs::MostTokens(GGML_TYPE_Q6_K, true) == 8);
  CHECK(TokenGraphs::MostTokens(GGML_TYPE_Q3_K, true) == 4);
  CHECK(TokenGraphs::MostTokens(GGML_TYPE_MXFP4, true) == 4);
}

TEST_CASE("a graph that was refused once stays so") {
  Fixture f;
  f.Run(5, {0, 1});
  f.graphs.Refuse();
  f.Run(5, {0, 1});
  CHECK_FALSE(f.graphs.Knows(5));
  f.Run(6, {0, 1});
  CHECK(f.graphs.Knows(6));
}

}  // namespace
}  // namespace moert_ggml
