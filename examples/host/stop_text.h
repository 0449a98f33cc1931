// Ends a text before the first of some strings.
#ifndef MOERT_EXAMPLES_HOST_STOP_TEXT_H_
#define MOERT_EXAMPLES_HOST_STOP_TEXT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace moert::host {

/// Takes text piece by piece and returns the part that is certain to be shown: an end that may
/// begin a stop string is held back until more text decides it.
class StopText {
 public:
  /// Empty strings are ignored.
  explicit StopText(std::vector<std::string> stops);

  /// Adds a piece and returns the text that may now be shown; nothing once stopped() is true.
  std::string Push(absl::string_view piece);
  /// Ends the text and returns the part that was held back.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_STOP_TEXT_H_
