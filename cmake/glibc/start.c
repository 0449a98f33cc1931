/* Until glibc 2.34 a program brought the function that calls its constructors; startup files of
   later ones do not, and an older glibc would call none. */
typedef int Main(int argc, char** argv, char** environment);
typedef void Constructor(int argc, char** argv, char** environment);

int former(Main* main, int argc, char** argv, Constructor* init, void (*fini)(void),
           void (*rtld_fini)(void), void* stack_end);
__asm__(".symver former, __libc_start_main@GLIBC_2.2.5");

extern void _init(void);
extern Constructor *__init_array_start[], *__init_array_end[];

static void Construct(int argc, char** argv, char** environment) {
  _init();
  for (Constructor** each = __init_array_start; each != __init_array_end; ++each) {
    (*each)(argc, argv, environment);
  }
}

/* The startup files give no init and no fini: the loader calls destructors. */
int __libc_start_main(Main* main, int argc, char** argv, Constructor* init, void (*fini)(void),
                      void (*rtld_fini)(void), void* stack_end) {
  (void)init;
  return former(main, argc, argv, Construct, fini, rtld_fini, stack_end);
}
