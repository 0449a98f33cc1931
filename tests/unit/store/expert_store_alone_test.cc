// An ExpertStore as a host uses it: no engine, installed headers only.
#include <cstring>
#include <thread>

#include "moert/expert_store.h"
#include "moert/source/expert_source.h"
#include "support/catch.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

constexpr int kExperts = 6;

struct Fixture {
  std::shared_ptr<SyntheticSource> source;
  std::unique_ptr<ExpertStore> store;

  explicit Fixture(int slots)
      : source(std::make_shared<SyntheticSource>(SyntheticShape{
            .layers = 2, .experts = kExperts, .shared_intermediate = 0, .low_version = true})) {
    store = *ExpertStore::Create(source, {.budget_bytes = slots * Block()});
  }
  int64_t Block() const {
    return (source->layout(0, 0, 0).bytes + kRecordAlignment - 1) / kRecordAlignment *
           kRecordAlignment;
  }
  bool Complete(const ExpertView& view, ExpertKey key) const {
    const std::vector<std::byte>& bytes = source->record(key.layer, key.expert, view.version);
    return view.expert == key.expert && std::memcmp(view.record, bytes.data(), bytes.size()) == 0;
  }
  int Present(int layer) const {
    const std::vector<Residency> states = *store->residency(layer);
    return static_cast<int>(std::count(states.begin(), states.end(), Residency::kHigh));
  }
  void Settle() const {
    for (int layer = 0; layer < 2; ++layer) {
      while (true) {
        const std::vector<Residency> states = *store->residency(layer);
        if (std::count(states.begin(), states.end(), Residency::kArriving) == 0) break;
        std::this_thread::yield();
      }
    }
  }
};

TEST_CASE("options that cannot be are refused, with the legal range") {
  Fixture f(4);
  const auto refused = [&](std::shared_ptr<const ExpertSource> source, int64_t budget, int version,
                           int threads) {
    ExpertStoreOptions options;
    options.budget_bytes = budget;
    options.version = version;
    options.io_threads = threads;
    const auto store = ExpertStore::Create(std::move(source), std::move(options));
    CHECK(store.status().code() == absl::StatusCode::kInvalidArgument);
    return std::string(store.status().message());
  };
  CHECK(refused(nullptr, f.Block(), 0, 2) == "source: must not be null");
  CHECK(refused(f.source, f.Block() - 1, 0, 2).find("budget_bytes") == 0);
  CHECK(refused(f.source, f.Block(), 2, 2).find("version 2: synthetic has versions 0 to 1") == 0);
  CHECK(refused(f.source, f.Block(), 0, 17) == "io_threads 17: must be in [1, 16]");
}

TEST_CASE("what is fetched is there, in the order of the keys, and stays as long as the lease") {
  Fixture f(4);
  CHECK(f.store->slots() == 4);
  CHECK(f.store->block_bytes() == f.Block());
  const std::vector<ExpertKey> keys = {{1, 5}, {1, 0}, {0, 2}};
  auto lease = *f.store->Fetch(keys);
  REQUIRE(lease.experts().size() == 3);
  for (size_t i = 0; i < keys.size(); ++i) CHECK(f.Complete(lease.experts()[i], keys[i]));
  // One block is left: others come and go through it while these are held.
  for (int e = 3; e < kExperts; ++e) {
    const auto other = f.store->Fetch({{{0, e}}});
    REQUIRE_OK(other.status());
    CHECK(f.Complete(other->experts()[0], {0, e}));
  }
  for (size_t i = 0; i < keys.size(); ++i) CHECK(f.Complete(lease.experts()[i], keys[i]));
  CHECK(f.store->stats().evictions == 2);
  ExpertStore::Lease moved = std::move(lease);
  CHECK(lease.experts().empty());
  moved.Release();
  moved.Release();
  CHECK(moved.experts().empty());
  // Nothing is held: all of a layer's share can be replaced.
  REQUIRE_OK(f.store->Fetch({{{0, 0}, {0, 1}, {0, 4}, {0, 5}}}).status());
}

TEST_CASE("a fetch that does not fit fails whole and leaves the store usable") {
  Fixture f(2);
  const auto held = *f.store->Fetch({{{0, 0}}});
  const auto refused = f.store->Fetch({{{0, 1}, {0, 2}}});
  CHECK(refused.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(f.Complete(held.experts()[0], {0, 0}));
  const auto fits = f.store->Fetch({{{0, 3}}});
  REQUIRE_OK(fits.status());
  CHECK(f.Complete(fits->experts()[0], {0, 3}));
}

TEST_CASE("an error of the source's is the fetch's; later ones succeed") {
  Fixture f(4);
  f.source->set_broken(true);
  const auto failed = f.store->Fetch({{{0, 1}, {0, 2}}});
  CHECK(failed.status().code() == absl::StatusCode::kDataLoss);
  f.source->set_broken(false);
  const auto lease = f.store->Fetch({{{0, 1}, {0, 2}}});
  REQUIRE_OK(lease.status());
  CHECK(f.Complete(lease->experts()[1], {0, 2}));
}

TEST_CASE("keys that do not exist are named") {
  Fixture f(4);
  CHECK(f.store->Fetch({{{2, 0}}}).status().message() == "layer 2: must be in [0, 2)");
  CHECK(f.store->Prefetch({{{0, 6}}}).status().message() == "layer 0 expert 6: must be in [0, 6)");
  CHECK(!f.store->residency(-1).ok());
}

TEST_CASE("prefetches arrive unasked, never evict what is leased, and are counted when used") {
  Fixture f(3);
  const auto held = *f.store->Fetch({{{0, 0}}});
  CHECK(*f.store->Prefetch({{{1, 1}, {1, 2}, {1, 3}}}) == 2);  // blocks of nobody, no more
  f.Settle();
  CHECK(f.Present(1) == 2);
  CHECK(*f.store->Prefetch({{{1, 1}}}) == 0);  // there already
  REQUIRE_OK(f.store->Fetch({{{1, 1}}}).status());
  const StoreStats stats = f.store->stats();
  CHECK(stats.lookups == 2);
  CHECK(stats.hits_prefetched == 1);
  CHECK(stats.prefetch_useful == 1);
  CHECK(stats.loads == 1);
  CHECK(f.Complete(held.experts()[0], {0, 0}));
}

TEST_CASE("a lease may outlive its store") {
  auto f = std::make_unique<Fixture>(2);
  auto source = f->source;
  const auto lease = *f->store->Fetch({{{0, 4}}});
  f->store = nullptr;
  CHECK(std::memcmp(lease.experts()[0].record, source->record(0, 4, 0).data(), 64) == 0);
}

TEST_CASE("threads take turns") {
  Fixture f(6);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const ExpertKey key{i % 2, (i + t) % kExperts};
        const auto lease = f.store->Fetch({{key}});
        wrong += !lease.ok() || !f.Complete(lease->experts()[0], key);
        (void)f.store->Prefetch({{{(i + 1) % 2, (i + t + 1) % kExperts}}});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(f.store->stats().lookups == 200);
}

}  // namespace
}  // namespace moert
