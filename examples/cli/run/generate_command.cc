#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cli/common/progress.h"
#include "cli/common/text_file.h"
#include "cli/run/commands.h"
#include "cli/run/live.h"
#include "cli/run/sampling_flags.h"
#include "cli/run/session.h"
#include "host/generate.h"
#include "host/tokenizer.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kGenerate[] = "moert-run generate";
constexpr int64_t kMaxPromptBytes = int64_t{64} << 20;

struct GenerateArguments {
  RunOptions run;
  std::string prompt, prompt_file;
  SamplingFlags flags;
};

struct GenerateSession {
  host::Tokenizer tokenizer;
  std::vector<int32_t> prompt;
  Session session;
};

absl::StatusOr<GenerateSession> OpenGenerate(const GenerateArguments& args,
                                             const ArgParser& parser) {
  if (parser.Given("prompt") == parser.Given("prompt-file")) {
    return absl::InvalidArgumentError("give one of --prompt and --prompt-file");
  }
  if (const absl::Status status = args.flags.sampling.Validate(); !status.ok()) {
    return absl::InvalidArgumentError(fmt::format("--{}", std::string(status.message())));
  }
  std::string text = args.prompt;
  if (parser.Given("prompt-file")) {
    MOERT_ASSIGN_OR_RETURN(text, ReadTextFile(args.prompt_file, kMaxPromptBytes));
  }
  if (text.empty()) return absl::InvalidArgumentError("the prompt is empty");
  MOERT_ASSIGN_OR_RETURN(HfConfig config, LoadHfConfig(args.run.model));
  MOERT_ASSIGN_OR_RETURN(host::Tokenizer tokenizer, host::Tokenizer::LoadModel(args.run.model));
  MOERT_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, tokenizer.EncodePrompt(text));
  const int64_t positions = config.max_position_embeddings;
  const int64_t size = static_cast<int64_t>(prompt.size());
  if (size >= positions || args.flags.max_tokens > positions - size) {
    return absl::InvalidArgumentError(
        fmt::format("a prompt of {} tokens and --max-tokens {} do not fit the model's {} positions",
                    size, args.flags.max_tokens, positions));
  }
  MOERT_ASSIGN_OR_RETURN(
      Session session,
      Session::Open(args.run, std::move(config), std::min(size, MaxPrefillRows(args.run)), size));
  return GenerateSession{std::move(tokenizer), std::move(prompt), std::move(session)};
}

absl::Status RunGenerate(const GenerateArguments& args, GenerateSession& opened) {
  Session& session = opened.session;
  host::GenerateOptions options = MakeGenerateOptions(args.flags, args.run.seed, session.config);
  const int64_t size = static_cast<int64_t>(opened.prompt.size());
  MOERT_ASSIGN_OR_RETURN(const auto sequence,
                         session.decoder->NewSequence(size + options.max_tokens));
  Live live(session.engine.get(), args.run.live);
  int64_t filling = 0;  // tokens while the fast tier filled: the first ones
  auto reading = std::make_unique<Progress>("reading the prompt, tokens", !args.run.quiet);
  options.progress = [&](int64_t done, int64_t total) { reading->Update(done, total); };
  options.on_token = [&](int32_t) {
    live.AddTokens(1);
    filling += session.filling();
    return absl::OkStatus();
  };
  const auto show = [&](const std::string& piece) {
    reading.reset();
    if (args.run.json_alone()) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  auto generation =
      GenerateText(session.decoder.get(), sequence.get(), opened.tokenizer, opened.prompt,
                   std::move(options), ParseStops(args.flags.stop), show);
  if (!args.run.json_alone()) std::fputc('\n', stdout);
  MOERT_RETURN_IF_ERROR(generation.status());

  RunReport report;
  report.command = "generate";
  report.text = std::move(generation->text);
  report.tokens = generation->result.tokens;
  report.ttft_ms = generation->result.ttft_ms;
  report.decode_ms = generation->result.step_ms;
  report.prompt_tokens_per_s = 1e3 * static_cast<double>(size) / *report.ttft_ms;
  if (session.warm != nullptr) report.extra["filling_tokens"] = filling;
  return session.Finish(std::move(report), args.run);
}

}  // namespace

int GenerateMain(int argc, const char* const* argv) {
  GenerateArguments args;
  ArgParser parser(kGenerate, "Continues a prompt and streams the text to stdout.");
  parser.AddString("prompt", &args.prompt, "text to continue");
  parser.AddString("prompt-file", &args.prompt_file, "file with the text to continue");
  AddSamplingFlags(&parser, &args.flags);
  AddRunFlags(&parser, &args.run);
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  absl::StatusOr<GenerateSession> opened = OpenGenerate(args, parser);
  if (!opened.ok()) {
    ReportError(kGenerate, opened.status());
    return SetupExitStatus(opened.status());
  }
  const absl::Status status = RunGenerate(args, *opened);
  return status.ok() ? kExitOk : ReportError(kGenerate, status);
}

}  // namespace moert::cli
