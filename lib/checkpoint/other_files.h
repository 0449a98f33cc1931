// Describes, for a message, the files found where a checkpoint's folder was expected.
#ifndef MOERT_LIB_CHECKPOINT_OTHER_FILES_H_
#define MOERT_LIB_CHECKPOINT_OTHER_FILES_H_

#include <string>

namespace moert {

/// "; model.gguf is a GGUF file; llama.cpp runs it ...", or another hint for the user who named
/// `path`: a file, a missing folder, a folder with files in other formats, an expert pack. Empty:
/// there is no hint.
std::string OtherFiles(const std::string& path);

/// The end of an error about a checkpoint that cannot be read.
inline constexpr char kOtherWays[] =
    "other ways: python -m moert generate DIR --budget 25% runs what transformers has "
    "(docs/guide/python.md); a GGUF file of it in llama.cpp through libmoert's plug-in "
    "(docs/guide/llama-cpp.md); a host that reads the file itself gives its weights by callback "
    "(moert_source_create, MakeHostSource), and its own routing with each call if the library has "
    "none like it (docs/guide/hosts.md)";

/// The same about a GGUF file.
inline constexpr char kGgufWays[] =
    "llama.cpp runs it within a budget through libmoert's plug-in (docs/guide/llama-cpp.md), and "
    "moert-run doctor FILE says how it fits this machine";

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_OTHER_FILES_H_
