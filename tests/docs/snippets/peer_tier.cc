// docs/guide/expert-parallel.md: a peer tier.
#include "moert/engine.h"
#include "moert/parallel/peer_tier.h"

void Run(std::shared_ptr<const moert::ExpertSource> source, moert::EngineOptions options, int gpus,
         std::vector<std::unique_ptr<moert::Engine>> engines) {
@BLOCK@}
