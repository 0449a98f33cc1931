// Ranks that are threads of one process, a device each, over NCCL, give what one engine gives; one
// that fails or does not come fails all, in time. Cases print their seconds; one that is not done
// after 40 s ends the program and says where the ranks are.
#include "moert/parallel/expert_parallel.h"

#include <dlfcn.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "mixed_source.h"
#include "moert/source/pinned_source.h"
#include "other_capture.h"
#include "rank_run.h"

namespace moert::test {
namespace {

TEST_CASE("a group of one rank is one engine") {
  const RankGroup group(1);
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  for (const bool graph : {false, true}) {
    Case c;
    c.shards = {Shard{}};
    c.graph = graph;
    CheckCase(group, source, c, 1e-9);
  }
}

TEST_CASE("two devices: bf16, experts and channels, few rows and many, captured and offloaded") {
  if (Skipped(2)) return;
  const RankGroup group(2);
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  for (const int64_t rows : {1, 5, 512}) {
    Case c;
    c.shards = {Experts(0, 6, false), Experts(6, 10, true)};
    c.rows = rows;
    CheckCase(group, source, c, kBound);
    c.graph = true;
    CheckCase(group, source, c, kBound);
    c.graph = false;
    c.place = Place::kHost;
    CheckCase(group, source, c, kBound);
    for (const Place place : {Place::kHost, Place::kDevice}) {
      c.place = place;
      c.fraction = 0.5;
      CheckCase(group, source, c, kBound);
    }
    Case channels;
    channels.shards = {Channels(0, 128), Channels(128, 128)};
    channels.rows = rows;
    channels.routed = false;
    channels.graph = true;
    CheckCase(group, source, channels, rows < 64 ? kBound : kOfHalves);
  }
}

TEST_CASE("two devices: experts with few tokens each are multiplied as by one engine") {
  if (Skipped(2)) return;
  const RankGroup group(2);
  SyntheticShape shape = ShardedShape();
  shape.experts = 32;
  const auto source = std::make_shared<SyntheticSource>(shape);
  Case c;
  c.shards = {Experts(0, 16, true), Experts(16, 16, false)};
  // 5 an expert of the model's: fp32 throughout. It would be 10 if the 16 here got all of them, and
  // rounded as prompts are.
  c.rows = 40;
  CheckCase(group, source, c, kBound);
}

TEST_CASE("two devices: w4") {
  if (Skipped(2)) return;
  const RankGroup group(2);
  const auto source = std::make_shared<MixedSource>(moert::test::Shape{256, 256, 16, 4},
                                                    std::vector<std::string>{"w4a16_g128"}, 0);
  for (const int64_t rows : {1, 8, 300}) {
    Case c;
    c.shards = {Experts(0, 8, true), Experts(8, 8, false)};
    c.rows = rows;
    c.graph = true;
    CheckCase(group, source, c, kBound);
  }
}

TEST_CASE("an engine on device 1 while device 0 is current") {
  if (Skipped(2)) return;
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  for (const int64_t rows : {3, 300}) {
    CHECK(OneEngine(source, 1, rows, false) == OneEngine(source, 0, rows, false));
    int current = -1;
    CHECK(cudaGetDevice(&current) == cudaSuccess);
    CHECK(current == 0);
  }
}

TEST_CASE("engines on all devices copy from one pinned copy of the records") {
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  auto pinned = PinRecords(source, {});
  REQUIRE_OK(pinned.status());
  CHECK(source->reads() == 3 * 16);
  const std::vector<float> expected = OneEngine(source, 0, 5, true);
  const int64_t reads = source->reads();
  for (int device = 0; device < std::min(2, Devices()); ++device) {
    for (const double fraction : {0.3, 1.0}) {
      auto engine = Engine::Create(*pinned, Options(device, 5, fraction));
      REQUIRE_OK(engine.status());
      // All records are in host memory: the device itself can bring what is missing.
      CHECK((*engine)->graph_needs().capturable);
      RankRows at(device, source->model(), 5);
      auto step = (*engine)->BeginStep(at.Info(Phase::kDecode));
      REQUIRE_OK(step.status());
      for (int l = 0; l < 3; ++l) {
        REQUIRE_OK(
            (*engine)->ForwardRouted(*step, l, at.x(l), at.routing(Place::kDevice), at.y(l)));
      }
      REQUIRE_OK((*engine)->EndStep(*step));
      CHECK(at.Outputs() == expected);
    }
  }
  CHECK(source->reads() == reads);
}

TEST_CASE("host memory goes through the communicator too") {
  const int size = std::min(2, Devices());
  const NcclId id = NewId();
  const auto statuses = OnDevices("host memory", size, [&](int r, auto&&) -> absl::Status {
    auto group = JoinGroup(id, r, size);
    if (!group.ok()) return group.status();
    std::vector<float> sum(1000, static_cast<float>(r + 1));
    absl::Status status = (*group)->AllReduce(sum.data(), 1000, nullptr);
    const float expected = size == 1 ? 1.0f : 3.0f;
    for (const float v : sum) {
      if (v != expected) status.Update(absl::InternalError("another sum"));
    }
    std::vector<int64_t> all(static_cast<size_t>(size));
    const int64_t mine = 10 + r;
    status.Update((*group)->AllGather(&mine, 8, all.data(), nullptr));
    for (int i = 0; i < size; ++i) {
      if (all[static_cast<size_t>(i)] != 10 + i) status.Update(absl::InternalError("not gathered"));
    }
    // Rank r sends r + 1 bytes to rank 0, and one more to each that follows.
    std::vector<int64_t> out, in;
    std::vector<uint8_t> send, expect;
    for (int to = 0; to < size; ++to) {
      out.push_back(r + 1 + to);
      in.push_back(to + 1 + r);
      send.insert(send.end(), static_cast<size_t>(r + 1 + to), static_cast<uint8_t>(16 * r + to));
      expect.insert(expect.end(), static_cast<size_t>(to + 1 + r),
                    static_cast<uint8_t>(16 * to + r));
    }
    std::vector<uint8_t> received(expect.size());
    status.Update((*group)->AllToAll(send.data(), out, received.data(), in, nullptr));
    if (received != expect) status.Update(absl::InternalError("not exchanged"));
    return status;
  });
  for (const absl::Status& status : statuses) CHECK(status.ToString() == "OK");
}

TEST_CASE("a rank that is gone: the other fails in time, between layers and at the beginning") {
  if (Skipped(2)) return;
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  const std::vector<Shard> shards = {Experts(0, 8, false), Experts(8, 8, true)};
  // The other waits for the stream, in the engine (offloaded: ids are brought to the host), and in
  // Wait.
  for (const double fraction : {1.0, 0.5}) {
    CAPTURE(fraction);
    const NcclId id = NewId();
    Case c;
    c.shards = shards;
    c.fraction = fraction;
    std::vector<std::unique_ptr<RankRows>> rows;
    for (int r = 0; r < 2; ++r) {
      rows.push_back(std::make_unique<RankRows>(r, source->model(), c.rows));
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto statuses = OnDevices("a rank is gone", 2, [&](int r, auto&& note) -> absl::Status {
      auto group = JoinGroup(id, r, 2, 2 * kSecond);
      if (!group.ok()) return group.status();
      auto parallel = ExpertParallel::Create(source, Options(r, c.rows, fraction), shards, *group);
      if (!parallel.ok()) return parallel.status();
      absl::Status status = EagerStep(parallel->get(), group->get(), c, rows[r].get());
      if (!status.ok() || r == 1) return status;  // gone
      note("runs a step alone");
      return EagerStep(parallel->get(), group->get(), c, rows[r].get());
    });
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
    CHECK(statuses[0].code() == absl::StatusCode::kDeadlineExceeded);
    CHECK(Contains(statuses[0], "some rank did not come within 2000 ms"));
    CHECK(statuses[1].ToString() == "OK");
    CHECK(cudaDeviceSynchronize() == cudaSuccess);  // nothing runs on
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto alone = JoinGroup(NewId(), 0, 2, kSecond);
  CHECK(alone.status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("a rank that cannot be made fails all, by name") {
  if (Skipped(2)) return;
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  const auto create = [&](const std::vector<Shard>& shards, int broken) {
    const NcclId id = NewId();
    return OnDevices("a rank is not made", 2, [&](int r, auto&&) -> absl::Status {
      auto group = JoinGroup(id, r, 2);
      if (!group.ok()) return group.status();
      EngineOptions options = Options(r, 4, 1);
      if (r == broken) options.budget = Budget::Bytes(1000);
      return ExpertParallel::Create(source, options, shards, *group).status();
    });
  };
  const auto budget = create({Experts(0, 8, false), Experts(8, 8, true)}, 1);
  CHECK(Contains(budget[0], "rank 1 gave up"));
  CHECK(budget[0].code() == budget[1].code());
  for (const absl::Status& status : create({Experts(0, 9, true), Experts(8, 8, false)}, -1)) {
    CHECK(Contains(status, "both own expert 8"));
  }
  for (const absl::Status& status : create({Experts(0, 8, true)}, -1)) {
    CHECK(Contains(status, "1 shards for a group of 2 ranks"));
  }
}

TEST_CASE("steps of a group on devices: what is refused") {
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  auto group = JoinGroup(NewId(), 0, 1);
  REQUIRE_OK(group.status());
  auto parallel = ExpertParallel::Create(source, Options(0, 4, 1), {Shard{}}, *group);
  REQUIRE_OK(parallel.status());
  RankRows rows(0, source->model(), 4);
  auto step = (*parallel)->BeginStep(rows.Info(Phase::kDecode), TokenPlacement::kReplicated);
  REQUIRE_OK(step.status());
  RoutedInput routing = rows.routing(Place::kHost);
  std::vector<int32_t> ids(routing.ids.begin(), routing.ids.end());
  ids[3] = 16;
  routing.ids = ids;
  const absl::Status range = (*parallel)->Forward(*step, 0, rows.x(0), &routing, rows.y(0));
  CHECK(range.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Contains(range, "16"));
  // The group is unusable then.
  CHECK_FALSE((*group)->AllReduce(static_cast<float*>(rows.y(0).data), 4, rows.stream()).ok());
}

TEST_CASE("a placed group changes owners, counts and goes beside another thread's capture") {
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  const MoeModelSpec& model = source->model();
  ExpertPlacement placement;
  placement.ranks = 1;
  for (const MoeLayerSpec& layer : model.layers) {
    placement.owners.emplace_back(static_cast<size_t>(layer.num_experts), std::vector<int32_t>{0});
  }
  auto group = JoinGroup(NewId(), 0, 1);
  REQUIRE_OK(group.status());
  auto parallel = ExpertParallel::CreatePlaced(source, Options(0, 4, 1), placement, *group);
  REQUIRE_OK(parallel.status());
  RankRows rows(0, model, 4);
  Case c;
  REQUIRE_OK(EagerStep(parallel->get(), group->get(), c, &rows));  // loads every kernel
  OtherCapture capture(cudaStreamCaptureModeThreadLocal, cudaStreamDefault);
  absl::Status status = EagerStep(parallel->get(), group->get(), c, &rows);
  status.Update((*parallel)->MoveExperts(placement));
  status.Update(EagerStep(parallel->get(), group->get(), c, &rows));
  const auto loads = (*parallel)->TakeLoads();
  parallel->reset();
  const bool whole = capture.Whole();
  REQUIRE_OK(status);
  REQUIRE_OK(loads.status());
  CHECK(whole);
  std::vector<double> tokens(static_cast<size_t>(model.layers[0].num_experts));
  for (const int32_t e : RandomRouting(model, 4).ids) {
    if (e >= 0) tokens[static_cast<size_t>(e)] += 3;  // steps
  }
  for (const std::vector<double>& layer : *loads) CHECK(layer == tokens);
}

TEST_CASE("a communicator of the host: its rank and size are checked") {
  void* library = dlopen("libnccl.so.2", RTLD_NOW);
  REQUIRE(library != nullptr);
  using InitAll = int (*)(void**, int, const int*);
  using Destroy = int (*)(void*);
  const auto init = reinterpret_cast<InitAll>(dlsym(library, "ncclCommInitAll"));
  const auto destroy = reinterpret_cast<Destroy>(dlsym(library, "ncclCommDestroy"));
  REQUIRE(init != nullptr);
  void* communicator = nullptr;
  const int device = 0;
  REQUIRE(init(&communicator, 1, &device) == 0);
  NcclOptions options;
  options.communicator = communicator;
  options.size = 2;
  const absl::Status size = MakeNcclCollectives(options).status();
  CHECK(Contains(size, "it has rank 0 of 1, the options say rank 0 of 2"));
  options.size = 1;
  {
    auto group = MakeNcclCollectives(options);
    REQUIRE_OK(group.status());
    float value = 3;
    REQUIRE_OK((*group)->AllReduce(&value, 1, nullptr));
    CHECK(value == 3);
  }
  CHECK(destroy(communicator) == 0);
}

}  // namespace
}  // namespace moert::test
