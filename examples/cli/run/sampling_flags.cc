#include "cli/run/sampling_flags.h"

#include <fmt/format.h>

#include <utility>

#include "host/generation_config.h"
#include "util/status_macros.h"

namespace moert::cli {

void AddSamplingFlags(ArgParser* parser, SamplingFlags* f) {
  parser->AddInt64("max-tokens", &f->max_tokens, "tokens to generate at most", 1);
  parser->AddDouble("temperature", &f->sampling.temperature, "0: always the likeliest token");
  parser->AddDouble("top-p", &f->sampling.top_p,
                    "draws from the likeliest tokens that together have this probability");
  parser->AddDouble("min-p", &f->sampling.min_p,
                    "draws from tokens with this share of the likeliest one's probability");
  parser->AddDouble("repetition-penalty", &f->sampling.repetition_penalty,
                    "lowers what was said already; 1: not");
  parser->AddString("stop", &f->stop,
                    "strings that end the text, comma-separated; \\n and \\, as in C");
}

absl::StatusOr<std::string> UseGenerationConfig(const std::string& model_dir,
                                                const ArgParser& parser,
                                                host::SamplingOptions* sampling) {
  MOERT_ASSIGN_OR_RETURN(const host::GenerationConfig config,
                         host::ReadGenerationConfig(model_dir));
  std::string taken;
  const auto take = [&](const char* flag, double published, double* value) {
    if (parser.Given(flag) || published == *value) return;
    *value = published;
    taken += fmt::format("{}--{} {:g}", taken.empty() ? "" : ", ", flag, published);
  };
  take("temperature", config.sampling.temperature, &sampling->temperature);
  take("top-p", config.sampling.top_p, &sampling->top_p);
  take("min-p", config.sampling.min_p, &sampling->min_p);
  take("repetition-penalty", config.sampling.repetition_penalty, &sampling->repetition_penalty);
  if (taken.empty()) return taken;
  if (config.top_k > 0) taken += fmt::format("; its top_k {} is not applied", config.top_k);
  return taken + ", by generation_config.json";
}

std::vector<std::string> ParseStops(const std::string& text) {
  std::vector<std::string> stops;
  std::string current;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      current += text[i] == 'n' ? '\n' : text[i] == 't' ? '\t' : text[i];
    } else if (text[i] == ',') {
      stops.push_back(std::exchange(current, ""));
    } else {
      current += text[i];
    }
  }
  stops.push_back(current);
  return stops;
}

host::GenerateOptions MakeGenerateOptions(const SamplingFlags& flags, int64_t seed,
                                          const HfConfig& config) {
  host::GenerateOptions options;
  static_cast<host::SamplingOptions&>(options) = flags.sampling;
  options.seed = static_cast<uint64_t>(seed);
  options.max_tokens = flags.max_tokens;
  for (const int64_t id : config.eos_token_ids) {
    options.stop_tokens.push_back(static_cast<int32_t>(id));
  }
  return options;
}

absl::StatusOr<Generation> GenerateText(host::TokenModel* model, host::Sequence* sequence,
                                        const host::Tokenizer& tokenizer,
                                        absl::Span<const int32_t> prompt,
                                        host::GenerateOptions options,
                                        std::vector<std::string> stops,
                                        const std::function<void(const std::string&)>& show) {
  host::StreamDecoder stream(&tokenizer);
  host::StopText stop(std::move(stops));
  Generation generation;
  const auto say = [&](const std::string& text) {
    generation.text += text;
    show(text);
  };
  const auto on_token = std::move(options.on_token);
  options.on_token = [&](int32_t token) -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(const std::string piece, stream.Push(token));
    say(stop.Push(piece));
    return on_token ? on_token(token) : absl::OkStatus();
  };
  const auto also = std::move(options.stop);
  options.stop = [&] { return stop.stopped() || (also && also()); };
  auto result = host::Generate(model, sequence, prompt, options);
  say(stop.Push(stream.Finish()));
  say(stop.Finish());
  MOERT_RETURN_IF_ERROR(result.status());
  generation.result = *std::move(result);
  return generation;
}

}  // namespace moert::cli
