/* Makes calls below the library fail: the n-th of a kind, or the n-th and all later ones. A program
 * that is linked with inject.c has its malloc, pthread_create, open and so on go through here,
 * those of shared libraries too. */
#ifndef MOERT_TESTS_FAULT_INJECT_H_
#define MOERT_TESTS_FAULT_INJECT_H_

#ifdef __cplusplus
extern "C" {
#endif

enum fault_kind {
  FAULT_MALLOC,     /* malloc, calloc, realloc, aligned ones: ENOMEM */
  FAULT_THREAD,     /* pthread_create: EAGAIN */
  FAULT_OPEN,       /* open, fopen: EMFILE */
  FAULT_STAT,       /* fstat: EIO */
  FAULT_READ,       /* pread: EIO */
  FAULT_SHORT_READ, /* pread: fewer bytes than asked for, no error */
  FAULT_EOF,        /* pread: no bytes, as of a truncated file */
  FAULT_FLIP,       /* pread: one bit is not what is on the disk */
  FAULT_INTERRUPT,  /* pread, write, flock: EINTR; not for ever */
  FAULT_WRITE,      /* write, fwrite: ENOSPC */
  FAULT_ZERO_WRITE, /* write: 0 */
  FAULT_SYNC,       /* fsync: EIO */
  FAULT_RENAME,     /* rename: EIO */
  FAULT_MKDIR,      /* mkdir: EACCES */
  FAULT_MAP,        /* mmap: ENOMEM */
  FAULT_TRUNCATE,   /* ftruncate: EIO */
  FAULT_LOCK,       /* flock: ENOLCK */
  FAULT_CLOSE,      /* close: EIO; it is closed */
  FAULT_KINDS
};

/* n counts from 1, from this call on. */
void fault_arm(int kind, long n, int persistent);
/* How many calls failed. */
long fault_disarm(void);
/* Calls of a kind since fault_arm; n 0 arms nothing and counts. */
long fault_calls(int kind);
/* FAULT_FLIP from now on: only in files below `folder`, which is borrowed. NULL: in any. */
void fault_flip_below(const char* folder);
const char* fault_name(int kind);
/* -1: none of this name. */
int fault_kind_of(const char* name);

/* Blocks of malloc that are not freed, their bytes, and the most bytes since fault_arm. */
long fault_live_blocks(void);
long fault_live_bytes(void);
long fault_peak_bytes(void);
/* Mappings that were not unmapped. */
long fault_mappings(void);
int fault_descriptors(void);
int fault_threads(void);

#ifdef __cplusplus
}
#endif

#endif /* MOERT_TESTS_FAULT_INJECT_H_ */
