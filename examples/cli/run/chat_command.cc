#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "absl/strings/ascii.h"
#include "cli/common/interrupt.h"
#include "cli/common/output.h"
#include "cli/common/progress.h"
#include "cli/run/commands.h"
#include "cli/run/live.h"
#include "cli/run/sampling_flags.h"
#include "cli/run/session.h"
#include "host/chat_template.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kChat[] = "moert-run chat";

struct ChatArguments {
  RunOptions run;
  SamplingFlags flags;
  std::string chat_template, system, message;
  int64_t context = 4096;
};

struct ChatSession {
  host::ChatTemplate chat_template;
  host::Tokenizer tokenizer;
  Session session;
  std::unique_ptr<host::Sequence> sequence;
};

absl::StatusOr<ChatSession> OpenChat(const ChatArguments& args) {
  if (const absl::Status status = args.flags.sampling.Validate(); !status.ok()) {
    return absl::InvalidArgumentError(fmt::format("--{}", std::string(status.message())));
  }
  MOERT_ASSIGN_OR_RETURN(HfConfig config, LoadHfConfig(args.run.model));
  absl::StatusOr<host::ChatTemplate> chat_template =
      args.chat_template.empty() ? host::ChatTemplate::LoadModel(args.run.model)
                                 : host::ChatTemplate::Named(args.chat_template);
  MOERT_RETURN_IF_ERROR(chat_template.status());
  MOERT_ASSIGN_OR_RETURN(host::Tokenizer tokenizer, host::Tokenizer::LoadModel(args.run.model));
  const int64_t context = std::min(args.context, config.max_position_embeddings);
  MOERT_ASSIGN_OR_RETURN(
      Session session,
      Session::Open(args.run, std::move(config), std::min(context, MaxPrefillRows(args.run))));
  MOERT_ASSIGN_OR_RETURN(auto sequence, session.decoder->NewSequence(context));
  return ChatSession{*std::move(chat_template), std::move(tokenizer), std::move(session),
                     std::move(sequence)};
}

class Conversation {
 public:
  Conversation(const ChatArguments& args, ChatSession* opened)
      : args_(args), opened_(*opened), live_(opened->session.engine.get(), args.run.live) {
    Reset();
    report_.command = "chat";
    report_.text = "";
  }

  void Reset() {
    messages_.clear();
    if (!args_.system.empty()) {
      messages_.push_back({host::ChatMessage::Role::kSystem, args_.system});
    }
  }

  /// Answers one message. The part of the conversation that the model has already is not computed
  /// again.
  absl::Status Answer(const std::string& message) {
    messages_.push_back({host::ChatMessage::Role::kUser, message});
    MOERT_ASSIGN_OR_RETURN(const std::string text, opened_.chat_template.Render(messages_));
    MOERT_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, opened_.tokenizer.Encode(text));
    host::Sequence* const sequence = opened_.sequence.get();
    size_t same = 0;
    while (same < known_.size() && same + 1 < prompt.size() && known_[same] == prompt[same]) ++same;
    sequence->Rewind(static_cast<int64_t>(same));
    same = std::min(same, static_cast<size_t>(sequence->length()));
    known_.resize(same);
    host::GenerateOptions options =
        MakeGenerateOptions(args_.flags, args_.run.seed, opened_.session.config);
    const int64_t room = sequence->max_tokens() - static_cast<int64_t>(prompt.size());
    if (room < 1) {
      messages_.pop_back();
      return absl::OutOfRangeError(fmt::format(
          "the conversation of {} tokens fills the context of {}; begin anew with /reset "
          "or give a larger --context",
          prompt.size(), sequence->max_tokens()));
    }
    options.max_tokens = std::min(options.max_tokens, room);
    options.on_token = [this](int32_t) {
      live_.AddTokens(1);
      filling_ += opened_.session.filling();
      return absl::OkStatus();
    };
    options.stop = Interrupted;
    std::vector<std::string> stops = ParseStops(args_.flags.stop);
    stops.insert(stops.end(), opened_.chat_template.stops().begin(),
                 opened_.chat_template.stops().end());
    const CatchInterrupts catching;  // Ctrl-C ends an answer, not the conversation
    MOERT_ASSIGN_OR_RETURN(
        const Generation generation,
        GenerateText(opened_.session.decoder.get(), sequence, opened_.tokenizer, prompt, options,
                     std::move(stops), [this](const std::string& piece) { Show(piece); }));
    Show("\n");
    known_ = prompt;
    known_.insert(known_.end(), generation.result.tokens.begin(), generation.result.tokens.end());
    known_.resize(static_cast<size_t>(
        std::min<int64_t>(static_cast<int64_t>(known_.size()), sequence->length())));
    messages_.push_back({host::ChatMessage::Role::kAssistant, generation.text});
    Report(message, generation, prompt.size() - same);
    return absl::OkStatus();
  }

  absl::Status Finish() {
    report_.extra["filling_tokens"] = filling_;
    report_.extra["turns"] = turns_;
    report_.extra["template"] = opened_.chat_template.name();
    return opened_.session.Finish(report_, args_.run);
  }

 private:
  void Show(const std::string& text) const {
    if (args_.run.json_alone()) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  void Report(const std::string& message, const Generation& generation, size_t prompt_tokens) {
    turns_.push_back({{"user", message}, {"assistant", generation.text}});
    *report_.text += generation.text;
    const host::GenerateResult& r = generation.result;
    report_.tokens.insert(report_.tokens.end(), r.tokens.begin(), r.tokens.end());
    report_.decode_ms.insert(report_.decode_ms.end(), r.step_ms.begin(), r.step_ms.end());
    if (report_.ttft_ms) return;
    report_.ttft_ms = r.ttft_ms;  // of the first answer
    report_.prompt_tokens_per_s = 1e3 * static_cast<double>(prompt_tokens) / r.ttft_ms;
  }

  const ChatArguments& args_;
  ChatSession& opened_;
  Live live_;
  std::vector<host::ChatMessage> messages_;
  std::vector<int32_t> known_;  // tokens that the sequence has
  nlohmann::ordered_json turns_ = nlohmann::ordered_json::array();
  RunReport report_;
  int64_t filling_ = 0;  // tokens while the fast tier filled: the first ones
};

absl::Status Talk(const ChatArguments& args, ChatSession* opened) {
  Conversation conversation(args, opened);
  if (!args.message.empty()) {
    MOERT_RETURN_IF_ERROR(conversation.Answer(args.message));
    return conversation.Finish();
  }
  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (terminal) Print(stderr, "/reset begins anew, /exit ends; Ctrl-C ends an answer\n");
  std::string line;
  while (true) {
    if (terminal) {
      Print(stderr, "> ");
      std::fflush(stderr);
    }
    if (!std::getline(std::cin, line)) break;
    const absl::string_view message = absl::StripAsciiWhitespace(line);
    if (message == "/exit") break;
    if (message == "/reset") conversation.Reset();
    if (message.empty() || message == "/reset") continue;
    const absl::Status answered = conversation.Answer(std::string(message));
    if (!answered.ok() && !(terminal && absl::IsOutOfRange(answered))) return answered;
    if (!answered.ok()) Print(stderr, "{}\n", std::string(answered.message()));
  }
  return conversation.Finish();
}

}  // namespace

int ChatMain(int argc, const char* const* argv) {
  ChatArguments args;
  args.flags.max_tokens = 512;
  args.run.warm = "auto";
  ArgParser parser(kChat,
                   "Talks with a model: a message a line from stdin, or one of --message, in the "
                   "checkpoint's chat template.");
  parser.AddString("message", &args.message, "answers this and ends");
  parser.AddString("system", &args.system, "the system message");
  std::vector<std::string> names = host::ChatTemplate::Names();
  parser.AddChoice("template", &args.chat_template, std::move(names),
                   "a chat template in place of the checkpoint's");
  parser.AddInt64("context", &args.context, "tokens of the whole conversation", 16);
  AddSamplingFlags(&parser, &args.flags);
  AddRunFlags(&parser, &args.run);
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  const auto taken = UseGenerationConfig(args.run.model, parser, &args.flags.sampling);
  if (!taken.ok()) return ReportError(kChat, taken.status());
  if (!taken->empty() && !args.run.quiet) Print(stderr, "note: {}\n", *taken);
  absl::StatusOr<ChatSession> opened = OpenChat(args);
  if (!opened.ok()) {
    ReportError(kChat, opened.status());
    return SetupExitStatus(opened.status());
  }
  const absl::Status status = Talk(args, &*opened);
  return status.ok() ? kExitOk : ReportError(kChat, status);
}

}  // namespace moert::cli
