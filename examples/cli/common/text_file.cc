#include "cli/common/text_file.h"

#include <fmt/format.h>

#include "util/input_file.h"
#include "util/status_macros.h"

namespace moert::cli {

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  util::InputFile file(path);
  MOERT_RETURN_IF_ERROR(file.status());
  std::string text;
  char buffer[1 << 16];
  while (true) {
    MOERT_ASSIGN_OR_RETURN(const size_t got, file.Read(buffer, sizeof(buffer)));
    if (got == 0) return text;
    text.append(buffer, got);
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return file.Error(fmt::format("larger than the limit of {} bytes", max_bytes));
    }
  }
}

}  // namespace moert::cli
