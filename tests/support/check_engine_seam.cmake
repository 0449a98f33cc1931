# The engine runs one loop over every executor: no line of lib/engine asks which backend it has,
# whether it simulates, or where memory lies. Differences between backends are behind
# lib/exec/executor.h and lib/exec/backend.h; MakeBackend alone decides. Whether an executor has a
# DevicePath may be asked: that is how it says what it offers.
# Usage: cmake -DENGINE=lib/engine -P check_engine_seam.cmake

# Regular expressions that code (comments left out) must not match.
set(forbidden
    "simulate"  # EngineOptions::simulate decides the backend in lib/exec/backend.cc
    "BackendKind::k" "kind\\(\\) *[!=]="
    "dynamic_cast"
    "(backend|executor)(_|\\.get\\(\\))? *[!=]= *nullptr"
    "if *\\( *!?[A-Za-z_>.-]*(backend|executor)_? *\\)"
    "Cuda" "cuda[A-Z_:]"
    "exec/(cpu|cuda|null|no_cuda)/" "Make(Cpu|Cuda|Null)Backend"
    "getenv")
file(GLOB files ${ENGINE}/*.h ${ENGINE}/*.cc)
list(LENGTH files count)
if(count EQUAL 0)
  message(FATAL_ERROR "no sources in ${ENGINE}")
endif()
set(found 0)
foreach(file ${files})
  file(READ ${file} text)
  string(REPLACE ";" " " text "${text}")  # separates elements of CMake's lists
  string(REGEX REPLACE "[][]" " " text "${text}")  # keep elements together
  string(REGEX REPLACE "//[^\n]*" "" text "${text}")
  string(REGEX MATCHALL "[^\n]+" lines "${text}")
  foreach(line IN LISTS lines)
    foreach(pattern IN LISTS forbidden)
      if(line MATCHES "${pattern}")
        message(SEND_ERROR "${file}: ${line} [${pattern}]")
        math(EXPR found "${found} + 1")
      endif()
    endforeach()
  endforeach()
endforeach()
message(STATUS "${count} files, ${found} lines that branch on the backend")
