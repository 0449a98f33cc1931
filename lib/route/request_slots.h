// RequestSlots: numbers the requests of recent calls. A number is the index of the request's
// account in device memory. (SubstitutionLedger keeps the host's accounts.)
#ifndef MOERT_LIB_ROUTE_REQUEST_SLOTS_H_
#define MOERT_LIB_ROUTE_REQUEST_SLOTS_H_

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"

namespace moert {

class RequestSlots {
 public:
  /// Calls have at most max_rows rows; at least `max_requests` requests are remembered.
  RequestSlots(int64_t max_requests, int64_t max_rows);

  /// Numbers come from [1, Capacity).
  static constexpr int64_t Capacity(int64_t max_requests, int64_t max_rows) {
    return 1 + max_requests + 2 * max_rows;
  }

  /// slot [n]: the number of each row's request; fresh [n]: 1 for the first row of a request that
  /// got its number in this call. True if all rows are of different requests.
  bool Assign(absl::Span<const int64_t> request_ids, std::vector<int32_t>* slot,
              std::vector<uint8_t>* fresh);

 private:
  struct Request {
    int32_t slot = 0;
    int64_t last_call = 0;
  };
  void Forget();

  const int64_t max_requests_;
  int64_t call_ = 0;
  std::unordered_map<int64_t, Request> requests_;
  std::vector<int32_t> free_;
};

}  // namespace moert

#endif  // MOERT_LIB_ROUTE_REQUEST_SLOTS_H_
