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

if(TARGET moert-run)
  install(PROGRAMS ${PROJECT_SOURCE_DIR}/examples/cli/plot.py
          DESTINATION ${CMAKE_INSTALL_DATADIR}/moert COMPONENT tools)
endif()
foreach(tool moert-run moert-pack moert-bench moert-sim)
  if(TARGET ${tool})
    install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
    # Man page and completion: what the tool says of itself.
    install(CODE "
      foreach(form \"man;${CMAKE_INSTALL_MANDIR}/man1/${tool}.1\"
                   \"bash;${CMAKE_INSTALL_DATADIR}/bash-completion/completions/${tool}\")
        list(GET form 0 kind)
        list(GET form 1 place)
        if(NOT IS_ABSOLUTE \${place})
          set(place \"\${CMAKE_INSTALL_PREFIX}/\${place}\")
        endif()
        get_filename_component(folder \"\$ENV{DESTDIR}\${place}\" DIRECTORY)
        file(MAKE_DIRECTORY \${folder})
        execute_process(COMMAND \"$<TARGET_FILE:${tool}>\" --help=\${kind} RESULT_VARIABLE failed
                        OUTPUT_FILE \"\$ENV{DESTDIR}\${place}\")
        if(failed)
          message(FATAL_ERROR \"${tool} --help=\${kind}: \${failed}\")
        endif()
        if(kind STREQUAL \"man\" AND NOT \"${MOERT_DEBIAN_DOCS}\" STREQUAL \"\")
          execute_process(COMMAND gzip -9nf \"\$ENV{DESTDIR}\${place}\" COMMAND_ERROR_IS_FATAL ANY)
        endif()
        message(STATUS \"Installing: \${place}\")
      endforeach()" COMPONENT tools)
  endif()
endforeach()

# Licence, notices and the list of what is inside go with every installation. Each Debian package
# has a folder of its own, and its licence is named copyright (cmake/make-deb.sh).
include(${CMAKE_CURRENT_LIST_DIR}/Sbom.cmake)
set(MOERT_DEBIAN_RUNTIME libmoert0)
set(MOERT_DEBIAN_DEVELOPMENT libmoert-dev)
set(MOERT_DEBIAN_TOOLS moert-tools)
if(MOERT_DEBIAN_DOCS)
  foreach(component runtime development tools)
    string(TOUPPER ${component} key)
    set(doc ${CMAKE_INSTALL_DATADIR}/doc/${MOERT_DEBIAN_${key}})
    install(FILES ${MOERT_DEBIAN_DOCS}/copyright ${MOERT_DEBIAN_DOCS}/changelog.Debian.gz
                  THIRD_PARTY_NOTICES.md ${PROJECT_BINARY_DIR}/moert.spdx.json
            DESTINATION ${doc} COMPONENT ${component})
  endforeach()
else()
  install(FILES LICENSE THIRD_PARTY_NOTICES.md ${PROJECT_BINARY_DIR}/moert.spdx.json
          DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
endif()

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
