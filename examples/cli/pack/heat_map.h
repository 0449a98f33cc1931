// A plan as a picture.
#ifndef MOERT_EXAMPLES_CLI_PACK_HEAT_MAP_H_
#define MOERT_EXAMPLES_CLI_PACK_HEAT_MAP_H_

#include <string>

#include "moert/model.h"
#include "moert/offline/pack.h"

namespace moert::cli {

/// SVG: a row a layer, a column an expert, a cell of three stripes (gate, up, down from above) in
/// the color of their weight bits. Readable on light and dark grounds.
std::string HeatMapSvg(const MoeModelSpec& model, const PackVersion& version,
                       const std::string& title);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PACK_HEAT_MAP_H_
