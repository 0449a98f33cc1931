// Loads ggml's backends where a program expects them to be linked.
#include <ggml-backend.h>

__attribute__((constructor)) static void LoadBackends() { ggml_backend_load_all(); }
