# The needs of the examples as a project of their own: libmoert as installed, their other packages,
# and plain versions of the functions that libmoert's build has.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)

find_package(moert REQUIRED COMPONENTS capi cxx offline)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

# The dense parts of a whole model on a device, where libmoert has the CUDA backend.
option(MOERT_EXAMPLES_CUDA "Dense parts of the example decoder on a CUDA device"
       ${moert_HAVE_CUDA})
if(MOERT_EXAMPLES_CUDA)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(CMAKE_CUDA_STANDARD 17)
endif()
set(MOERT_HAVE_CUDA ${MOERT_EXAMPLES_CUDA})

function(moert_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wno-unused-parameter;-Wno-missing-field-initializers>)
endfunction()
function(moert_precompile target)
endfunction()
# Kernels of the decoder's one matrix product, by instruction set.
function(moert_isa_flags)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set_source_files_properties(host/blocks/panel_gemm_avx2.cc PROPERTIES COMPILE_OPTIONS
                                "-mavx2;-mfma;-mf16c;-mbmi2")
    set_source_files_properties(host/blocks/panel_gemm_avx512.cc PROPERTIES COMPILE_OPTIONS
      "-mavx2;-mfma;-mf16c;-mbmi2;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-Wno-maybe-uninitialized;-Wno-uninitialized")
  endif()
endfunction()
