// The flags of generate and chat that say how tokens are drawn and where a text ends.
#ifndef MOERT_EXAMPLES_CLI_RUN_SAMPLING_FLAGS_H_
#define MOERT_EXAMPLES_CLI_RUN_SAMPLING_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/common/args.h"
#include "host/generate.h"
#include "host/stop_text.h"
#include "host/tokenizer.h"
#include "moert/offline/hf_config.h"

namespace moert::cli {

struct SamplingFlags {
  host::SamplingOptions sampling;  // but for the seed
  int64_t max_tokens = 64;
  std::string stop;  // comma-separated, with \n and \,
};

/// `flags` is borrowed until `parser` has parsed.
void AddSamplingFlags(ArgParser* parser, SamplingFlags* flags);

/// For flags that were not given: what the model's generation_config.json asks for. Returns a line
/// for people that says what was taken; empty: nothing.
absl::StatusOr<std::string> UseGenerationConfig(const std::string& model_dir,
                                                const ArgParser& parser,
                                                host::SamplingOptions* sampling);

/// "a,b\,c\n" -> {"a", "b,c<newline>"}.
std::vector<std::string> ParseStops(const std::string& text);

/// Generates with `options` (from MakeGenerateOptions) on `sequence`; `show` gets the text as it
/// becomes certain. `text` receives all that was shown.
struct Generation {
  host::GenerateResult result;
  std::string text;
};
absl::StatusOr<Generation> GenerateText(host::TokenModel* model, host::Sequence* sequence,
                                        const host::Tokenizer& tokenizer,
                                        absl::Span<const int32_t> prompt,
                                        host::GenerateOptions options,
                                        std::vector<std::string> stops,
                                        const std::function<void(const std::string&)>& show);

host::GenerateOptions MakeGenerateOptions(const SamplingFlags& flags, int64_t seed,
                                          const HfConfig& config);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_RUN_SAMPLING_FLAGS_H_
