// A host's own policy, measured: the bundled model decodes a text with a quarter of its experts in
// memory, with eviction by LRU, by use_rate.h, and by the same policy in C.
//
//   custom_policy MODEL_DIR TOKENS.u16 [TOKENS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_policy/use_rate.h"
#include "custom_policy/use_rate_c.h"
#include "host/engine_runner.h"
#include "host/model.h"
#include "host/perplexity.h"
#include "moert/engine.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/source/expert_source.h"
#include "moert/strategy.h"
#include "moert/thread_pool.h"
#include "util/status_macros.h"

namespace {

constexpr double kBudget = 0.25;
constexpr double kDecay = 0.9;  // remembers about ten calls of a layer
// An expert of this small model is 49 KB. At this rate its transfer takes as long, relative to the
// reference profile's 0.5 ms per layer, as that of an 8 MB expert over PCIe.
constexpr double kLinkGbps = 0.1;

struct Result {
  double nll = 0;
  int64_t lookups = 0, hits = 0, loads = 0, fallbacks = 0;
  double ms_a_step = 0;  // in the virtual clock, of the reference profile
};

/// A host's MoE blocks through the C ABI.
class CRunner : public moert::host::MoeRunner {
 public:
  CRunner(moert_engine* engine, int64_t hidden) : engine_(engine), hidden_(hidden) {}

  absl::Status BeginStep(moert::host::StepPhase phase, const moert::host::StepRows& rows) override {
    moert_step_options options;
    moert_step_options_init(&options, sizeof(options));
    options.phase = phase == moert::host::StepPhase::kDecode ? MOERT_DECODE : MOERT_PREFILL;
    options.rows = rows.count();
    options.request_ids = rows.request_ids.data();
    options.token_ids = rows.tokens.data();
    return Check(moert_step_begin(engine_, &options, &step_, &error_));
  }
  absl::Status Forward(int layer, const float* x, int64_t rows, float* out) override {
    moert_tensor in, to;
    moert_tensor_init(&in, const_cast<float*>(x), rows, hidden_, MOERT_F32);
    moert_tensor_init(&to, out, rows, hidden_, MOERT_F32);
    return Check(moert_layer_forward(step_, layer, &in, nullptr, &to, &error_));
  }
  absl::Status EndStep() override {
    return Check(moert_step_end(std::exchange(step_, nullptr), &error_));
  }
  int64_t max_rows() const override { return 1; }
  double NowMs() const override { return static_cast<double>(moert_engine_now_ns(engine_)) * 1e-6; }

  absl::Status Check(moert_code code) {
    if (code == MOERT_OK) return absl::OkStatus();
    const std::unique_ptr<moert_error, decltype(&moert_error_destroy)> error(
        std::exchange(error_, nullptr), &moert_error_destroy);
    return absl::Status(static_cast<absl::StatusCode>(-code), moert_error_message(error.get()));
  }
  moert_error** error() { return &error_; }

 private:
  moert_engine* const engine_;
  const int64_t hidden_;
  moert_step* step_ = nullptr;
  moert_error* error_ = nullptr;
};

/// Decodes the text token by token with `moe` as its experts.
absl::StatusOr<Result> Decode(const std::string& model, const std::vector<int32_t>& tokens,
                              moert::host::MoeRunner* moe) {
  MOERT_ASSIGN_OR_RETURN(const moert::HfConfig config, moert::LoadHfConfig(model));
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, moert::Checkpoint::Open(model));
  MOERT_ASSIGN_OR_RETURN(const auto pool, moert::CreateThreadPool({}));
  MOERT_ASSIGN_OR_RETURN(const auto decoder,
                         moert::host::Decoder::Load(*checkpoint, config, pool.get(), moe));
  moert::host::PerplexityOptions options;
  options.window = std::min<int64_t>(512, static_cast<int64_t>(tokens.size()));
  options.step_tokens = 1;
  MOERT_ASSIGN_OR_RETURN(const auto scored,
                         moert::host::Perplexity(decoder.get(), tokens, options));
  Result result;
  result.nll = scored.nll;
  for (double ms : scored.step_ms) result.ms_a_step += ms / scored.step_ms.size();
  return result;
}

/// Runs with the strategy's own residency policy (LRU), or with UseRate in its place.
absl::StatusOr<Result> RunCpp(const std::string& model, const std::vector<int32_t>& tokens,
                              bool use_rate) {
  MOERT_ASSIGN_OR_RETURN(auto source, moert::OpenModel(model, {}));
  moert::EngineOptions options;
  options.budget = moert::Budget::Fraction(kBudget);
  options.clock = moert::ClockKind::kVirtual;
  options.link_gbps = kLinkGbps;
  options.max_tokens_per_forward = 1;
  if (use_rate) {
    options.customize_strategy = [](moert::Strategy* strategy) {
      strategy->residency = std::make_unique<UseRate>(kDecay);
      return absl::OkStatus();
    };
  }
  MOERT_ASSIGN_OR_RETURN(const auto engine, moert::Engine::Create(std::move(source), options));
  moert::host::EngineRunner runner(engine.get(), 1);
  MOERT_ASSIGN_OR_RETURN(Result result, Decode(model, tokens, &runner));
  const moert::EngineStats stats = engine->stats();
  result.lookups = stats.lookups;
  result.hits = stats.hits_resident;
  result.loads = stats.loads;
  result.fallbacks = stats.policy_fallbacks;
  return result;
}

absl::StatusOr<Result> RunC(const std::string& model, const std::vector<int32_t>& tokens) {
  CRunner errors(nullptr, 0);
  moert_source* opened = nullptr;
  MOERT_RETURN_IF_ERROR(
      errors.Check(moert_source_open(model.c_str(), nullptr, &opened, errors.error())));
  const std::unique_ptr<moert_source, decltype(&moert_source_destroy)> source(
      opened, &moert_source_destroy);
  moert_policies policies;
  if (use_rate_policies(opened, kDecay, &policies) != 0) {
    return absl::ResourceExhaustedError("no memory for the policy");
  }
  moert_engine_options options;
  moert_engine_options_init(&options, sizeof(options));
  options.budget_fraction = kBudget;
  options.clock = MOERT_CLOCK_VIRTUAL;
  options.link_gbps = kLinkGbps;
  options.max_tokens_per_forward = 1;
  options.policies = &policies;
  moert_engine* created = nullptr;
  if (absl::Status status =
          errors.Check(moert_engine_create(opened, &options, &created, errors.error()));
      !status.ok()) {
    policies.destroy(policies.user_data);  // on failure it stayed ours
    return status;
  }
  const std::unique_ptr<moert_engine, decltype(&moert_engine_destroy)> engine(
      created, &moert_engine_destroy);
  moert_layer_spec spec;
  moert_layer_spec_init(&spec, sizeof(spec));
  MOERT_RETURN_IF_ERROR(errors.Check(moert_engine_layer(created, 0, &spec, errors.error())));
  CRunner runner(created, spec.hidden);
  MOERT_ASSIGN_OR_RETURN(Result result, Decode(model, tokens, &runner));
  moert_stats stats;
  moert_stats_init(&stats, sizeof(stats));
  MOERT_RETURN_IF_ERROR(errors.Check(moert_engine_stats(created, &stats, errors.error())));
  result.lookups = stats.lookups;
  result.hits = stats.hits_resident;
  result.loads = stats.loads;
  result.fallbacks = stats.policy_fallbacks;
  return result;
}

absl::StatusOr<std::vector<int32_t>> ReadTokens(const char* path, size_t limit) {
  std::ifstream file(path, std::ios::binary);
  std::vector<int32_t> tokens;
  unsigned char bytes[2];
  while (tokens.size() < limit && file.read(reinterpret_cast<char*>(bytes), 2)) {
    tokens.push_back(bytes[0] | bytes[1] << 8);
  }
  if (tokens.size() < 2) return absl::NotFoundError(std::string(path) + ": no tokens");
  return tokens;
}

absl::Status Run(const std::string& model, const char* token_file, size_t limit) {
  MOERT_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, ReadTokens(token_file, limit));
  MOERT_ASSIGN_OR_RETURN(const Result lru, RunCpp(model, tokens, false));
  MOERT_ASSIGN_OR_RETURN(const Result cpp, RunCpp(model, tokens, true));
  MOERT_ASSIGN_OR_RETURN(const Result c, RunC(model, tokens));
  std::printf("%-18s %10s %8s %10s\n", "eviction", "hit ratio", "loads", "ms a step");
  for (const auto& [name, r] : {std::pair<const char*, const Result&>{"LRU (default)", lru},
                                {"use rate, C++", cpp},
                                {"use rate, C", c}}) {
    std::printf("%-18s %8.1f %% %8lld %10.3f\n", name,
                100.0 * static_cast<double>(r.hits) / static_cast<double>(r.lookups),
                static_cast<long long>(r.loads), r.ms_a_step);
  }
  if (cpp.nll != lru.nll || c.nll != lru.nll) {
    return absl::InternalError("an eviction policy changed the output");
  }
  if (cpp.loads != c.loads || cpp.hits != c.hits || cpp.fallbacks != 0 || c.fallbacks != 0) {
    return absl::InternalError("the two spellings decided differently");
  }
  std::printf("nll %.6f, the same three times\n", lru.nll);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: %s MODEL_DIR TOKENS.u16 [TOKENS]\n", argv[0]);
    return 2;
  }
  const absl::Status status =
      Run(argv[1], argv[2], argc == 4 ? std::strtoull(argv[3], nullptr, 10) : 512);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
