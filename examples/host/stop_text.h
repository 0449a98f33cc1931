// Ends a text before the first of some strings.
#ifndef MOERT_EXAMPLES_HOST_STOP_TEXT_H_
#define MOERT_EXAMPLES_HOST_STOP_TEXT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace moert::host {

/// Takes text piece by piece and gives back what is certain to be shown: an end that may be the
/// beginning of a stop string is held back until it is known.
class StopText {
 public:
  /// Empty strings are passed over.
  explicit StopText(std::vector<std::string> stops);

  /// The part of the text so far that may be shown now. Nothing once stopped() is true.
  std::string Push(absl::string_view piece);
  /// The part that was held back: the text has ended.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_STOP_TEXT_H_
