#include "route/request_slots.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace moert {

RequestSlots::RequestSlots(int64_t max_requests, int64_t max_rows) : max_requests_(max_requests) {
  for (int64_t slot = Capacity(max_requests, max_rows) - 1; slot > 0; --slot)
    free_.push_back(static_cast<int32_t>(slot));
}

bool RequestSlots::Assign(absl::Span<const int64_t> request_ids, std::vector<int32_t>* slot,
                          std::vector<uint8_t>* fresh) {
  ++call_;
  for (const int64_t id : request_ids) {
    if (const auto it = requests_.find(id); it != requests_.end()) it->second.last_call = call_;
  }
  Forget();
  slot->clear();
  fresh->clear();
  bool one_row_each = true;
  for (size_t row = 0; row < request_ids.size(); ++row) {
    const auto [it, is_new] = requests_.try_emplace(request_ids[row]);
    if (is_new) {
      it->second = {free_.back(), call_};
      free_.pop_back();
    }
    slot->push_back(it->second.slot);
    fresh->push_back(is_new);
    const auto before = slot->end() - 1;
    one_row_each = one_row_each && std::find(slot->begin(), before, *before) == before;
  }
  return one_row_each;
}

void RequestSlots::Forget() {
  if (static_cast<int64_t>(requests_.size()) <= max_requests_) return;
  // Forgets half of the requests at once, so that this is rare; never those of this call.
  std::vector<int64_t> calls;
  calls.reserve(requests_.size());
  for (const auto& [id, request] : requests_) calls.push_back(request.last_call);
  const auto middle = calls.begin() + static_cast<std::ptrdiff_t>(calls.size() / 2);
  std::nth_element(calls.begin(), middle, calls.end());
  const int64_t newest_forgotten = std::min(*middle, call_ - 1);
  for (auto it = requests_.begin(); it != requests_.end();) {
    const bool forget = it->second.last_call <= newest_forgotten;
    if (forget) free_.push_back(it->second.slot);
    it = forget ? requests_.erase(it) : std::next(it);
  }
}

}  // namespace moert
