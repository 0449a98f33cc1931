// The expert-cache rule on the device against the host's, to the bit: all the small cases of the
// unit test, batches that take every path of the kernel, and the caps from call to call.
#include "kernels/cuda/route/expert_cache.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <random>

#include "exec/cuda/route/device_routing.h"
#include "tests/support/catch.h"
#include "tests/support/expert_cache_cases.h"

namespace moert::test {
namespace {

using cuda::ExpertCacheArgs;

/// Device memory that gives out arrays and takes them all back at once.
class Arena {
 public:
  explicit Arena(size_t bytes) : bytes_(bytes), host_(bytes) {
    REQUIRE(cudaMalloc(&device_, bytes) == cudaSuccess);
  }
  ~Arena() { cudaFree(device_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void Clear() { used_ = 0; }
  bool Fits(size_t bytes) const { return used_ + bytes <= bytes_; }
  /// Where `values` will be on the device.
  template <typename T>
  T* Put(const std::vector<T>& values, size_t count) {
    used_ = (used_ + 15) / 16 * 16;
    if (used_ + count * sizeof(T) > bytes_) FAIL("arena too small");
    if (!values.empty()) std::memcpy(host_.data() + used_, values.data(), count * sizeof(T));
    T* at = reinterpret_cast<T*>(static_cast<std::byte*>(device_) + used_);
    used_ += count * sizeof(T);
    return at;
  }
  template <typename T>
  T* Zeros(size_t count) {
    return Put(std::vector<T>(count), count);
  }
  void Up() {
    REQUIRE(cudaMemcpy(device_, host_.data(), used_, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  void Down() {
    REQUIRE(cudaMemcpy(host_.data(), device_, used_, cudaMemcpyDeviceToHost) == cudaSuccess);
  }
  /// On the host, after Down.
  template <typename T>
  const T* Host(const T* device) const {
    return reinterpret_cast<const T*>(host_.data() + (reinterpret_cast<const std::byte*>(device) -
                                                      static_cast<std::byte*>(device_)));
  }

 private:
  const size_t bytes_;
  std::vector<std::byte> host_;
  void* device_ = nullptr;
  size_t used_ = 0;
};

/// Cases wait for one another: many kernels, then one look at what they answered.
class Device {
 public:
  Device() : arena_(size_t{32} << 20) {}
  ~Device() { Flush(); }

  /// `want`: the host's answer to the same call.
  void Expect(const Call& call, const RoutingRule& rule, const Answer& want) {
    if (!arena_.Fits(size_t{64} << 10)) Flush();
    pending_.push_back({Prepare(call, rule, &arena_), call, rule, want});
  }

  void Flush() {
    if (pending_.empty()) return;
    arena_.Up();
    for (const Pending& p : pending_) {
      if (cuda::LaunchExpertCache(p.args, nullptr) != 0) FAIL("launch failed");
    }
    arena_.Down();
    for (const Pending& p : pending_) {
      const std::string differs = Compare(p, arena_);
      if (!differs.empty()) FAIL(differs << ": " << Show(p.call, p.rule));
      ++compared;
    }
    pending_.clear();
    arena_.Clear();
  }

  struct Pending {
    ExpertCacheArgs args;
    Call call;
    RoutingRule rule;
    Answer want;
  };

  /// Everything but the accounts, which begin at nothing, one a request of the call.
  static ExpertCacheArgs Prepare(const Call& call, const RoutingRule& rule, Arena* arena) {
    const size_t tokens = call.scores.size();
    const auto k = static_cast<size_t>(call.spec.top_k);
    ExpertCacheArgs args = cuda::MakeExpertCacheArgs(rule);
    args.routing = cuda::MakeDeviceRouting(
        call.spec, call.experts,
        call.bias.empty() ? nullptr : arena->Put(call.bias, call.bias.size()));
    args.tokens = static_cast<int32_t>(tokens);
    std::vector<float> scores, weights;
    std::vector<int32_t> ids;
    for (size_t t = 0; t < tokens; ++t) {
      const Ids choice = ModelChoice(call, t);
      const std::vector<float> w = ModelWeights(call, t, choice);
      scores.insert(scores.end(), call.scores[t].begin(), call.scores[t].end());
      ids.insert(ids.end(), choice.begin(), choice.end());
      weights.insert(weights.end(), w.begin(), w.end());
    }
    std::vector<cuda::ExpertHandle> handles(call.experts);
    static const uint8_t record = 0;
    for (int e = 0; e < call.experts; ++e) {
      // An expert that is there in a lower version only does not count.
      if (call.resident[e] != 0) handles[e] = {&record, 0, 0};
      if (call.resident[e] == 0 && e % 2 == 1) handles[e] = {&record, 0, 1};
    }
    args.scores = arena->Put(scores, scores.size());
    args.ids = arena->Put(ids, ids.size());
    args.weights = arena->Put(weights, weights.size());
    args.handles = arena->Put(handles, handles.size());
    std::map<int64_t, int32_t> account;
    std::vector<int32_t> account_of;
    for (const int64_t id : call.requests) {
      account_of.push_back(
          account.try_emplace(id, static_cast<int32_t>(account.size() + 1)).first->second);
    }
    if (!account_of.empty()) args.account_of = arena->Put(account_of, tokens);
    args.one_row_each = tokens == 1 || account.size() == tokens ? 1 : 0;
    args.accounts = arena->Zeros<cuda::RequestAccount>(account.size() + 1);
    args.worst_shares = arena->Zeros<double>(2);
    args.scratch = arena->Zeros<cuda::ExpertCacheToken>(tokens);
    args.own_ids = arena->Zeros<int32_t>(tokens * k);
    args.own_weights = arena->Zeros<float>(tokens * k);
    args.host_own_ids = arena->Zeros<int32_t>(tokens * k);
    args.host_own_weights = arena->Zeros<float>(tokens * k);
    args.report = arena->Zeros<cuda::ExpertCacheReport>(1);
    return args;
  }

  static std::string Compare(const Pending& p, const Arena& arena) {
    const size_t k = p.want.ids[0].size();
    for (size_t t = 0; t < p.want.ids.size(); ++t) {
      for (size_t j = 0; j < k; ++j) {
        const size_t at = t * k + j;
        const std::string slot = "token " + std::to_string(t) + ", slot " + std::to_string(j);
        if (arena.Host(p.args.ids)[at] != p.want.ids[t][j]) return slot + ": other expert";
        if (std::memcmp(&arena.Host(p.args.weights)[at], &p.want.weights[t][j], 4) != 0) {
          return slot + ": other weight";
        }
        if (arena.Host(p.args.host_own_ids)[at] != p.want.model[t][j]) return slot + ": own id";
        if (arena.Host(p.args.host_own_weights)[at] != p.want.model_weights[t][j]) {
          return slot + ": own weight";
        }
      }
    }
    for (int e = 0; e < p.call.experts; ++e) {
      const bool top = arena.Host(p.args.report)->top_score[e / 32] >> (e % 32) & 1;
      const bool here = arena.Host(p.args.report)->resident[e / 32] >> (e % 32) & 1;
      if (top != (p.want.outcome.top_score[e] != 0)) return "other set C";
      if (here != (p.call.resident[e] != 0)) return "other residency";
    }
    return "";
  }

  int64_t compared = 0;

 private:
  Arena arena_;
  std::vector<Pending> pending_;
};

TEST_CASE("one token: all scores on a grid, all residencies") {
  Device device;
  ForOneToken([&](const Call& call, const RoutingRule& rule, bool) {
    device.Expect(call, rule, Apply(call, rule));
  });
  device.Flush();
  CHECK(device.compared == 3 * 1024 * 32 * 4);
}

TEST_CASE("two tokens: all pairs of score rows on a grid, all residencies, both passes") {
  Device device;
  ForTwoTokens([&](const Call& call, const RoutingRule& rule) {
    device.Expect(call, rule, Apply(call, rule));
  });
  device.Flush();
  CHECK(device.compared == 81 * 81 * 16 * 2);
}

TEST_CASE("random batches over every routing kind that has scores, caps and weights") {
  Device device;
  std::mt19937 rng(8);
  int64_t substituted = 0;
  ForRandomBatches(20000, [&](const Call& call, const RoutingRule& given) {
    Call with_requests = call;
    RoutingRule rule = given;
    if (rng() % 2) rule.max_slot_share = 0.05f * static_cast<float>(rng() % 20);
    if (rng() % 2) rule.max_mass_share = 0.05f * static_cast<float>(rng() % 20);
    rule.own_score_weights = rng() % 3 != 0;
    const auto requests = static_cast<int64_t>(rng() % 8);  // few: rows share them
    for (size_t t = 0; requests > 0 && t < call.scores.size(); ++t) {
      with_requests.requests.push_back(static_cast<int64_t>(rng() % requests) - 3);
    }
    const Answer want = Apply(with_requests, rule);
    substituted += want.outcome.substituted;
    device.Expect(with_requests, rule, want);
  });
  device.Flush();
  CHECK(device.compared == 20000);
  CHECK(substituted > 5000);
}

Call LargeCall(int experts, int top_k, size_t tokens, std::mt19937* rng) {
  Call call;
  call.spec.top_k = top_k;
  call.spec.renormalize = (*rng)() % 2 == 0;
  call.experts = experts;
  std::uniform_real_distribution<float> uniform(0, 1);
  for (size_t t = 0; t < tokens; ++t) {
    std::vector<float> row(experts);
    float sum = 0;
    for (float& s : row) sum += s = std::exp(3 * uniform(*rng));
    for (float& s : row) s /= sum;
    call.scores.push_back(row);
  }
  call.resident.resize(experts);
  for (uint8_t& r : call.resident) r = (*rng)() % 3 == 0;
  return call;
}

TEST_CASE("shapes of published models, up to the most experts and slots") {
  Device device;
  std::mt19937 rng(9);
  int64_t substituted = 0;
  for (const auto& [experts, top_k] : {std::pair{60, 4},
                                       {64, 6},
                                       {64, 8},
                                       {128, 8},
                                       {160, 6},
                                       {256, 8},
                                       {384, 8},
                                       {512, 10},
                                       {512, 32}}) {
    for (const size_t tokens : {1, 3, 8, 33, 300}) {
      for (const bool second_pass : {false, true}) {
        Call call = LargeCall(experts, top_k, tokens, &rng);
        if (experts == 256) {
          call.spec = {RoutingKind::kSigmoidGrouped, top_k, true, 2.5f, 8, 4};
          for (int e = 0; e < experts; ++e) call.bias.push_back(1e-4f * static_cast<float>(e % 7));
        }
        for (size_t t = 0; tokens != 33 && t < tokens; ++t) {
          call.requests.push_back(tokens == 300 ? static_cast<int64_t>(t % 7)
                                                : static_cast<int64_t>(t) * 1000);
        }
        RoutingRule rule = Rule(0.4f, second_pass);
        if (tokens == 300) rule.max_slot_share = 0.2f;
        const Answer want = Apply(call, rule);
        substituted += want.outcome.substituted;
        Device::Pending pending;
        Arena arena(size_t{4} << 20);
        pending.args = Device::Prepare(call, rule, &arena);
        pending.call = call;
        pending.want = want;
        arena.Up();
        REQUIRE(cuda::LaunchExpertCache(pending.args, nullptr) == 0);
        arena.Down();
        INFO(experts << " experts, top " << top_k << ", " << tokens << " tokens, second pass "
                     << second_pass);
        CHECK(Device::Compare(pending, arena) == "");
      }
    }
  }
  CHECK(substituted > 1000);
}

TEST_CASE("the caps hold from call to call, on the same accounts as the host's") {
  std::mt19937 rng(6);
  for (const float cap : {0.05f, 0.2f}) {
    SubstitutionLedger ledger;
    RoutingRule rule = Rule(0.6f, true);
    rule.max_slot_share = cap;
    rule.max_mass_share = cap / 2;
    Arena kept(1 << 16);
    cuda::RequestAccount* accounts = kept.Zeros<cuda::RequestAccount>(16);
    double* worst = kept.Zeros<double>(2);
    int32_t* rows = kept.Zeros<int32_t>(16);
    int32_t* apart = kept.Zeros<int32_t>(1);
    kept.Up();
    int64_t total = 0;
    Arena arena(1 << 20);
    for (int step = 0; step < 200; ++step) {
      Call call;
      call.spec.top_k = 4;
      call.experts = 12;
      Residency(&call, static_cast<int>(rng() % 4096));
      std::uniform_real_distribution<float> uniform(0.2f, 1.0f);
      cuda::AccountRows set{};
      for (int64_t r = 0; r < 5; ++r) {
        if (rng() % 3 == 0) continue;
        call.requests.push_back(r * 1000);
        set.account[set.count++] = static_cast<int32_t>(r + 1);
        call.scores.emplace_back();
        for (int e = 0; e < 12; ++e) call.scores.back().push_back(uniform(rng));
      }
      if (call.scores.empty()) continue;
      if (step == 0) set.fresh[0] = (1u << set.count) - 1;
      set.one_row_each = step % 2;
      const Answer want = Apply(call, rule, &ledger);
      total += want.outcome.substituted;
      arena.Clear();
      Device::Pending pending;
      pending.call = call;
      pending.want = want;
      pending.args = Device::Prepare(call, rule, &arena);
      pending.args.account_of = rows;
      pending.args.accounts = accounts;
      pending.args.worst_shares = worst;
      pending.args.rows_apart = apart;
      arena.Up();
      REQUIRE(cuda::LaunchSetAccounts(rows, apart, accounts, nullptr, set, nullptr) == 0);
      REQUIRE(cuda::LaunchExpertCache(pending.args, nullptr) == 0);
      arena.Down();
      kept.Down();
      REQUIRE(Device::Compare(pending, arena) == "");
      for (size_t t = 0; t < call.requests.size(); ++t) {
        const cuda::RequestAccount& got = kept.Host(accounts)[set.account[t]];
        const SubstitutionAccount& host = ledger.Of(call.requests[t]);
        REQUIRE(got.slots == host.slots);
        REQUIRE(got.substituted == host.substituted);
        REQUIRE(got.mass == host.mass);
        REQUIRE(got.mass_substituted == host.mass_substituted);
      }
      REQUIRE(arena.Host(pending.args.report)->worst_slot_share == ledger.worst_slot_share());
      REQUIRE(arena.Host(pending.args.report)->worst_mass_share == ledger.worst_mass_share());
    }
    CHECK(total > 10);
  }
}

}  // namespace
}  // namespace moert::test
