#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "cli/common/output.h"
#include "cli/common/progress.h"
#include "cli/common/run_report.h"
#include "cli/run/commands.h"
#include "cli/run/live.h"
#include "cli/run/session.h"
#include "host/perplexity.h"
#include "host/read_tokens.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kPpl[] = "moert-run ppl";
constexpr int64_t kMaxDecodeRows = 65536;

struct PplArguments {
  RunOptions run;
  std::string tokens;
  int64_t window = 512;
  int64_t step_tokens = 0;
  int64_t batch = 1;
  int64_t limit = 0;
};

struct PplSession {
  std::vector<int32_t> tokens;
  Session session;
};

absl::StatusOr<PplSession> OpenPpl(const PplArguments& args, const ArgParser& parser) {
  if (args.batch > 1 && !parser.Given("step-tokens")) {
    return absl::InvalidArgumentError(
        "--batch needs --step-tokens: without it each window is one prefill step");
  }
  MOERT_ASSIGN_OR_RETURN(HfConfig config, LoadHfConfig(args.run.model));
  MOERT_ASSIGN_OR_RETURN(
      std::vector<int32_t> tokens,
      host::ReadTokens(args.tokens, args.run.model, config.vocab_size, args.limit));
  if (args.window > config.max_position_embeddings) {
    return absl::InvalidArgumentError(fmt::format("--window {}: the model has {} positions",
                                                  args.window, config.max_position_embeddings));
  }
  const int64_t windows = static_cast<int64_t>(tokens.size()) / args.window;
  if (windows < 1) {
    return absl::InvalidArgumentError(fmt::format("{}: {} tokens are fewer than one window of {}",
                                                  args.tokens, tokens.size(), args.window));
  }
  int64_t rows = std::min(args.window, MaxPrefillRows(args.run)), prompt = args.window;
  if (args.step_tokens > 0) {
    prompt = 0;
    rows = std::min(args.step_tokens, args.window) * std::min(args.batch, windows);
    if (rows > kMaxDecodeRows) {
      return absl::InvalidArgumentError(fmt::format(
          "--step-tokens and --batch: {} rows a step, at most {}", rows, kMaxDecodeRows));
    }
  }
  MOERT_ASSIGN_OR_RETURN(Session session, Session::Open(args.run, std::move(config), rows, prompt));
  return PplSession{std::move(tokens), std::move(session)};
}

absl::Status RunPpl(const PplArguments& args, PplSession& opened) {
  host::PerplexityOptions options;
  options.window = args.window;
  options.step_tokens = args.step_tokens;
  options.batch = args.batch;
  absl::StatusOr<host::PerplexityResult> result;
  {
    Progress progress("tokens", !args.run.quiet && !args.run.live);
    Live live(opened.session.engine.get(), args.run.live);
    int64_t before = 0;
    options.progress = [&](int64_t done, int64_t total) {
      progress.Update(done, total);
      live.AddTokens(done - before);
      before = done;
    };
    result = host::Perplexity(opened.session.decoder.get(), opened.tokens, options);
  }
  MOERT_RETURN_IF_ERROR(result.status());
  RunReport report;
  report.command = "ppl";
  report.nll = result->nll;
  report.ppl = result->ppl;
  report.tokens_scored = result->tokens_scored;
  report.window_nll = result->window_nll;
  if (args.step_tokens > 0) {
    report.decode_ms = std::move(result->step_ms);
    const int64_t windows = static_cast<int64_t>(opened.tokens.size()) / args.window;
    report.step_tokens = static_cast<double>(windows * args.window) /
                         static_cast<double>(std::max<size_t>(1, report.decode_ms.size()));
  } else if (!result->step_ms.empty()) {
    const double ms = std::accumulate(result->step_ms.begin(), result->step_ms.end(), 0.0);
    report.prompt_tokens_per_s = 1e3 * static_cast<double>(result->tokens_scored) / ms;
  }
  if (!args.run.json_alone()) {
    Print("nll {}  ppl {}  tokens_scored {}\n", result->nll, result->ppl, result->tokens_scored);
  }
  return opened.session.Finish(std::move(report), args.run);
}

}  // namespace

int PplMain(int argc, const char* const* argv) {
  PplArguments args;
  ArgParser parser(
      kPpl,
      "Scores text, or a file of token ids, in windows that do not overlap; the first token of "
      "a window is not scored, a shorter rest at the end is not used.");
  parser.AddString("tokens", &args.tokens, "FILE.u16 or FILE.u32: token ids; any other file: text");
  parser.Require("tokens");
  parser.AddInt64("window", &args.window, "tokens a window", 2, int64_t{1} << 31);
  parser.AddInt64("step-tokens", &args.step_tokens,
                  "decode instead of prefill: this many tokens of a sequence a step", 1,
                  int64_t{1} << 31);
  parser.AddInt64("batch", &args.batch, "windows that decode side by side", 1, int64_t{1} << 31);
  parser.AddInt64("limit", &args.limit, "uses only the first tokens of the file", 1);
  AddRunFlags(&parser, &args.run);
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  absl::StatusOr<PplSession> opened = OpenPpl(args, parser);
  if (!opened.ok()) {
    ReportError(kPpl, opened.status());
    return SetupExitStatus(opened.status());
  }
  const absl::Status status = RunPpl(args, *opened);
  return status.ok() ? kExitOk : ReportError(kPpl, status);
}

}  // namespace moert::cli
