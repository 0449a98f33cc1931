#include <algorithm>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "support/catch.h"

namespace moert {
namespace {

TEST_CASE("AheadLock goes ahead of those that wait for theirs") {
  constexpr int kWaiting = 32, kFirst = -1;
  Turns turns;
  Mutex mu;
  std::vector<int> order;
  std::vector<std::thread> threads;
  mu.Lock();
  for (int i = 0; i < kWaiting; ++i) {
    threads.emplace_back([&, i] {
      const TurnLock lock(&turns, &mu);
      order.push_back(i);
    });
  }
  // All of them wait by then; were one late, the order would be no worse.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  threads.emplace_back([&] {
    const AheadLock lock(&turns, &mu);
    order.push_back(kFirst);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  mu.Unlock();
  for (std::thread& thread : threads) thread.join();
  REQUIRE(order.size() == kWaiting + 1);
  const auto at = std::find(order.begin(), order.end(), kFirst) - order.begin();
  CHECK(at <= 1);  // one may wait for the mutex already
}

}  // namespace
}  // namespace moert
