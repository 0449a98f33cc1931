// Takes a part of the link: copies pinned memory to the device in pieces until its input ends.
//   copier GB_PER_SECOND [PIECE_KIB]
// Small pieces keep the copies of other programs from waiting long behind one of these. Each piece is
// waited for; then the program spins until the asked-for rate is met.
#include <cuda_runtime.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr size_t kPool = 64 << 20;

bool InputHasEnded() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  char byte;
  return poll(&input, 1, 0) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace

int main(int argc, char** argv) {
  const double rate = argc > 1 ? std::atof(argv[1]) * 1e9 : 0;
  const size_t piece = static_cast<size_t>(argc > 2 ? std::atoi(argv[2]) : 256) << 10;
  if (rate <= 0 || piece == 0 || piece > kPool) {
    return std::fprintf(stderr, "usage: copier GB_PER_SECOND [PIECE_KIB, up to 65536]\n"), 2;
  }
  char *host, *device;
  cudaStream_t stream;
  if (cudaHostAlloc(reinterpret_cast<void**>(&host), kPool, cudaHostAllocDefault) != cudaSuccess ||
      cudaMalloc(reinterpret_cast<void**>(&device), kPool) != cudaSuccess ||
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
    return std::fprintf(stderr, "copier: no device, or no memory\n"), 1;
  }
  std::puts("copying");
  std::fflush(stdout);
  const auto begin = std::chrono::steady_clock::now();
  double bytes = 0;
  for (size_t at = 0; !InputHasEnded(); at = at + 2 * piece > kPool ? 0 : at + piece) {
    if (cudaMemcpyAsync(device + at, host + at, piece, cudaMemcpyHostToDevice, stream) !=
            cudaSuccess ||
        cudaStreamSynchronize(stream) != cudaSuccess) {
      return std::fprintf(stderr, "copier: a copy failed\n"), 1;
    }
    bytes += static_cast<double>(piece);
    while (bytes > rate * Seconds(begin)) {
    }
  }
  std::printf("%.1f GB/s\n", bytes / Seconds(begin) * 1e-9);
}
