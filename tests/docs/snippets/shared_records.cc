// docs/guide/expert-parallel.md: one copy in host memory.
#include "moert/source/shared_records.h"

void Share(std::shared_ptr<const moert::ExpertSource> source, int gpus) {
@BLOCK@}
