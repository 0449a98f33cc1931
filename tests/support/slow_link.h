// A machine for tests whose CPU is to compute experts.
#ifndef MOERT_TESTS_SUPPORT_SLOW_LINK_H_
#define MOERT_TESTS_SUPPORT_SLOW_LINK_H_

#include "moert/tools/profile.h"

namespace moert::test {

/// So slow a link, some ms a record, that the CPU takes what finds no free slot.
inline HardwareProfile SlowLink() {
  HardwareProfile profile;
  profile.link_bytes_per_s = 20e6;
  profile.cpu_weight_bytes_per_s = 50e9;
  return profile;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_SLOW_LINK_H_
