// Runs a program in less RAM than the file that it maps, where no control group can be had:
//   limit_ram BYTES FILE COMMAND ARGUMENT...
// Whenever the program holds more than BYTES, random parts of its mapping of FILE go back to the
// disk, as the kernel would take them. What is cached of FILE and not mapped goes too, so that
// reads are reads. Prints the most that the program held, the most of it that was not of files, and
// the bytes that it caused to be read. BYTES of 0: no limit.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr size_t kChunk = size_t{1} << 20;

struct Range {
  uintptr_t begin, end;
};

std::string Proc(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

struct Memory {
  int64_t all = 0, not_files = 0;
};

Memory Held(pid_t pid) {
  std::ifstream file(Proc(pid, "statm"));
  int64_t size = 0, resident = 0, of_files = 0;
  file >> size >> resident >> of_files;
  const int64_t page = sysconf(_SC_PAGESIZE);
  return {resident * page, (resident - of_files) * page};
}

int64_t ReadFromDisk(pid_t pid) {
  std::ifstream file(Proc(pid, "io"));
  std::string word;
  int64_t bytes = 0;
  while (file >> word) {
    if (word == "read_bytes:") file >> bytes;
  }
  return bytes;
}

std::vector<Range> Mappings(pid_t pid, const std::string& path) {
  std::ifstream maps(Proc(pid, "maps"));
  std::vector<Range> ranges;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (line.size() < path.size() || !line.ends_with(path)) continue;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2) ranges.push_back({begin, end});
  }
  return ranges;
}

// One random part of the mapping.
void PageOut(int process, const std::vector<Range>& ranges, std::mt19937_64* random) {
  const Range& range = ranges[(*random)() % ranges.size()];
  const size_t chunks = (range.end - range.begin + kChunk - 1) / kChunk;
  const uintptr_t begin = range.begin + (*random)() % chunks * kChunk;
  iovec part{reinterpret_cast<void*>(begin), std::min<size_t>(kChunk, range.end - begin)};
  syscall(SYS_process_madvise, process, &part, 1, MADV_PAGEOUT, 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int64_t limit = std::atoll(argv[1]);
  char* path = realpath(argv[2], nullptr);
  const int file = path == nullptr ? -1 : open(path, O_RDONLY);
  if (file < 0) return 2;
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  const pid_t pid = fork();
  if (pid == 0) {
    execvp(argv[3], argv + 3);
    _exit(127);
  }
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  std::mt19937_64 random(1);
  Memory most;
  int64_t read = 0;
  int status = 0;
  for (int turn = 0; waitpid(pid, &status, WNOHANG) == 0; ++turn) {
    const Memory memory = Held(pid);
    most.all = std::max(most.all, memory.all);
    most.not_files = std::max(most.not_files, memory.not_files);
    read = std::max(read, ReadFromDisk(pid));
    if (limit > 0 && memory.all > limit) {
      const std::vector<Range> ranges = Mappings(pid, path);
      for (int i = 0; i < 1000 && !ranges.empty(); ++i) {
        PageOut(process, ranges, &random);
        if (i % 16 == 15 && Held(pid).all <= limit) break;
      }
    }
    if (limit > 0 && turn % 10 == 0) posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    usleep(2000);
  }
  std::fprintf(stderr, "limit_ram: at most %lld MiB held, %lld MiB not of files, %lld MiB read\n",
               static_cast<long long>(most.all >> 20), static_cast<long long>(most.not_files >> 20),
               static_cast<long long>(read >> 20));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
