// docs/guide/expert-parallel.md: owners that change.
#include "moert/parallel/expert_parallel.h"

void Run(std::shared_ptr<const moert::ExpertSource> source, moert::EngineOptions options,
         const moert::MoeModelSpec& model, const std::vector<std::vector<double>>& loads,
         std::shared_ptr<moert::Collectives> group) {
@BLOCK@}
