// docs/guide/expert-parallel.md: one copy in host memory.
#include "moert/shared_records.h"

void Share(std::shared_ptr<const moert::ExpertSource> source, int gpus) {
@BLOCK@}
