// Where a test finds the sources' data and the built tools. Functions, so that the object files of
// tests do not depend on where the tree lies and a compiler cache serves every clone.
#ifndef MOERT_TESTS_SUPPORT_PATHS_H_
#define MOERT_TESTS_SUPPORT_PATHS_H_

#include <string>

namespace moert {

std::string SourceDir();  // the repository
std::string BinDir();     // of the command line tools
std::string LabDir();     // of the same tools with the research strategies

}  // namespace moert

#endif  // MOERT_TESTS_SUPPORT_PATHS_H_
