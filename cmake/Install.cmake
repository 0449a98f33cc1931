# cmake --install: headers, both libraries, a CMake package with the components `capi` (libmoert.so, the
# C ABI, no dependencies), `cxx` (libmoert.a, the C++ API, with the same Abseil as ours) and `offline`
# (libmoert_offline.a, what makes packs, above cxx), and a pkg-config file for each. Install components:
# runtime, development, tools.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/moert)

set_target_properties(moert_shared PROPERTIES EXPORT_NAME capi)
install(TARGETS moert_shared EXPORT moertCapiTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
        NAMELINK_COMPONENT development)
install(EXPORT moertCapiTargets NAMESPACE moert:: DESTINATION ${package_dir} COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/capi/include/
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

# The C++ library needs packages of its dependencies; what was fetched for this build alone has none.
get_target_property(moert_absl_installed absl::status IMPORTED)
if(moert_absl_installed)
  install(TARGETS moert EXPORT moertCxxTargets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
  install(EXPORT moertCxxTargets NAMESPACE moert:: DESTINATION ${package_dir} COMPONENT development)
  if(TARGET moert_offline)
    set_target_properties(moert_offline PROPERTIES EXPORT_NAME offline)
    install(TARGETS moert_offline EXPORT moertOfflineTargets
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
    install(EXPORT moertOfflineTargets NAMESPACE moert:: DESTINATION ${package_dir}
            COMPONENT development)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/moert
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
endif()

foreach(tool moert-run moert-pack moert-bench moert-sim)
  if(TARGET ${tool})
    install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  endif()
endforeach()

configure_package_config_file(cmake/moertConfig.cmake.in ${PROJECT_BINARY_DIR}/moertConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor release may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moertConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/moertConfig.cmake ${PROJECT_BINARY_DIR}/moertConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)

# Paths in the .pc files follow the prefix they are installed under.
string(REGEX REPLACE "[^/]+" ".." to_prefix "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
set(MOERT_PC_PREFIX "\${pcfiledir}/${to_prefix}")
if(MOERT_HAVE_CUDA)
  get_target_property(cudart CUDA::cudart_static IMPORTED_LOCATION)
  set(MOERT_PC_CUDA "${cudart} -ldl -lrt ")
endif()
if(MOERT_HAVE_CBC)
  set(MOERT_PC_CBC cbc)
endif()
foreach(pc moert moert-static moert-offline)
  configure_file(cmake/${pc}.pc.in ${PROJECT_BINARY_DIR}/${pc}.pc @ONLY)
  if(pc STREQUAL "moert" OR (moert_absl_installed AND (pc STREQUAL "moert-static" OR TARGET moert_offline)))
    install(FILES ${PROJECT_BINARY_DIR}/${pc}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
            COMPONENT development)
  endif()
endforeach()
