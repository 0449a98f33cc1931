// Checking every byte of an expert pack.
#ifndef MOERT_LIB_PACK_VERIFY_PACK_H_
#define MOERT_LIB_PACK_VERIFY_PACK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/thread_pool.h"
#include "moert/env.h"

namespace moert {

struct PackVerification {
  int64_t records = 0;
  int64_t bytes = 0;                // of all record files and constants
  std::vector<std::string> damage;  // what is wrong, one line each, naming file and tensor
};

/// Reads the whole pack: the headers, records and padding of the record files and the constants are
/// compared with what the manifest says. An error only where the pack cannot be opened at all (its
/// manifest is damaged, a file is missing or of another size); all other damage is listed.
/// `progress`, if any, is called from this thread.
absl::StatusOr<PackVerification> VerifyPack(
    const std::string& dir, Env* env, ThreadPool* pool,
    const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace moert

#endif  // MOERT_LIB_PACK_VERIFY_PACK_H_
