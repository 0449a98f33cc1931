// docs/reference/cpp-api.md: the engine in five lines.
#include <string>
#include <utility>

#include "moert/engine.h"

void Run(const std::string& path, int64_t rows, int layers, const moert::MatrixView& hidden,
         const moert::MutableMatrixView& out) {
@BLOCK@}
