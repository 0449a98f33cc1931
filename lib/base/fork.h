// Detects whether this process is a fork of the process that made an object: a fork has none of the
// threads, and locks that they held stay locked.
#ifndef MOERT_LIB_BASE_FORK_H_
#define MOERT_LIB_BASE_FORK_H_

namespace moert {

/// The number of forks between the process that loaded the library and this one.
int ForkCount();

}  // namespace moert

#endif  // MOERT_LIB_BASE_FORK_H_
