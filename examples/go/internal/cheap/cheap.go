// Package cheap weighs the C heap, for tests (cgo is not allowed in test files).
package cheap

/*
#include <malloc.h>

static long long in_use(void) {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
  return (long long)mallinfo2().uordblks;
#else
  return 0;
#endif
}
*/
import "C"

// InUse is what malloc has handed out and not got back, in bytes; 0 where nobody can say.
func InUse() int64 { return int64(C.in_use()) }
