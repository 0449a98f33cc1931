// moert_matrix and the C++ MatrixLayout.
#ifndef MOERT_CAPI_SRC_RECORD_H_
#define MOERT_CAPI_SRC_RECORD_H_

#include "moert.h"
#include "moert/scheme.h"

namespace moert::capi {

/// The scheme's name is static.
moert_matrix ToC(const MatrixLayout& matrix);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_RECORD_H_
