// Runs a program and prints the most memory that it held, with and without what is of files, and
// the bytes that it caused to be read from disks:
//   peak_ram COMMAND ARGUMENT...
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace {

std::string Proc(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

struct Use {
  int64_t held = 0, not_of_files = 0, read = 0;  // bytes

  // The process's peak by now, if it is more.
  void Update(pid_t pid) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    int64_t size = 0, resident = 0, of_files = 0;
    std::ifstream(Proc(pid, "statm")) >> size >> resident >> of_files;
    held = std::max(held, resident * page);
    not_of_files = std::max(not_of_files, (resident - of_files) * page);
    std::ifstream io(Proc(pid, "io"));
    int64_t bytes = 0;
    for (std::string word; io >> word;) {
      if (word == "read_bytes:" && io >> bytes) read = std::max(read, bytes);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const pid_t pid = fork();
  if (pid == 0) {
    execvp(argv[1], argv + 1);
    _exit(127);
  }
  Use use;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    use.Update(pid);
    usleep(2000);
  }
  std::fprintf(stderr, "peak_ram: at most %lld MiB held, %lld MiB not of files, %lld MiB read\n",
               static_cast<long long>(use.held >> 20),
               static_cast<long long>(use.not_of_files >> 20),
               static_cast<long long>(use.read >> 20));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
