// docs/guide/expert-parallel.md: ExpertParallel.
#include "moert/parallel/expert_parallel.h"

void Run(std::shared_ptr<const moert::ExpertSource> source, moert::EngineOptions options,
         const std::vector<moert::Shard>& shards, std::shared_ptr<moert::Collectives> group, int64_t rows,
         int layers, const moert::MatrixView& hidden, const moert::MutableMatrixView& out) {
@BLOCK@}
