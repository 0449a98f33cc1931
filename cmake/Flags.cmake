# Warnings, sanitizers, and the flags of per-ISA files.
set(MOERT_WARNING_FLAGS -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)

function(moert_warnings target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:${MOERT_WARNING_FLAGS}>)
endfunction()

if(MOERT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "MOERT_FUZZ needs clang: cmake --preset fuzz")
  endif()
  set(MOERT_SANITIZE "fuzzer-no-link,address,undefined")
endif()
if(MOERT_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${MOERT_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all>)
  add_link_options(-fsanitize=${MOERT_SANITIZE})
endif()

# Hardening of released builds: a stack protector, checked library calls,
# CET instructions, immediate binding, no executable stack. Sanitizers bring their own checks.
set(harden OFF)
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT MOERT_SANITIZE)
  set(harden ON)
endif()
option(MOERT_HARDEN "Hardening flags in library and tools" ${harden})
if(MOERT_HARDEN)
  set(harden_flags -fstack-protector-strong)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND harden_flags -fcf-protection=full)
  endif()
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")  # its checks need the optimizer
    list(APPEND harden_flags -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  endif()
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${harden_flags}>")
  add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack)
endif()

# A file named x_<isa>.cc is compiled for that ISA and must include no shared inline code: an inline
# function instantiated there could be the copy the linker keeps for everybody.
function(moert_isa_flags)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()
  endif()
  set(avx2 -mavx2 -mfma -mf16c -mbmi2)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
  # gcc 12 takes its own undefined-vector intrinsics for uninitialized variables.
  list(APPEND avx512 $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
       $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>)
  set(avx512bf16 ${avx512} -mavx512bf16)
  set(vnni ${avx512} -mavx512vnni -mavx512vbmi)
  set(amx ${avx512bf16} -mavx512vnni -mgfni -mamx-tile -mamx-int8 -mamx-bf16)
  set(quick "")
  if(CMAKE_CXX_FLAGS_RELEASE MATCHES "-O1" AND CMAKE_BUILD_TYPE STREQUAL "Release")
    set(quick -O2)  # a build that is quick to compile optimizes kernels all the same
  endif()
  foreach(source ${ARGN})
    if(source MATCHES "_(avx2|avx512|avx512bf16|vnni|amx)\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${${CMAKE_MATCH_1}};${quick}"
                                                       SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

# Precompiles what most files of a target include; its own headers are not among them.
# Where the tools are all that is built, libraries share one.
function(moert_precompile target)
  if(NOT MOERT_PCH OR MOERT_FUZZ)
    return()
  endif()
  get_target_property(type ${target} TYPE)
  if(MOERT_TOOLS_ONLY AND type STREQUAL "STATIC_LIBRARY" AND NOT ARGN)
    if(NOT TARGET moert_headers)
      file(WRITE ${PROJECT_BINARY_DIR}/headers.cc "// Nothing: for precompiled headers.\n")
      add_library(moert_headers OBJECT ${PROJECT_BINARY_DIR}/headers.cc)
      target_link_libraries(moert_headers PRIVATE absl::statusor absl::strings absl::span fmt::fmt)
      moert_precompile(moert_headers)
    endif()
    target_precompile_headers(${target} REUSE_FROM moert_headers)
    target_compile_options(${target} PRIVATE
                           $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:<algorithm$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<functional$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<map$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<memory$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<string$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<vector$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<absl/status/statusor.h$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<absl/strings/str_cat.h$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<absl/types/span.h$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<fmt/format.h$<ANGLE-R>> ${ARGN})
  # gcc: lets ccache see what a precompiled header stands for.
  target_compile_options(${target} PRIVATE
                         $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endfunction()

find_program(MOERT_CCACHE ccache)
mark_as_advanced(MOERT_CCACHE)
if(MOERT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${MOERT_CCACHE})
  # Options that ccache asks for to cache files that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${MOERT_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${MOERT_CCACHE})
endif()
