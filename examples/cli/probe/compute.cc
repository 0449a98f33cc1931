// Rates of expert products, and what a layer call takes beside them.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <utility>

#include "cli/probe/attention_loop.h"
#include "cli/probe/parts.h"
#include "cli/workload/random_vectors.h"
#include "cli/workload/synthetic_experts.h"
#include "moert/engine.h"
#include "moert/mixed_group_gemm.h"
#include "moert/tools/trace.h"
#include "util/aligned_buffer.h"
#include "util/rounding.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// Weights that a cache cannot hold: several times the last level's size.
int64_t WeightBytes() {
  const int64_t cache = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  return std::clamp<int64_t>(6 * cache, int64_t{192} << 20, int64_t{1} << 30);
}

constexpr int kExpertsACall = 8;

struct Records {
  RecordLayout layout;
  int64_t stride = 0;
  int64_t count = 0;
  util::AlignedBuffer bytes;
};

absl::Status MakeRecords(int64_t hidden, int64_t intermediate, const std::string& name,
                         int64_t bytes, int64_t least, Records* r) {
  MOERT_ASSIGN_OR_RETURN(const Scheme scheme, Scheme::Parse(name));
  MOERT_ASSIGN_OR_RETURN(r->layout,
                         MakeRecordLayout(hidden, intermediate, ExpertFormat::Uniform(scheme)));
  r->stride = util::RoundUp(r->layout.bytes, kRecordAlignment);
  r->count = std::max<int64_t>(least, bytes / r->stride);
  MOERT_RETURN_IF_ERROR(r->bytes.Reset(r->count * r->stride));
  for (int64_t i = 0; i < r->count; ++i) FillRecord(r->layout, i, r->bytes.data() + i * r->stride);
  return absl::OkStatus();
}

/// Every record once, `experts` a call; bytes of weights a second. Large token counts use fewer
/// records.
absl::StatusOr<double> Pass(MixedGroupGemm* gemm, const Records& records, int64_t experts,
                            int64_t tokens, const util::AlignedBuffer& x,
                            util::AlignedBuffer* out) {
  std::vector<int32_t> rows(tokens), out_rows(tokens * experts);
  std::iota(rows.begin(), rows.end(), 0);
  std::iota(out_rows.begin(), out_rows.end(), 0);
  const int64_t calls = std::clamp<int64_t>(
      records.count / experts * 8 / std::max<int64_t>(8, tokens), 1, records.count / experts);
  const auto begin = Clock::now();
  for (int64_t c = 0; c < calls; ++c) {
    std::vector<ExpertProblem> problems(experts);
    for (int64_t i = 0; i < experts; ++i) {
      problems[i].record = records.bytes.data() + (c * experts + i) * records.stride;
      problems[i].layout = &records.layout;
      problems[i].tokens = rows;
      problems[i].out_rows = absl::MakeConstSpan(out_rows).subspan(i * tokens, tokens);
    }
    MOERT_RETURN_IF_ERROR(gemm->Run(reinterpret_cast<const float*>(x.data()), tokens,
                                    records.layout.gate.k, problems,
                                    reinterpret_cast<float*>(out->data())));
  }
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  return static_cast<double>(calls * experts * records.layout.bytes) / seconds.count();
}

/// Collects the time of calls apart from products and waiting.
class Times final : public TraceSink {
 public:
  void OnCall(const TraceCall& call) override {
    const CallTimes& t = call.times;
    if (call.tokens == 1 && !next_gate_) {
      total_.push_back(static_cast<double>(t.end_ns - t.begin_ns - t.stalled_ns));
    }
    (call.tokens > 1 ? many_
     : next_gate_    ? with_next_gate_
                     : one_)
        .push_back(static_cast<double>(t.end_ns - t.begin_ns - t.multiply_ns - t.stalled_ns));
  }
  void OnSpan(const TimelineSpan&) override {}
  bool wants_next_scores() const override { return next_gate_; }

  bool next_gate_ = false;
  std::vector<double> total_, one_, many_, with_next_gate_;
};

}  // namespace

absl::StatusOr<std::vector<ComputeProbe>> ProbeCompute(ThreadPool* pool, int64_t hidden,
                                                       int64_t intermediate,
                                                       const std::vector<int>& tokens,
                                                       const std::vector<std::string>& schemes,
                                                       int repeats, const Until& until) {
  const int64_t most = *std::max_element(tokens.begin(), tokens.end());
  util::AlignedBuffer x, out;
  MOERT_RETURN_IF_ERROR(x.Reset(most * hidden * 4));
  MOERT_RETURN_IF_ERROR(out.Reset(most * kExpertsACall * hidden * 4));
  for (int64_t i = 0; i < most * hidden; ++i) {
    reinterpret_cast<float*>(x.data())[i] = RandomNormal(7, i);
  }
  std::vector<std::string> names = MixedGroupGemm::KernelNames();
  if (names.size() > 1) names.pop_back();  // the reference takes minutes
  std::vector<ComputeProbe> probes;
  for (const std::string& scheme : schemes) {
    Records records;
    MOERT_RETURN_IF_ERROR(
        MakeRecords(hidden, intermediate, scheme, WeightBytes(), kExpertsACall, &records));
    std::vector<std::unique_ptr<MixedGroupGemm>> gemms;
    const size_t first = probes.size();
    std::vector<std::vector<double>> samples;
    for (const std::string& name : names) {
      MOERT_ASSIGN_OR_RETURN(auto gemm,
                             MixedGroupGemm::Create(pool, name, ActivationNumerics::kBF16));
      const auto warm = Pass(gemm.get(), records, kExpertsACall, 1, x, &out);
      if (absl::IsUnimplemented(warm.status())) continue;  // no kernel for the scheme
      MOERT_RETURN_IF_ERROR(warm.status());
      gemms.push_back(std::move(gemm));
      const int64_t bytes = records.layout.bytes;
      for (const int n : tokens) {
        probes.push_back({name, scheme, kExpertsACall, n, kExpertsACall * bytes, {}});
      }
      probes.push_back({name, scheme, 1, 1, bytes, {}});
    }
    samples.resize(probes.size() - first);
    const size_t a_set = tokens.size() + 1;
    for (int r = 0; r < repeats; ++r) {
      for (size_t i = 0; i < samples.size(); ++i) {
        if ((r > 0 || i >= a_set) && until.passed()) break;
        const ComputeProbe& p = probes[first + i];
        MOERT_ASSIGN_OR_RETURN(const double rate,
                               Pass(gemms[i / a_set].get(), records, p.experts, p.tokens, x, &out));
        samples[i].push_back(rate);
      }
    }
    for (size_t i = 0; i < samples.size(); ++i) {
      probes[first + i].bytes_per_s = SpreadOf(samples[i]);
    }
    std::erase_if(probes, [](const ComputeProbe& p) { return p.bytes_per_s.max == 0; });
  }
  return probes;
}

absl::StatusOr<double> ExpertRate(ThreadPool* pool, const ExpertRateOptions& o) {
  const int64_t experts = std::max<int64_t>(o.experts, 1);
  Records records;
  // Narrower experts where so many of the model's do not fit: what is read a second stays the same.
  int64_t width = o.intermediate;
  while (width >= 256 && width % 2 == 0 && experts * 3 * width * o.hidden * 2 > o.bytes) width /= 2;
  MOERT_RETURN_IF_ERROR(MakeRecords(o.hidden, width, o.scheme, o.bytes, experts, &records));
  MOERT_ASSIGN_OR_RETURN(const auto gemm,
                         MixedGroupGemm::Create(pool, "auto", ActivationNumerics::kBF16));
  util::AlignedBuffer x, out;
  MOERT_RETURN_IF_ERROR(x.Reset(o.hidden * 4));
  MOERT_RETURN_IF_ERROR(out.Reset(experts * o.hidden * 4));
  for (int64_t i = 0; i < o.hidden; ++i) {
    reinterpret_cast<float*>(x.data())[i] = RandomNormal(7, i);
  }
  std::vector<double> samples;
  const auto begin = Clock::now();
  std::chrono::duration<double> took{};
  do {
    MOERT_ASSIGN_OR_RETURN(const double rate, Pass(gemm.get(), records, experts, 1, x, &out));
    samples.push_back(rate);
    took = Clock::now() - begin;
  } while (took.count() < o.seconds);
  return SpreadOf(samples).median;
}

absl::StatusOr<LayerOverhead> ProbeLayer(const Shape& shape, int threads, int64_t attention_ns,
                                         int repeats, const Until& until) {
  constexpr int64_t kMany = 64;
  MOERT_ASSIGN_OR_RETURN(const Workload gates,
                         Workload::Create("steady", shape.spec, shape.common_share, 1));
  SyntheticOptions synthetic;
  synthetic.memory_bytes = int64_t{64} << 20;
  MOERT_ASSIGN_OR_RETURN(const auto experts, MakeSyntheticExperts(shape, gates, 1, synthetic));
  const auto times = std::make_shared<Times>();
  EngineOptions options;
  options.strategy = "resident";
  options.threads = threads;
  options.max_tokens_per_forward = kMany;
  options.trace = times;
  MOERT_ASSIGN_OR_RETURN(const auto engine, Engine::Create(experts, options));
  MOERT_ASSIGN_OR_RETURN(const auto attention, AttentionLoop::Create(threads));
  const int64_t hidden = shape.spec.layers.front().hidden;
  std::vector<float> x(kMany * hidden), out(kMany * hidden);
  uint64_t seed = 9;
  for (int r = 0; r < repeats * 10 && (r < 2 || !until.passed()); ++r) {
    for (const int64_t rows : {int64_t{1}, int64_t{1}, kMany}) {
      times->next_gate_ = rows == 1 && !times->next_gate_;
      MOERT_ASSIGN_OR_RETURN(Step step, engine->Begin({Phase::kDecode, rows}));
      for (int l = 0; l < shape.spec.num_layers(); ++l) {
        // Other experts every time, as a decoder meets them: from memory, not from caches.
        for (int64_t i = 0; i < rows * hidden; ++i) x[i] = RandomNormal(seed, i);
        ++seed;
        attention->Run(attention_ns);
        MOERT_RETURN_IF_ERROR(step.Forward(l, {x.data(), DType::kF32, rows, hidden, hidden},
                                           {out.data(), DType::kF32, rows, hidden, hidden}));
      }
      MOERT_RETURN_IF_ERROR(step.End());
    }
  }
  const double one = SpreadOf(times->one_).median;
  const double many = SpreadOf(times->many_).median;
  return LayerOverhead{SpreadOf(times->total_).median, one,
                       std::max(0.0, (many - one) / (kMany - 1)),
                       std::max(0.0, SpreadOf(times->with_next_gate_).median - one)};
}

}  // namespace moert::cli
