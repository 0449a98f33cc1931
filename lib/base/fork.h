// Whether this process is a fork of the one that made an object: threads, and locks they held, do
// not come along.
#ifndef MOERT_LIB_BASE_FORK_H_
#define MOERT_LIB_BASE_FORK_H_

namespace moert {

/// How many forks lie between the process that loaded the library and this one.
int ForkCount();

}  // namespace moert

#endif  // MOERT_LIB_BASE_FORK_H_
