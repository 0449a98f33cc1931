// Holders and waiters: nothing is found that is about to be overwritten, and nothing is overwritten
// that is being copied.
#include "transfer/peer_tier.h"

#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.h"
#include "support/heap_peak.h"

namespace moert {
namespace {

const int kSource = 0;

/// A copy that a test begins: which device, from where.
struct Begun {
  int device = -1;
  const std::byte* at = nullptr;
};

/// Reads as a holder; the copy is `copy`.
Begun Read(PeerTier* tier, PeerTier::Holder holder, int64_t record, void* copy) {
  Begun begun;
  tier->Read(holder, record, [&](int device, const std::byte* at) {
    begun = {device, at};
    return copy;
  });
  return begun;
}

std::vector<void*> Withdraw(PeerTier* tier, PeerTier::Holder holder, const std::byte* at,
                            int64_t bytes) {
  std::vector<void*> waits;
  tier->Withdraw(holder, at, bytes, [&](void* copy) { waits.push_back(copy); });
  return waits;
}

TEST_CASE("a record is found where another engine has it, until that is written anew") {
  const auto tier = MakePeerTier();
  const auto a = tier->Join(&kSource, 0), b = tier->Join(&kSource, 1);
  REQUIRE((a.ok() && b.ok()));
  std::vector<std::byte> memory(1000);
  int copy = 0, later = 0;
  CHECK(Read(tier.get(), *b, 7, &copy).at == nullptr);
  tier->Publish(*a, 7, &memory[100], 100);
  CHECK(Read(tier.get(), *a, 7, &copy).at == nullptr);  // one's own is no peer's
  const Begun begun = Read(tier.get(), *b, 7, &copy);
  CHECK(begun.device == 0);
  CHECK(begun.at == &memory[100]);
  CHECK(tier->stats().copies == 1);
  CHECK(tier->stats().bytes == 100);
  // In front of and behind the block nobody is disturbed.
  CHECK(Withdraw(tier.get(), *a, &memory[0], 100).empty());
  CHECK(Withdraw(tier.get(), *a, &memory[200], 800).empty());
  CHECK(Read(tier.get(), *b, 7, &later).at == &memory[100]);
  tier->Done(*b, &later);
  // A part of it is enough; the copy is waited for by all that write until it is done.
  CHECK(Withdraw(tier.get(), *a, &memory[199], 1) == std::vector<void*>{&copy});
  CHECK(Read(tier.get(), *b, 7, &later).at == nullptr);
  CHECK(Withdraw(tier.get(), *a, &memory[50], 60) == std::vector<void*>{&copy});
  tier->Done(*b, &copy);
  CHECK(Withdraw(tier.get(), *a, &memory[50], 60).empty());
}

TEST_CASE("a record that came again is found at its new place, and its old one is free") {
  const auto tier = MakePeerTier();
  const auto a = tier->Join(&kSource, 0), b = tier->Join(&kSource, 1);
  std::vector<std::byte> memory(1000);
  int copy = 0;
  tier->Publish(*a, 7, &memory[0], 100);
  tier->Publish(*a, 7, &memory[500], 100);
  CHECK(Read(tier.get(), *b, 7, &copy).at == &memory[500]);
  CHECK(Withdraw(tier.get(), *a, &memory[0], 100).empty());
  CHECK(Read(tier.get(), *b, 7, &copy).at == &memory[500]);
  // Another record in its place, as large or not.
  tier->Publish(*a, 8, &memory[450], 100);
  CHECK(Read(tier.get(), *b, 7, &copy).at == nullptr);
  CHECK(Read(tier.get(), *b, 8, &copy).at == &memory[450]);
}

TEST_CASE("a copy that cannot begin is tried at the next engine, or not at all") {
  const auto tier = MakePeerTier();
  const auto a = tier->Join(&kSource, 0), b = tier->Join(&kSource, 1), c = tier->Join(&kSource, 2);
  std::vector<std::byte> memory(300);
  tier->Publish(*a, 7, &memory[0], 100);
  tier->Publish(*b, 7, &memory[100], 100);
  int copy = 0;
  std::vector<int> tried;
  const auto read = [&](int works) {
    tried.clear();
    return tier->Read(*c, 7, [&](int device, const std::byte*) -> void* {
      tried.push_back(device);
      return device == works ? &copy : nullptr;
    });
  };
  CHECK(read(1) == &copy);
  CHECK(tried == std::vector<int>{0, 1});
  CHECK(read(5) == nullptr);
  CHECK(tried == std::vector<int>{0, 1});
  CHECK(Withdraw(tier.get(), *a, &memory[0], 100).empty());  // nothing was begun there
}

TEST_CASE("nothing is found on a device whose copies do not pay") {
  const auto tier = MakePeerTier();
  const auto a = tier->Join(&kSource, 0), b = tier->Join(&kSource, 1), c = tier->Join(&kSource, 1);
  std::vector<std::byte> memory(200);
  int copy = 0;
  tier->Publish(*a, 7, &memory[0], 100);
  CHECK(tier->Unjudged(1) == std::vector<int>{0});
  tier->Judge(0, 1, false);
  CHECK(tier->Unjudged(1).empty());
  CHECK(tier->Unjudged(0) == std::vector<int>{1});
  CHECK(Read(tier.get(), *c, 7, &copy).at == nullptr);
  tier->Publish(*b, 7, &memory[100], 100);  // on its own device
  CHECK(Read(tier.get(), *c, 7, &copy).at == &memory[100]);
  CHECK(Read(tier.get(), *a, 7, &copy).at == &memory[100]);  // the other way was not judged
}

TEST_CASE("an engine that leaves waits for what is copied from it, and is not found") {
  const auto tier = MakePeerTier();
  const auto a = tier->Join(&kSource, 0), b = tier->Join(&kSource, 1);
  std::vector<std::byte> memory(200);
  int first = 0, second = 0;
  tier->Publish(*a, 1, &memory[0], 100);
  tier->Publish(*b, 2, &memory[100], 100);
  Read(tier.get(), *b, 1, &first);
  Read(tier.get(), *a, 2, &second);
  std::vector<void*> waits;
  tier->Leave(*a, [&](void* copy) { waits.push_back(copy); });
  CHECK(waits == std::vector<void*>{&first});
  CHECK(Read(tier.get(), *b, 1, &first).at == nullptr);
  // Its own copies are done, and no longer waited for.
  CHECK(Withdraw(tier.get(), *b, &memory[100], 100).empty());
  // Others may come, over the same source.
  const int other = 0;
  CHECK(tier->Join(&other, 0).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(tier->Join(&other, 0).status().message()).find("one source") !=
        std::string::npos);
  CHECK(tier->Join(&kSource, 0).ok());
}

TEST_CASE("engines that load, evict and copy at once never copy what is not there") {
  // Each engine has 8 blocks; a block's bytes say which record it holds. A copy is the copying
  // itself, under the tier's lock, so what is found must be whole.
  constexpr int kEngines = 4, kBlocks = 8, kRecords = 24, kRounds = 3000;
  constexpr int64_t kBytes = 64;
  const auto tier = MakePeerTier();
  std::vector<std::vector<std::byte>> memory(kEngines);
  std::vector<int> wrong(kEngines), copied(kEngines);
  std::vector<PeerTier::Holder> holders;
  for (auto& blocks : memory) blocks.resize(kBlocks * kBytes);
  for (int e = 0; e < kEngines; ++e) holders.push_back(*tier->Join(&kSource, e));
  std::vector<std::thread> threads;
  for (int e = 0; e < kEngines; ++e) {
    threads.emplace_back([&, e] {
      std::mt19937 random(static_cast<uint32_t>(e));
      for (int i = 0; i < kRounds; ++i) {
        const auto record = static_cast<int64_t>(random() % kRecords);
        std::byte* const block = &memory[e][(random() % kBlocks) * kBytes];
        tier->Withdraw(holders[e], block, kBytes, [](void*) {});
        std::memset(block, 0xff, kBytes);
        int copy = 0;
        const auto begin = [&](int, const std::byte* at) {
          std::memcpy(block, at, kBytes);
          return static_cast<void*>(&copy);
        };
        if (tier->Read(holders[e], record, begin) != nullptr) {
          ++copied[e];
          for (int64_t b = 0; b < kBytes; ++b) wrong[e] += block[b] != std::byte(record);
          tier->Done(holders[e], &copy);
        } else {
          std::memset(block, static_cast<int>(record), kBytes);
        }
        tier->Publish(holders[e], record, block, kBytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int bytes : wrong) CHECK(bytes == 0);
  // The first may have been alone.
  CHECK(std::accumulate(copied.begin(), copied.end(), 0) > 0);
}

TEST_CASE("out of memory a record is not found, and nothing is lost") {
  std::vector<std::byte> memory(400);
  bool happened = true;
  for (int64_t n = 0; happened; ++n) {
    REQUIRE(n < 20);
    PeerTier tier;
    const auto a = *tier.Join(&kSource, 0), b = *tier.Join(&kSource, 1);
    tier.Publish(a, 1, memory.data(), 100);
    int copy = 0;
    {
      const test::HeapFailure failure(n);
      CHECK_NOTHROW(tier.Publish(a, 2, memory.data() + 100, 100));
      CHECK_NOTHROW(Read(&tier, b, 2, &copy));
      happened = failure.happened();
    }
    CHECK(Read(&tier, b, 1, &copy).at == memory.data());
    tier.Publish(a, 2, memory.data() + 200, 100);
    CHECK(Read(&tier, b, 2, &copy).at == memory.data() + 200);
  }
}

}  // namespace
}  // namespace moert
