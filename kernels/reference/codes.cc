#include "kernels/reference/codes.h"

namespace moert::kernels {
namespace {

// Byte b of a lane's word holds this channel of a piece.
int ChannelOf(int t, int b) { return 2 * t + (b % 2) * 8 + b / 2; }

}  // namespace

TileCodes ReadTile(int bits, const uint8_t* tile) {
  TileCodes codes;
  for (int piece = 0; piece < 4; ++piece) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int half = 0; half < 2; ++half) {
        for (int b = 0; b < 4; ++b) {
          const int row = lane / 4 + half * 8;
          const int k = piece * 16 + ChannelOf(lane % 4, b);
          const int field = piece % 2 * 2 + half;  // of the 2-bit codes of two pieces
          unsigned code = 0;
          if (bits == 8) {
            code = tile[((piece * 32 + lane) * 2 + half) * 4 + b];
          } else if (bits == 4) {
            code = (tile[(piece * 32 + lane) * 4 + b] >> (half * 4)) & 15u;
          } else {
            code = (tile[(piece / 2 * 32 + lane) * 4 + b] >> (2 * field)) & 3u;
            if (bits == 3) code |= ((tile[256 + lane * 4 + b] >> (piece * 2 + half)) & 1u) << 2;
          }
          codes.at[row][k] = static_cast<uint8_t>(code);
        }
      }
    }
  }
  return codes;
}

}  // namespace moert::kernels
