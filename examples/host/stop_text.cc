#include "host/stop_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace moert::host {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  stops_.erase(std::remove(stops_.begin(), stops_.end(), std::string()), stops_.end());
}

std::string StopText::Push(absl::string_view piece) {
  if (stopped_) return "";
  held_.append(piece.data(), piece.size());
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, "").substr(0, end);
  }
  size_t keep = 0;  // the longest end of the text that begins a stop string
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (absl::EndsWith(held_, absl::string_view(stop).substr(0, n))) {
        keep = n;
        break;
      }
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopText::Finish() { return stopped_ ? "" : std::exchange(held_, ""); }

}  // namespace moert::host
