// docs/internals/engine.md: one step.
#include "moert/engine.h"

using moert::Phase;

void Run(moert::Engine* engine, int64_t rows, int layers, const moert::MatrixView& hidden,
         const moert::MutableMatrixView& out) {
@BLOCK@}
