// The account of a checkpoint in `moert-pack info`: which tensors and fields are used, and which
// are not, and why.
#ifndef MOERT_EXAMPLES_CLI_PACK_INFO_ACCOUNT_H_
#define MOERT_EXAMPLES_CLI_PACK_INFO_ACCOUNT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "moert/offline/hf_config.h"

namespace moert::cli {

/// Adds "parts", and where `config` is not null "left_out", "unknown", "stray_files",
/// "unlisted_tensors" and "unused_fields", to `info`. A folder without weights has none of them.
absl::Status AddAccount(const std::string& path, const HfConfig* config, nlohmann::json* info);

/// Prints them.
void PrintAccount(const nlohmann::json& info);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PACK_INFO_ACCOUNT_H_
