// docs/guide/expert-parallel.md: shards.
#include "moert/engine.h"

void Run(int rank, std::shared_ptr<const moert::ExpertSource> source) {
@BLOCK@}
