// Shared by the files of this folder that are compiled for an instruction set.
#ifndef MOERT_LIB_OFFLINE_PROCESSOR_H_
#define MOERT_LIB_OFFLINE_PROCESSOR_H_

namespace moert {

#if defined(__x86_64__)
inline bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
inline bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#else
inline bool HasAvx2() { return false; }
inline bool HasAvx512() { return false; }
#endif

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_PROCESSOR_H_
