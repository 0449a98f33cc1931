// Linked into a tool, it makes the research strategies known before main runs. The tool's sources
// stay as they are.
#include "research/strategies/research_strategies.h"

namespace moert {
namespace {

[[maybe_unused]] const bool registered = RegisterResearchStrategies().ok();

}  // namespace
}  // namespace moert
