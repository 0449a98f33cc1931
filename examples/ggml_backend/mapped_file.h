// Finds the file, and the part of it, that a mapped address shows.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_MAPPED_FILE_H_
#define MOERT_EXAMPLES_GGML_BACKEND_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace moert_ggml {

struct FileRange {
  std::string path;    // empty: the memory is no mapped file, or the file is gone
  int64_t offset = 0;  // of the address in the file
};

/// The file behind [address, address + size), by the system's table of mappings.
FileRange FindMappedFile(const void* address, size_t size);

/// Gives the mapped pages of the range back to the system; a later access reads them from the file
/// again. False: some pages are locked and stay.
bool DropMappedPages(const void* address, size_t size);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_MAPPED_FILE_H_
