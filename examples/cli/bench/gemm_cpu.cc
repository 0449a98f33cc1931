// moert-bench gemm on the CPU: experts that are read from memory, not from caches.
//
// One pass runs every expert once with n tokens, a few experts a call as a layer would. Each pass
// is paired with a plain read of the same bytes by the same threads, so that the ratio of the two
// means something on a machine that others use as well.
//
// --clock cpu counts only the time that the process had the processor. --batch: instead, layers of
// --experts, each called with a batch of tokens of which each goes to --used experts drawn at
// random, as a router spreads them.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cli/bench/gemm.h"
#include "cli/common/output.h"
#include "cli/common/plot.h"
#include "cli/common/report.h"
#include "cli/probe/read_bandwidth.h"
#include "cli/workload/synthetic_experts.h"
#include "moert/mixed_group_gemm.h"
#include "moert/thread_pool.h"
#include "util/aligned_buffer.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

struct Experts {
  RecordLayout layout;
  util::AlignedBuffer bytes;
  int64_t count = 0;
  int64_t stride = 0;
};

absl::Status MakeExperts(const GemmOptions& options, const Scheme& scheme, Experts* experts) {
  MOERT_ASSIGN_OR_RETURN(experts->layout, MakeRecordLayout(options.hidden, options.intermediate,
                                                           ExpertFormat::Uniform(scheme)));
  experts->stride =
      (experts->layout.bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  const int64_t least = (options.bytes + experts->stride - 1) / experts->stride;
  experts->count = std::max<int64_t>(options.experts_per_call, least);
  if (!options.batch.empty()) {  // whole layers
    experts->count = (least + options.experts - 1) / options.experts * options.experts;
  }
  MOERT_RETURN_IF_ERROR(experts->bytes.Reset(experts->count * experts->stride));
  for (int64_t i = 0; i < experts->count; ++i) {
    FillRecord(experts->layout, static_cast<uint64_t>(i),
               experts->bytes.data() + i * experts->stride);
  }
  return absl::OkStatus();
}

// Seconds since some moment: of the wall, or of processor time over the number of threads.
double Now(const GemmOptions& options, int threads) {
  if (options.clock == "wall") {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9) / threads;
}

struct Case {
  std::string scheme;
  std::string kernels;
  int tokens = 0;
  Spread gigabytes_per_second;  // of expert records
  Spread ratio;                 // to the plain read measured right before
  Spread milliseconds;          // per expert
  double gigaflops = 0;         // at the median
};

// One call: for each of a range of consecutive experts, the rows of x that it gets.
using Routing = std::vector<std::vector<int32_t>>;

struct Work {
  std::vector<Routing> calls;
  int rows = 0;         // of x
  int64_t slots = 0;    // of the largest call
  int64_t pairs = 0;    // tokens x experts of all calls
  int64_t experts = 0;  // that any call reads
};

// Every expert with the same `tokens`, or batches of `tokens` with random experts.
Work MakeWork(const GemmOptions& options, const Experts& experts, int tokens) {
  Work work;
  work.rows = tokens;
  const bool routed = !options.batch.empty();
  const int64_t per_call = routed ? options.experts : options.experts_per_call;
  std::vector<int32_t> all(static_cast<size_t>(tokens));
  std::iota(all.begin(), all.end(), 0);
  std::mt19937 rng(3);
  for (int64_t first = 0; first < experts.count; first += per_call) {
    const auto count = static_cast<size_t>(std::min(per_call, experts.count - first));
    Routing routing(count, routed ? std::vector<int32_t>() : all);
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    for (int token = 0; routed && token < tokens; ++token) {
      std::shuffle(order.begin(), order.end(), rng);
      for (int i = 0; i < options.used; ++i) {
        routing[order[static_cast<size_t>(i)]].push_back(token);
      }
    }
    int64_t slots = 0;
    for (const auto& tokens_of : routing) {
      slots += static_cast<int64_t>(tokens_of.size());
      if (!tokens_of.empty()) ++work.experts;
    }
    work.pairs += slots;
    work.slots = std::max(work.slots, slots);
    work.calls.push_back(std::move(routing));
  }
  return work;
}

absl::Status Pass(MixedGroupGemm* gemm, const Experts& experts, const GemmOptions& options,
                  const Work& work, const std::vector<float>& x, std::vector<float>* out) {
  std::vector<int32_t> out_rows(static_cast<size_t>(work.slots));
  std::iota(out_rows.begin(), out_rows.end(), 0);
  const std::byte* record = experts.bytes.data();
  for (const Routing& routing : work.calls) {
    std::vector<ExpertProblem> problems;
    size_t slot = 0;
    for (const std::vector<int32_t>& tokens : routing) {
      if (!tokens.empty()) {
        ExpertProblem p;
        p.record = record;
        p.layout = &experts.layout;
        p.tokens = tokens;
        p.out_rows = absl::MakeConstSpan(out_rows).subspan(slot, tokens.size());
        slot += tokens.size();
        problems.push_back(p);
      }
      record += experts.stride;
    }
    MOERT_RETURN_IF_ERROR(gemm->Run(x.data(), work.rows, options.hidden, problems, out->data()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Case> Measure(MixedGroupGemm* gemm, ThreadPool* pool, const Experts& experts,
                             const GemmOptions& options, int tokens, std::vector<double>* reads) {
  const Work work = MakeWork(options, experts, tokens);
  const auto hidden = static_cast<size_t>(options.hidden);
  std::vector<float> x(static_cast<size_t>(tokens) * hidden);
  std::vector<float> out(static_cast<size_t>(work.slots) * hidden);
  std::mt19937 rng(2);
  for (float& value : x) value = static_cast<float>(static_cast<int32_t>(rng())) * 0x1p-31f;
  const auto bytes = static_cast<double>(work.experts * experts.layout.bytes);
  const int threads = pool->num_threads();

  MOERT_RETURN_IF_ERROR(Pass(gemm, experts, options, work, x, &out));  // warm-up
  std::vector<double> rates, ratios, times;
  for (int i = 0; i < options.repeats; ++i) {
    const double start = Now(options, threads);
    ReadBandwidth(pool, experts.bytes.data(), experts.bytes.size());
    const double middle = Now(options, threads);
    MOERT_RETURN_IF_ERROR(Pass(gemm, experts, options, work, x, &out));
    const double seconds = Now(options, threads) - middle;
    const double read = static_cast<double>(experts.bytes.size()) / (middle - start);
    reads->push_back(read * 1e-9);
    rates.push_back(bytes / seconds * 1e-9);
    ratios.push_back(bytes / seconds / read);
    times.push_back(seconds / static_cast<double>(work.experts) * 1e3);
  }
  Case c;
  c.kernels = std::string(gemm->kernels());
  c.tokens = tokens;
  c.gigabytes_per_second = SpreadOf(rates);
  c.ratio = SpreadOf(ratios);
  c.milliseconds = SpreadOf(times);
  c.gigaflops = 6.0 * options.hidden * options.intermediate * static_cast<double>(work.pairs) /
                static_cast<double>(work.experts) / c.milliseconds.median * 1e-6;
  return c;
}

// "all" is every set but the reference, which takes minutes.
std::vector<std::string> KernelSets(const GemmOptions& options) {
  if (options.kernels != "all") return {options.kernels};
  std::vector<std::string> names = MixedGroupGemm::KernelNames();
  if (names.size() > 1) names.pop_back();
  return names;
}

using Gemms = std::vector<std::unique_ptr<MixedGroupGemm>>;

/// One of each kernel set. Names are checked before a gigabyte of weights is made up.
absl::StatusOr<Gemms> MakeGemms(const GemmOptions& options, ThreadPool* pool) {
  const auto numerics = options.numerics == "f32"    ? ActivationNumerics::kF32
                        : options.numerics == "int8" ? ActivationNumerics::kInt8
                        : options.numerics == "fp8"  ? ActivationNumerics::kFp8
                                                     : ActivationNumerics::kBF16;
  Gemms gemms;
  for (const std::string& name : KernelSets(options)) {
    MOERT_ASSIGN_OR_RETURN(auto gemm, MixedGroupGemm::Create(pool, name, numerics));
    gemms.push_back(std::move(gemm));
  }
  return gemms;
}

void PrintHead(const GemmOptions& options, const std::string& command,
               const nlohmann::json& machine, int threads) {
  Print("machine  {}, {} CPUs, huge pages {}\n", machine["cpu"].get<std::string>(),
        machine["cpus"].get<int>(), machine["huge_pages"].get<std::string>());
  Print("command  {}\n", command);
  Print(
      "shape    hidden {}, intermediate {}, {} activations where the scheme has none of its own;\n"
      "         at least {:.0f} MiB of experts, {} a call, {} threads, {} passes\n\n",
      options.hidden, options.intermediate, options.numerics,
      static_cast<double>(options.bytes) / 1048576.0, options.experts_per_call, threads,
      options.repeats);
  Print("{:<16} {:<12}{:>7}{:>14}{:>18}{:>9}{:>14}{:>10}\n", "scheme", "kernels", "tokens",
        "records GB/s", "(min .. max)", "of read", "ms an expert", "GFLOP/s");
}

void PrintCase(const Case& c) {
  Print("{:<16} {:<12}{:>7}{:>14.2f}{:>18}{:>8.1f}%{:>14.4f}{:>10.1f}\n", c.scheme, c.kernels,
        c.tokens, c.gigabytes_per_second.median,
        fmt::format("({:.2f} .. {:.2f})", c.gigabytes_per_second.min, c.gigabytes_per_second.max),
        100 * c.ratio.median, c.milliseconds.median, c.gigaflops);
  std::fflush(stdout);
}

nlohmann::json CaseJson(const Case& c, const Experts& experts) {
  return {{"scheme", c.scheme},
          {"kernels", c.kernels},
          {"tokens", c.tokens},
          {"experts", experts.count},
          {"record_bytes", experts.layout.bytes},
          {"weights_gbps", ToJson(c.gigabytes_per_second)},
          {"of_read", ToJson(c.ratio)},
          {"ms_per_expert", ToJson(c.milliseconds)},
          {"gflops", c.gigaflops}};
}

}  // namespace

absl::Status RunGemmOnCpu(const GemmOptions& options, const std::string& command) {
  if (!options.batch.empty() && options.used > options.experts) {
    return absl::InvalidArgumentError(
        fmt::format("--used {}: a layer has {} experts", options.used, options.experts));
  }
  MOERT_ASSIGN_OR_RETURN(const std::vector<Scheme> schemes, SchemesOf(options));
  ThreadPoolOptions pool_options;
  pool_options.threads = options.threads;
  MOERT_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, CreateThreadPool(pool_options));
  MOERT_ASSIGN_OR_RETURN(const Gemms gemms, MakeGemms(options, pool.get()));
  const nlohmann::json machine = DescribeMachine();
  if (!options.quiet) PrintHead(options, command, machine, pool->num_threads());
  std::vector<double> reads;
  nlohmann::json results = nlohmann::json::array();
  for (const Scheme& scheme : schemes) {
    Experts experts;
    MOERT_RETURN_IF_ERROR(MakeExperts(options, scheme, &experts));
    for (const auto& gemm : gemms) {
      for (const int tokens : options.batch.empty() ? options.tokens : options.batch) {
        MOERT_ASSIGN_OR_RETURN(Case c,
                               Measure(gemm.get(), pool.get(), experts, options, tokens, &reads));
        c.scheme = scheme.Name();
        if (!options.quiet) PrintCase(c);
        results.push_back(CaseJson(c, experts));
      }
    }
  }
  const Spread read = SpreadOf(reads);
  if (!options.quiet) {
    Print("\nplain read of the same bytes, same threads: {:.2f} GB/s ({:.2f} .. {:.2f})\n",
          read.median, read.min, read.max);
  }
  return WriteFigures(options.json, options.plot,
                      {{"command", command},
                       {"backend", options.backend},
                       {"machine", machine},
                       {"threads", pool->num_threads()},
                       {"numerics", options.numerics},
                       {"shape",
                        {{"hidden", options.hidden},
                         {"intermediate", options.intermediate},
                         {"experts_per_call", options.experts_per_call}}},
                       {"repeats", options.repeats},
                       {"clock", options.clock},
                       {"batches", !options.batch.empty()},
                       {"read_gbps", ToJson(read)},
                       {"results", results}});
}

}  // namespace moert::cli
