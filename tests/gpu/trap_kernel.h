// A kernel that ends in a device fault: the process's context is lost from then on.
#ifndef MOERT_TESTS_GPU_TRAP_KERNEL_H_
#define MOERT_TESTS_GPU_TRAP_KERNEL_H_

struct CUstream_st;

namespace moert::test {

int LaunchTrap(CUstream_st* stream);

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_TRAP_KERNEL_H_
