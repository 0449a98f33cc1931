// Describes, for a message, the files that lie where a checkpoint's folder was expected.
#ifndef MOERT_LIB_CHECKPOINT_OTHER_FILES_H_
#define MOERT_LIB_CHECKPOINT_OTHER_FILES_H_

#include <string>

namespace moert {

/// "; model.gguf is a GGUF file; llama.cpp runs it ...", or whatever helps who named `path`: a
/// file, a folder that is not there, one of files in other formats, an expert pack. Empty: nothing
/// does.
std::string OtherFiles(const std::string& path);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_OTHER_FILES_H_
