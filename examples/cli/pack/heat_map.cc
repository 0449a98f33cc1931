#include "cli/pack/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace moert::cli {
namespace {

constexpr int kMargin = 40;
constexpr int kTop = 34;

// From few bits (violet) to many (yellow).
const char* ColorOf(int bits) {
  switch (bits) {
    case 2:
      return "#5e2ca5";
    case 3:
      return "#2f6db5";
    case 4:
      return "#2aa17a";
    case 8:
      return "#c9c434";
    default:
      return "#e8772e";
  }
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string HeatMapSvg(const MoeModelSpec& model, const PackVersion& version,
                       const std::string& title) {
  int most = 0;
  for (const MoeLayerSpec& layer : model.layers) most = std::max(most, layer.num_experts);
  const int cell = std::clamp(960 / std::max(most, 1), 5, 24);
  const int stripe = std::max(cell / 3, 3);
  const int row = 3 * stripe + 2;
  const int width = std::max(2 * kMargin + most * cell, 420);
  const int height = kTop + model.num_layers() * row + 34;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#808890\">\n"
      "<text x=\"{2}\" y=\"18\" font-size=\"13\">{3}</text>\n",
      width, height, kMargin, Escaped(title));
  std::set<int> used;
  for (int l = 0; l < model.num_layers(); ++l) {
    const int top = kTop + l * row;
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kMargin - 6,
                       top + row / 2 + 3, l);
    for (int e = 0; e < model.layers[static_cast<size_t>(l)].num_experts; ++e) {
      const ExpertFormat& format = version.format(l, e);
      const Scheme* const schemes[] = {&format.gate, &format.up, &format.down};
      svg += fmt::format("<g><title>layer {}, expert {}: {} {} {}</title>", l, e,
                         schemes[0]->Name(), schemes[1]->Name(), schemes[2]->Name());
      for (int b = 0; b < 3; ++b) {
        used.insert(schemes[b]->weight_bits);
        svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>",
                           kMargin + e * cell, top + b * stripe, cell - 1, stripe,
                           ColorOf(schemes[b]->weight_bits));
      }
      svg += "</g>\n";
    }
  }
  int x = kMargin;
  const int y = kTop + model.num_layers() * row + 18;
  for (const int bits : used) {
    svg += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"10\" fill=\"{}\"/><text x=\"{}\" "
        "y=\"{}\">{} bits</text>\n",
        x, y - 9, ColorOf(bits), x + 16, y, bits);
    x += 70;
  }
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\">rows: layers; columns: experts; stripes: gate, up, "
      "down</text>\n</svg>\n",
      x, y);
  return svg;
}

}  // namespace moert::cli
