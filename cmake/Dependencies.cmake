# Found on the system (cmake/install-deps.sh installs them on Debian and Ubuntu); fetched where a
# network exists and the package does not.
include(FetchContent)

function(moert_dependency package target version url)
  if(TARGET ${target})
    return()
  endif()
  find_package(${package} ${version} QUIET GLOBAL)
  if(NOT TARGET ${target})
    message(STATUS "${package} not found, fetching ${url} (or run cmake/install-deps.sh)")
    FetchContent_Declare(${package} URL ${url})
    FetchContent_MakeAvailable(${package})
    string(REGEX MATCH "[0-9]+(\\.[0-9]+)+" ${package}_VERSION "${url}")
  endif()
  set(${package}_VERSION "${${package}_VERSION}" PARENT_SCOPE)  # for the list of what is inside
endfunction()

if(POLICY CMP0135)
  cmake_policy(SET CMP0135 NEW)
endif()
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
find_package(Threads REQUIRED)
set(ABSL_PROPAGATE_CXX_STD ON)
moert_dependency(absl absl::status ""
                 https://github.com/abseil/abseil-cpp/archive/refs/tags/20230802.1.tar.gz)
moert_dependency(fmt fmt::fmt "9" https://github.com/fmtlib/fmt/archive/refs/tags/10.1.1.tar.gz)
moert_dependency(nlohmann_json nlohmann_json::nlohmann_json "3.9"
                 https://github.com/nlohmann/json/archive/refs/tags/v3.11.3.tar.gz)
if(MOERT_BUILD_OFFLINE)
  # Optional: the exact solver of moert-pack allocate.
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(CBC QUIET IMPORTED_TARGET cbc)
  endif()
  if(TARGET PkgConfig::CBC)
    set(MOERT_HAVE_CBC ON)
    message(STATUS "CBC: ${CBC_VERSION}")
  else()
    message(STATUS "CBC not found: moert-pack allocate has its Lagrangian solver only "
                   "(Debian: coinor-libcbc-dev)")
  endif()
endif()
if(MOERT_BUILD_TESTS)
  moert_dependency(Catch2 Catch2::Catch2 ""
                   https://github.com/catchorg/Catch2/archive/refs/tags/v2.13.10.tar.gz)
endif()
