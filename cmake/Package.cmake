# cpack: libmoert0 (the shared library), libmoert-dev (headers, static library, CMake and
# pkg-config files) and moert-tools (the commands). cmake/make-deb.sh makes them as Debian wants them.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME moert)
set(CPACK_PACKAGE_VENDOR libmoert)
set(CPACK_PACKAGE_CONTACT "libmoert maintainers <moert@users.noreply.github.com>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL runtime development)
if(TARGET moert-run)
  list(APPEND CPACK_COMPONENTS_ALL tools)
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME ${MOERT_DEBIAN_RUNTIME})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION
    "Mixture-of-Experts models bigger than memory, shared library\nThe library owns the experts of a Mixture-of-Experts model: where each\nlives (disk, RAM or GPU memory), in which precision, and when it moves.\nThis package has the shared library of the C ABI.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
    "Mixture-of-Experts models bigger than memory, development files\nThe library owns the experts of a Mixture-of-Experts model: where each\nlives (disk, RAM or GPU memory), in which precision, and when it moves.\nThis package has headers, static libraries, CMake and pkg-config files.")
set(CPACK_COMPONENT_TOOLS_DESCRIPTION
    "Mixture-of-Experts models bigger than memory, command line tools\nThe library owns the experts of a Mixture-of-Experts model: where each\nlives (disk, RAM or GPU memory), in which precision, and when it moves.\nThis package has tools that run, quantize, measure and simulate such models.")
if(MOERT_DEBIAN_DOCS)  # a trigger and a list instead of scripts that call ldconfig
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${MOERT_DEBIAN_DOCS}/triggers
      ${MOERT_DEBIAN_DOCS}/shlibs)
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_STRICT_PERMISSION ON)
endif()
if(NOT MOERT_DEBIAN_DOCS)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
endif()
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME ${MOERT_DEBIAN_DEVELOPMENT})
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libmoert0 (= ${PROJECT_VERSION}-1)")
# Only the C++ API needs them.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "libabsl-dev, libfmt-dev")
set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME ${MOERT_DEBIAN_TOOLS})
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "python3:any")  # for plot.py
set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS python3-matplotlib)
include(CPack)
