#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cli/common/text_file.h"
#include "cli/run/commands.h"
#include "cli/run/session.h"
#include "host/generate.h"
#include "host/tokenizer.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kCommand[] = "moert-run generate";
constexpr int64_t kMaxPromptBytes = int64_t{64} << 20;
constexpr int64_t kMaxPrefillRows = 512;

struct Arguments {
  RunOptions run;
  std::string prompt, prompt_file;
  int64_t max_tokens = 64;
  double temperature = 0.0;
};

struct Opened {
  host::Tokenizer tokenizer;
  std::vector<int32_t> prompt;
  Session session;
};

absl::StatusOr<Opened> Open(const Arguments& args, const ArgParser& parser) {
  if (parser.Given("prompt") == parser.Given("prompt-file")) {
    return absl::InvalidArgumentError("give one of --prompt and --prompt-file");
  }
  if (!(args.temperature >= 0.0 && args.temperature <= 100.0)) {
    return absl::InvalidArgumentError(
        fmt::format("--temperature: {} is not in 0..100", args.temperature));
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
  if (size >= positions || args.max_tokens > positions - size) {
    return absl::InvalidArgumentError(
        fmt::format("a prompt of {} tokens and --max-tokens {} do not fit the model's {} positions",
                    size, args.max_tokens, positions));
  }
  MOERT_ASSIGN_OR_RETURN(
      Session session, Session::Open(args.run, std::move(config), std::min(size, kMaxPrefillRows)));
  return Opened{std::move(tokenizer), std::move(prompt), std::move(session)};
}

absl::Status Run(const Arguments& args, Opened& opened) {
  host::StreamDecoder stream(&opened.tokenizer);
  std::string text;
  const auto show = [&](const std::string& piece) {
    text += piece;
    if (args.run.json_alone()) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  host::GenerateOptions options;
  options.max_tokens = args.max_tokens;
  options.temperature = args.temperature;
  options.seed = static_cast<uint64_t>(args.run.seed);
  for (const int64_t id : opened.session.config.eos_token_ids) {
    options.stop_tokens.push_back(static_cast<int32_t>(id));
  }
  options.on_token = [&](int32_t token) -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(const std::string piece, stream.Push(token));
    show(piece);
    return absl::OkStatus();
  };
  const auto result = host::Generate(opened.session.decoder.get(), opened.prompt, options);
  show(stream.Finish());
  if (!args.run.json_alone()) std::fputc('\n', stdout);
  MOERT_RETURN_IF_ERROR(result.status());

  RunReport report;
  report.command = "generate";
  report.text = std::move(text);
  report.tokens = result->tokens;
  report.ttft_ms = result->ttft_ms;
  report.decode_ms = result->step_ms;
  return opened.session.Finish(std::move(report), args.run);
}

}  // namespace

int GenerateMain(int argc, const char* const* argv) {
  Arguments args;
  ArgParser parser(kCommand, "Continues a prompt and streams the text to stdout.");
  parser.AddString("prompt", &args.prompt, "text to continue");
  parser.AddString("prompt-file", &args.prompt_file, "file with the text to continue");
  parser.AddInt64("max-tokens", &args.max_tokens, "tokens to generate at most", 1);
  parser.AddDouble("temperature", &args.temperature, "0: always the likeliest token");
  AddRunFlags(&parser, &args.run);
  const absl::Status parsed = parser.Parse(argc, argv);
  if (!parsed.ok()) return ReportError(kCommand, parsed);
  if (parser.help_requested()) {
    fmt::print("{}", parser.Help());
    return kExitOk;
  }
  absl::StatusOr<Opened> opened = Open(args, parser);
  if (!opened.ok()) {
    ReportError(kCommand, opened.status());
    return SetupExitStatus(opened.status());
  }
  const absl::Status status = Run(args, *opened);
  return status.ok() ? kExitOk : ReportError(kCommand, status);
}

}  // namespace moert::cli
