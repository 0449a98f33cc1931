// An inference server's loop under load: requests arrive at random times, are batched as they come,
// some clients leave early, and meanwhile an operator changes the budget. Prints latency
// percentiles; then every answer is compared with that of a server which has the machine to itself.
//
//   server_loop MODEL_DIR TOKENS.u16 [requests=32] [rate=40] [sequences=8] [budget=0.25]
//               [strategy=on-demand] [seed=1]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <stop_token>
#include <string>
#include <thread>

#include "host/generate.h"
#include "moert/engine.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/source/expert_source.h"
#include "moert/thread_pool.h"
#include "server_loop/server.h"
#include "util/status_macros.h"

namespace moert::server {
namespace {

struct Load {
  int64_t requests = 32;
  double rate = 40;  // arrivals a second
  int64_t sequences = 8;
  double budget = 0.25;
  std::string strategy = "on-demand";
  uint64_t seed = 1;
};

constexpr int64_t kMaxRows = 64;

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const std::string& model,
                                                   const std::string& strategy, double budget) {
  MOERT_ASSIGN_OR_RETURN(auto source, OpenModel(model, {}));
  EngineOptions options;
  options.strategy = strategy;
  options.budget = Budget::Fraction(budget);
  options.max_tokens_per_forward = kMaxRows;
  return Engine::Create(std::move(source), options);
}

struct Arrival {
  Request request;
  double wait_ms = 0;     // after the one before
  double leaves_ms = -1;  // after it arrived; negative: stays
};

std::vector<Arrival> MakeArrivals(const Load& load, const std::vector<int32_t>& tokens) {
  std::mt19937_64 random(load.seed);
  const auto uniform = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  std::vector<Arrival> arrivals;
  for (int64_t i = 0; i < load.requests; ++i) {
    Arrival a;
    a.request.id = i;
    const int64_t length = uniform(8, 96);
    const int64_t first = uniform(0, static_cast<int64_t>(tokens.size()) - length);
    a.request.prompt.assign(tokens.begin() + first, tokens.begin() + first + length);
    a.request.max_tokens = uniform(4, 24);
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    a.wait_ms = -1000.0 / load.rate * std::log(1 - u);  // Poisson arrivals
    if (i % 5 == 4) a.leaves_ms = static_cast<double>(uniform(1, 60));
    arrivals.push_back(std::move(a));
  }
  return arrivals;
}

void SleepMs(double ms) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
}

void PrintPercentiles(const char* what, std::vector<double> values) {
  if (values.empty()) return;
  std::sort(values.begin(), values.end());
  const auto at = [&](double p) { return values[static_cast<size_t>(p * (values.size() - 1))]; };
  std::printf("%-22s p50 %8.2f  p90 %8.2f  p99 %8.2f ms  (%zu)\n", what, at(0.5), at(0.9), at(0.99),
              values.size());
}

/// Every answer must be what the model says when it has nothing else to do.
absl::Status Verify(const std::string& model, const std::vector<Arrival>& arrivals,
                    const std::map<int64_t, Reply>& replies, const HfConfig& config,
                    const Checkpoint& checkpoint, ThreadPool* pool) {
  MOERT_ASSIGN_OR_RETURN(const auto engine, MakeEngine(model, "resident", 1));
  host::EngineRunner runner(engine.get(), kMaxRows);
  MOERT_ASSIGN_OR_RETURN(const auto decoder,
                         host::Decoder::Load(checkpoint, config, pool, &runner));
  for (const Arrival& arrival : arrivals) {
    const Reply& reply = replies.at(arrival.request.id);
    if (reply.tokens.empty()) continue;  // cancelled before its first token
    host::GenerateOptions options;
    options.max_tokens = static_cast<int64_t>(reply.tokens.size());
    MOERT_ASSIGN_OR_RETURN(const auto alone,
                           host::Generate(decoder.get(), arrival.request.prompt, options));
    if (alone.tokens != reply.tokens) {
      return absl::InternalError("request " + std::to_string(reply.id) +
                                 " got another answer than alone");
    }
  }
  return absl::OkStatus();
}

/// Prints what the server did. An error where a request got none, or the budget was not kept.
absl::Status Report(const std::map<int64_t, Reply>& replies, const Load& load,
                    const Server::Counters& counters, const Engine& engine, double seconds,
                    int64_t budget_changes) {
  std::vector<double> queue, ttft, gaps;
  int64_t finished = 0, cancelled = 0, made = 0;
  for (const auto& [id, reply] : replies) {
    if (!reply.status.ok() && !absl::IsCancelled(reply.status)) return reply.status;
    ++(reply.status.ok() ? finished : cancelled);
    made += static_cast<int64_t>(reply.tokens.size());
    queue.push_back(reply.queue_ms);
    if (!reply.tokens.empty()) ttft.push_back(reply.ttft_ms);
    gaps.insert(gaps.end(), reply.gap_ms.begin(), reply.gap_ms.end());
  }
  if (static_cast<int64_t>(replies.size()) != load.requests) {
    return absl::InternalError("a request got no reply");
  }
  const EngineStats stats = engine.stats();
  std::printf(
      "%lld requests: %lld finished, %lld cancelled; %lld tokens in %.2f s, %.1f a second\n",
      static_cast<long long>(load.requests), static_cast<long long>(finished),
      static_cast<long long>(cancelled), static_cast<long long>(made), seconds,
      static_cast<double>(made) / seconds);
  PrintPercentiles("waiting", queue);
  PrintPercentiles("to the first token", ttft);
  PrintPercentiles("between tokens", gaps);
  std::printf("steps: %lld prefill, %lld decode of %.1f rows, %lld interrupted\n",
              static_cast<long long>(counters.prefills), static_cast<long long>(counters.decodes),
              static_cast<double>(counters.decoded_rows) /
                  static_cast<double>(std::max<int64_t>(1, counters.decodes)),
              static_cast<long long>(counters.interrupted));
  std::printf("experts: hit ratio %.3f, %lld loads, budget changed %lld times and kept: %s\n",
              stats.hit_ratio(), static_cast<long long>(stats.loads),
              static_cast<long long>(budget_changes),
              stats.peak_bytes <= engine.memory().budget_bytes ? "yes" : "no");
  if (stats.peak_bytes > engine.memory().budget_bytes) return absl::InternalError("over budget");
  return absl::OkStatus();
}

/// Gives half of the memory away and takes it back, while requests run.
class Operator {
 public:
  Operator(Engine* engine, double budget)
      : thread_([this, engine, budget](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            for (double share : {budget / 2, budget}) {
              status_.Update(engine->SetBudget(Budget::Fraction(share)));
              ++changes_;
              SleepMs(5);
            }
          }
        }) {}

  /// How often it changed the budget.
  absl::StatusOr<int64_t> Stop() {
    thread_.request_stop();
    thread_.join();
    if (!status_.ok()) return status_;
    return changes_;
  }

 private:
  absl::Status status_;
  int64_t changes_ = 0;
  std::jthread thread_;  // last, as it uses the members above
};

/// Submits every request when it arrives, and cancels those that leave early.
void Serve(const std::vector<Arrival>& arrivals, Server* server) {
  std::vector<std::jthread> leaving;
  for (const Arrival& arrival : arrivals) {
    SleepMs(arrival.wait_ms);
    server->Submit(arrival.request);
    if (arrival.leaves_ms < 0) continue;
    leaving.emplace_back([server, &arrival] {
      SleepMs(arrival.leaves_ms);
      server->Cancel(arrival.request.id);
    });
  }
  leaving.clear();  // joins them
  server->Drain();
}

absl::Status Run(const std::string& model, const std::vector<int32_t>& tokens, const Load& load) {
  MOERT_ASSIGN_OR_RETURN(const HfConfig config, LoadHfConfig(model));
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(model));
  MOERT_ASSIGN_OR_RETURN(const auto pool, CreateThreadPool({}));
  MOERT_ASSIGN_OR_RETURN(const auto engine, MakeEngine(model, load.strategy, load.budget));
  InterruptibleRunner runner(engine.get(), kMaxRows);
  MOERT_ASSIGN_OR_RETURN(const auto decoder,
                         host::Decoder::Load(*checkpoint, config, pool.get(), &runner));
  const std::vector<Arrival> arrivals = MakeArrivals(load, tokens);

  std::mutex mutex;
  std::map<int64_t, Reply> replies;
  ServerOptions options;
  options.max_sequences = load.sequences;
  options.max_prefill_rows = kMaxRows;
  options.on_reply = [&](Reply reply) {
    const std::lock_guard lock(mutex);
    replies.emplace(reply.id, std::move(reply));
  };
  Server server(decoder.get(), &runner, options);

  Operator budget_operator(engine.get(), load.budget);
  const auto begin = std::chrono::steady_clock::now();
  Serve(arrivals, &server);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  MOERT_ASSIGN_OR_RETURN(const int64_t changes, budget_operator.Stop());
  MOERT_RETURN_IF_ERROR(Report(replies, load, server.counters(), *engine, took.count(), changes));
  if (!engine->exact()) return absl::OkStatus();  // a lossy strategy answers as it may
  MOERT_RETURN_IF_ERROR(Verify(model, arrivals, replies, config, *checkpoint, pool.get()));
  std::printf("every answer is the one the model gives alone\n");
  return absl::OkStatus();
}

}  // namespace
}  // namespace moert::server

int main(int argc, char** argv) {
  moert::server::Load load;
  bool good = argc >= 3;
  for (int i = 3; i < argc && good; ++i) {
    const char* equals = std::strchr(argv[i], '=');
    const std::string name(argv[i], equals == nullptr ? 0 : static_cast<size_t>(equals - argv[i]));
    const char* value = equals == nullptr ? "" : equals + 1;
    const double number = std::atof(value);
    if (name == "requests" && number >= 1)
      load.requests = static_cast<int64_t>(number);
    else if (name == "rate" && number > 0)
      load.rate = number;
    else if (name == "sequences" && number >= 1)
      load.sequences = static_cast<int64_t>(number);
    else if (name == "budget" && number > 0 && number <= 1)
      load.budget = number;
    else if (name == "strategy")
      load.strategy = value;
    else if (name == "seed")
      load.seed = static_cast<uint64_t>(number);
    else
      good = false;
  }
  std::vector<int32_t> tokens;
  if (good) {
    std::ifstream file(argv[2], std::ios::binary);
    unsigned char bytes[2];
    while (file.read(reinterpret_cast<char*>(bytes), 2)) tokens.push_back(bytes[0] | bytes[1] << 8);
  }
  if (tokens.size() < 128) {
    std::fprintf(stderr,
                 "usage: %s MODEL_DIR TOKENS.u16 [requests=32] [rate=40] [sequences=8] "
                 "[budget=0.25] [strategy=on-demand] [seed=1]\n",
                 argv[0]);
    return 2;
  }
  const absl::Status status = moert::server::Run(argv[1], tokens, load);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
