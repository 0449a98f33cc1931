/* Measures the AMX tile unit, for docs/results/cpu.md: products from registers, and with the tile
 * loads that a product of 32 x 32 needs, from the L1 cache. A step is four products, 64 input
 * channels of 32 rows and 32 tokens, and four loads.
 *
 *   gcc -O2 -pthread -o tile_unit tile_unit.c && ./tile_unit [REPEATS]
 *
 * Prints, for 1, 2, 4, ... threads, medians and extremes of TOP/s of all threads together. */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kMostThreads = 256, kMostRepeats = 64, kRequestTiles = 0x1023, kTileData = 18 };
enum { kStepBytes = 4096, kSteps = 8 }; /* a thread's tiles: 32 KiB */
static const long kRounds = 1000000;

struct __attribute__((aligned(64))) tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

static int with_loads;
static pthread_barrier_t begin;
static double took[kMostThreads];

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void step(const uint8_t* at) {
  const long stride = 64;
  if (with_loads) {
    __asm__ volatile(
        "tileloadd (%0,%1,1),%%tmm6\n tileloadd (%2,%1,1),%%tmm4\n tileloadd (%3,%1,1),%%tmm5\n"
        "tileloadd (%4,%1,1),%%tmm7" ::"r"(at), "r"(stride), "r"(at + 1024), "r"(at + 2048),
        "r"(at + 3072)
        : "memory");
  }
  __asm__ volatile(
      "tdpbssd %%tmm6,%%tmm4,%%tmm0\n tdpbssd %%tmm6,%%tmm5,%%tmm1\n"
      "tdpbssd %%tmm7,%%tmm4,%%tmm2\n tdpbssd %%tmm7,%%tmm5,%%tmm3" ::
          : "memory");
}

static void* work(void* id) {
  cpu_set_t cpu;
  CPU_ZERO(&cpu);
  CPU_SET((int)(intptr_t)id, &cpu);
  pthread_setaffinity_np(pthread_self(), sizeof cpu, &cpu);
  struct tile_config config;
  memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  uint8_t* const tiles = aligned_alloc(4096, kSteps * kStepBytes);
  if (tiles == NULL) exit(1);
  memset(tiles, 1, kSteps * kStepBytes);
  __asm__ volatile("ldtilecfg %0" ::"m"(config));
  pthread_barrier_wait(&begin);
  const double start = now();
  for (long i = 0; i < kRounds; ++i) step(tiles + i % kSteps * kStepBytes);
  took[(intptr_t)id] = now() - start;
  __asm__ volatile("tilerelease");
  free(tiles);
  return NULL;
}

/* TOP/s of `threads` threads, the slowest one's time. */
static double run(int threads) {
  pthread_t thread[kMostThreads];
  double slowest = 0;
  pthread_barrier_init(&begin, NULL, (unsigned)threads);
  for (intptr_t i = 0; i < threads; ++i) {
    if (pthread_create(&thread[i], NULL, work, (void*)i) != 0) exit(1);
  }
  for (int i = 0; i < threads; ++i) {
    pthread_join(thread[i], NULL);
    if (took[i] > slowest) slowest = took[i];
  }
  pthread_barrier_destroy(&begin);
  return threads * (double)kRounds * 4 * 2 * 16 * 16 * 64 / slowest / 1e12;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? atoi(argv[1]) : 7;
  const int cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
  if (repeats < 1 || repeats > kMostRepeats || cpus > kMostThreads) return 2;
  if (syscall(SYS_arch_prctl, kRequestTiles, kTileData) != 0) {
    fprintf(stderr, "tile_unit: this processor or system has no AMX tiles\n");
    return 77;
  }
  printf("%d CPUs, %d repeats; TOP/s\n", cpus, repeats);
  for (with_loads = 0; with_loads < 2; ++with_loads) {
    for (int threads = 1; threads <= cpus; threads *= 2) {
      double rates[kMostRepeats];
      for (int i = 0; i < repeats; ++i) rates[i] = run(threads);
      qsort(rates, (size_t)repeats, sizeof rates[0], ascending);
      printf("%-14s %3d threads %7.2f (%.2f to %.2f)\n", with_loads ? "with loads" : "registers",
             threads, rates[repeats / 2], rates[0], rates[repeats - 1]);
    }
  }
  return 0;
}
