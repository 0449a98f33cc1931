#include "record.h"

#include "intern.h"

namespace moert::capi {

moert_matrix ToC(const MatrixLayout& m) {
  return {Intern(m.scheme.Name()),
          m.rows,
          m.k,
          m.padded_rows,
          m.padded_k,
          m.group,
          m.weight_offset,
          m.weight_bytes,
          m.scale_offset,
          m.scale_bytes};
}

}  // namespace moert::capi
