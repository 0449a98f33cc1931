// The routing trace's bytes; docs/reference/trace-format.md is the specification.
#ifndef MOERT_LIB_TRACE_TRACE_FORMAT_H_
#define MOERT_LIB_TRACE_TRACE_FORMAT_H_

#include <cstddef>
#include <cstdint>

namespace moert::trace {

inline constexpr char kMagic[8] = {'m', 'o', 'e', 'r', 't', 't', 'r', 'c'};
/// Version 1 had no checksums. Before version 3 weights and scores were f16, so that a policy that
/// predicts from scores may decide differently than in the run.
inline constexpr uint32_t kVersion = 3;
inline constexpr size_t kFileHeaderBytes = 16;  // magic, version, bytes of JSON
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

// A call: bytes u64, phase u8, flags u8, layer u16, tokens u32, step u64, times, then request ids,
// ids, weights, scores and predicted scores as far as the flags say, and the checksum of all that.
inline constexpr size_t kCallHeaderBytes = 24;
inline constexpr size_t kTimesBytes = 6 * 8;
/// Replaces the expert's number in slots whose expert is not here (-1).
inline constexpr int32_t kNotHere = 0xFFFF;
inline constexpr size_t kChecksumBytes =
    8;  // Hash64: of a call, and of everything in front of them
inline constexpr int64_t kMaxTokens = int64_t{1} << 20;
inline constexpr uint8_t kHasScores = 1;
inline constexpr uint8_t kHasNextScores = 2;
inline constexpr uint8_t kHasRequestIds = 4;
inline constexpr uint8_t kAllFlags = 7;

}  // namespace moert::trace

#endif  // MOERT_LIB_TRACE_TRACE_FORMAT_H_
