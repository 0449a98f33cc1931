/* The sweep in a process that loads the library while it runs, as Python and plug-ins do.
 *
 *   loaded SWEEP ARGUMENTS...     SWEEP: sweep.c as a plug-in
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  void* const plugin = argc < 2 ? NULL : dlopen(argv[1], RTLD_NOW);
  void* const entry = plugin == NULL ? NULL : dlsym(plugin, "sweep_main");
  if (entry == NULL) {
    fprintf(stderr, "%s\n", argc < 2 ? "no plug-in is named" : dlerror());
    return 2;
  }
  return ((int (*)(int, char**))entry)(argc - 1, argv + 1);
}
