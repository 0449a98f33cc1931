// The product that an opaque source was given, in C and in C++.
#include <atomic>
#include <cstring>
#include <vector>

#include "capi/include/moert.h"
#include "capi/src/handles.h"
#include "moert/source/opaque_source.h"
#include "moert/thread_pool.h"
#include "tests/support/catch.h"
#include "tests/support/opaque_fixture.h"

namespace moert::test {
namespace {

constexpr int kHidden = OpaqueModel::kHidden;

/// Two experts of layer 1, three pairs of two rows.
struct Job {
  explicit Job(const OpaqueModel& model)
      : pool(*CreateThreadPool({.threads = 3})), x(2 * kHidden, 1.0f), out(3 * kHidden, -1.0f) {
    OpaqueProduct::Expert first{4, 2, {}}, second{7, 1, {}};
    for (int p = 0; p < 3; ++p) {
      first.parts[static_cast<size_t>(p)] = model.At(1, p, 4);
      second.parts[static_cast<size_t>(p)] = model.At(1, p, 7);
    }
    experts = {first, second};
    product = {1, kHidden, 2, x.data(), experts, row_of, weights, out.data(), pool.get()};
  }

  std::unique_ptr<ThreadPool> pool;
  std::vector<float> x, out;
  std::vector<OpaqueProduct::Expert> experts;
  std::vector<int32_t> row_of{0, 1, 1};
  std::vector<float> weights{1, 1, 0.5f};
  OpaqueProduct product;
};

TEST_CASE("a source without a product has none, and other sources have none") {
  const OpaqueModel model;
  const auto source = MakeOpaqueSource("toy", model.spec, model.InMemory());
  REQUIRE_OK(source.status());
  CHECK((*source)->product() == nullptr);
}

TEST_CASE("errors of a product name the source and the layer") {
  const OpaqueModel model;
  OpaqueWeights weights = model.InMemory();
  weights.product = [](const OpaqueProduct& job) {
    return job.layer == 1 ? absl::DataLossError("bad bytes") : absl::OkStatus();
  };
  const auto source = MakeOpaqueSource("toy", model.spec, std::move(weights));
  REQUIRE_OK(source.status());
  Job job(model);
  const absl::Status status = (*(*source)->product())(job.product);
  CHECK(absl::IsDataLoss(status));
  CHECK(std::string(status.message()) == "toy layer 1: product on the CPU: bad bytes");
  job.product.layer = 0;
  REQUIRE_OK((*(*source)->product())(job.product));
}

/// The callback's arguments, and its answer to give.
struct Seen {
  std::vector<float> x, weights;
  std::vector<int32_t> row_of;
  std::vector<int64_t> experts, pairs;
  bool parts_end = true;
  std::atomic<int> tasks{0};
  int64_t threads = 0;
  moert_code code = MOERT_OK;
};

moert_code Product(void* user_data, const moert_cpu_job* job, moert_failure* failure) {
  auto* seen = static_cast<Seen*>(user_data);
  CHECK(job->struct_size == sizeof(moert_cpu_job));
  CHECK(job->layer == 1);
  seen->x.assign(job->x, job->x + job->rows * job->hidden);
  seen->row_of.assign(job->row_of, job->row_of + job->pairs);
  seen->weights.assign(job->weights, job->weights + job->pairs);
  for (int64_t e = 0; e < job->num_experts; ++e) {
    seen->experts.push_back(job->experts[e].expert);
    seen->pairs.push_back(job->experts[e].pairs);
    seen->parts_end = seen->parts_end && job->experts[e].part[3] == nullptr;
  }
  seen->threads = job->threads;
  struct Task {
    const moert_cpu_job* job;
    Seen* seen;
  } task{job, seen};
  job->run(
      job->pool, job->pairs,
      [](void* arg, int64_t pair, int32_t thread) {
        const auto* t = static_cast<Task*>(arg);
        t->seen->tasks += thread >= 0 && thread < t->job->threads;
        const int64_t expert = pair < t->job->experts[0].pairs ? 0 : 1;
        float first = 0;
        std::memcpy(&first, t->job->experts[expert].part[2], sizeof first);
        for (int64_t c = 0; c < t->job->hidden; ++c) {
          std::memcpy(t->job->out + pair * t->job->hidden + c, &first, sizeof first);
        }
      },
      &task);
  if (seen->code != MOERT_OK) moert_failure_set(failure, "the kernel is missing");
  return seen->code;
}

/// A source of C over the model's memory.
moert_source* SourceInC(const OpaqueModel& model, Seen* seen) {
  std::vector<moert_layer_spec> layers(OpaqueModel::kLayers);
  std::vector<moert_opaque_part> parts;
  for (int l = 0; l < OpaqueModel::kLayers; ++l) {
    moert_layer_spec& layer = layers[static_cast<size_t>(l)];
    moert_layer_spec_init(&layer, sizeof layer);
    layer.model_layer = l;
    layer.num_experts = OpaqueModel::kExperts;
    layer.hidden = kHidden;
    layer.intermediate = 32;
    layer.top_k = OpaqueModel::kTopK;
    layer.routing = MOERT_ROUTING_EXTERNAL;
    for (int p = 0; p < 3; ++p) {
      moert_opaque_part part;
      moert_opaque_part_init(&part, sizeof part);
      part.layer = l;
      part.bytes = OpaqueModel::PartBytes(l, p);
      part.memory = model.At(l, p, 0);
      parts.push_back(part);
    }
  }
  moert_opaque_options options;
  moert_opaque_options_init(&options, sizeof options);
  options.user_data = seen;
  options.product = Product;
  moert_source* source = nullptr;
  REQUIRE(moert_source_create_opaque("toy", layers.data(), layers.size(), parts.data(),
                                     parts.size(), &options, &source, nullptr) == MOERT_OK);
  return source;
}

TEST_CASE("a callback of C sees the whole job, and runs tasks on the library's threads") {
  const OpaqueModel model;
  Seen seen;
  moert_source* source = SourceInC(model, &seen);
  Job job(model);
  REQUIRE_OK((*source->source->product())(job.product));
  CHECK(seen.x == job.x);
  CHECK(seen.row_of == job.row_of);
  CHECK(seen.weights == job.weights);
  CHECK(seen.experts == std::vector<int64_t>{4, 7});
  CHECK(seen.pairs == std::vector<int64_t>{2, 1});
  CHECK(seen.parts_end);
  CHECK(seen.threads == 3);
  CHECK(seen.tasks == 3);
  for (int pair = 0; pair < 3; ++pair) {
    CHECK(std::memcmp(job.out.data() + pair * kHidden, model.At(1, 2, pair < 2 ? 4 : 7),
                      sizeof(float)) == 0);
  }
  moert_source_destroy(source);
}

TEST_CASE("a callback of C that fails passes its code and its text on") {
  const OpaqueModel model;
  Seen seen;
  seen.code = MOERT_UNAVAILABLE;
  moert_source* source = SourceInC(model, &seen);
  Job job(model);
  const absl::Status status = (*source->source->product())(job.product);
  CHECK(absl::IsUnavailable(status));
  CHECK(std::string(status.message()).find("toy layer 1") != std::string::npos);
  CHECK(std::string(status.message()).find("the kernel is missing") != std::string::npos);
  moert_source_destroy(source);
}

}  // namespace
}  // namespace moert::test
