/* libmoert: Mixture-of-Experts layers bigger than the memory they run in. C API.
 *
 * C99, and the library's only binary promise (docs/reference/c-abi.md). In short:
 *
 *   moert_source *source;  moert_source_open("model-dir", NULL, &source, &error);
 *   moert_engine *engine;  moert_engine_create(source, &options, &engine, &error);
 *   moert_step *step;      moert_step_begin(engine, &step_options, &step, &error);
 *   for (l = 0; l < moert_engine_layer_count(engine); ++l)
 *     moert_layer_forward(step, l, &x, NULL, &out, &error);
 *   moert_step_end(step, &error);
 *
 * One header per object, in reading order; each may be included alone. C++ hosts have an API of
 * their own in moert/.
 *
 * Conventions, true of every function unless it says otherwise:
 *  - Handles are opaque. A create, open, begin or acquire function returns one through an
 *    out-parameter, which is untouched on failure; destroy and release functions accept NULL. A
 *    handle keeps alive the others that it needs: handles may be freed in any order.
 *  - The return value is MOERT_OK or a negative moert_code. The last parameter `error` may be NULL;
 *    otherwise it receives an object to free on failure, and NULL on success.
 *  - "Fails" names the codes a host may have to tell apart. NULL, a number out of range or a struct
 *    that was not initialized is INVALID_ARGUMENT everywhere, lack of memory RESOURCE_EXHAUSTED.
 *  - Structs begin with struct_size, set by their _init function and never by hand. Fields are only
 *    ever appended. Structs that "never change" have none.
 *  - Arguments are borrowed for the call. Strings are UTF-8 and NUL-terminated.
 *  - No function aborts, prints or lets an exception out.
 *  - "Thread-safe": may be called from any thread at any time, on the same handle too. "Not
 *    thread-safe": calls on one handle must not overlap.
 *  - Callbacks must return normally (no longjmp, exception, panic) and must not call back into the
 *    engine they serve.
 *  - An enum value that a header does not name is an error, never a default. */
#ifndef MOERT_H_
#define MOERT_H_

#include "moert/c/version.h"
#include "moert/c/error.h"
#include "moert/c/probe.h"

#include "moert/c/tensor.h"
#include "moert/c/model.h"
#include "moert/c/source.h"
#include "moert/c/opaque.h"

#include "moert/c/services.h"
#include "moert/c/engine.h"
#include "moert/c/memory.h"

#include "moert/c/step.h"
#include "moert/c/layer.h"
#include "moert/c/lease.h"
#include "moert/c/slots.h"
#include "moert/c/residency.h"

#include "moert/c/metrics.h"
#include "moert/c/trace.h"

#include "moert/c/policy.h"
#include "moert/c/strategy.h"

#endif /* MOERT_H_ */
