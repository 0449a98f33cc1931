// A host's trace sink behind the C++ interface.
#ifndef MOERT_CAPI_SRC_TRACE_SINK_H_
#define MOERT_CAPI_SRC_TRACE_SINK_H_

#include <memory>

#include "moert.h"
#include "moert/tools/trace.h"
#include "services.h"

namespace moert::capi {

std::shared_ptr<TraceSink> AdaptTraceSink(const moert_trace_sink& sink,
                                          std::shared_ptr<const Ownership> ownership);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_TRACE_SINK_H_
