# The CUDA backend: MOERT_CUDA = AUTO (where a compiler is found), ON (required), OFF. The runtime is
# linked statically and looks for the driver at run time, so a build with it runs without a driver.
set(MOERT_HAVE_CUDA OFF)
if(NOT MOERT_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit 12.0 QUIET)
  endif()
  if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cudart_static)
    set(MOERT_HAVE_CUDA ON)
  elseif(MOERT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MOERT_CUDA=ON: no CUDA toolkit 12 or later with nvcc was found")
  endif()
endif()
if(MOERT_HAVE_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES ${MOERT_CUDA_ARCHITECTURES})
  if(CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  message(STATUS "CUDA backend: ${CUDAToolkit_VERSION} for ${MOERT_CUDA_ARCHITECTURES}")
else()
  message(STATUS "CUDA backend: off")
endif()

# Adds the backend, or what stands in for it, to a target.
function(moert_add_cuda target)
  if(NOT MOERT_HAVE_CUDA)
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/lib/exec/no_cuda/no_cuda.cc)
    return()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lib/exec/cuda/*.cc
       ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
  list(FILTER sources EXCLUDE REGEX "kernels/cuda/offline/")
  target_sources(${target} PRIVATE ${sources})
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  # sm_89 runs the code of sm_80, which has no products of e4m3.
  if(MOERT_CUDA_ARCHITECTURES MATCHES "80-real" AND NOT MOERT_CUDA_ARCHITECTURES MATCHES "89")
    set_property(SOURCE ${PROJECT_SOURCE_DIR}/kernels/cuda/prompt/prompt_f8.cu
                        ${PROJECT_SOURCE_DIR}/kernels/cuda/prompt/prompt_f8_block_f8.cu
                 APPEND PROPERTY COMPILE_OPTIONS -gencode=arch=compute_89,code=sm_89)
  endif()
endfunction()

# The same for the component moert::offline. No fused products: they round differently than on the CPU.
function(moert_add_offline_cuda target)
  if(NOT MOERT_HAVE_CUDA)
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/lib/offline/no_cuda/no_offline_device.cc)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lib/offline/cuda/*.cc
       ${PROJECT_SOURCE_DIR}/kernels/cuda/offline/*.cu)
  target_sources(${target} PRIVATE ${sources})
  set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS
               $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
