// How many devices every case of a GPU test needs: with fewer the program is skipped.
#ifndef MOERT_TESTS_GPU_DEVICES_NEEDED_H_
#define MOERT_TESTS_GPU_DEVICES_NEEDED_H_

namespace moert::test {

/// 1, unless the test has its own definition.
int DevicesNeeded();

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_DEVICES_NEEDED_H_
