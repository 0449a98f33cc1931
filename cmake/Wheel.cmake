# Contents of a Python wheel besides capi/python/moert: libmoert.so and two tools. Included by a
# build for a wheel (pyproject.toml). MOERT_WHEEL_FROM names a build folder that has them already:
# nothing is compiled then.
set(MOERT_WHEEL_FROM "" CACHE PATH "A build folder to take libmoert.so and the tools from")
if(MOERT_WHEEL_FROM)
  add_custom_target(moert_wheel)
  set(library ${MOERT_WHEEL_FROM}/capi/libmoert.so)
  set(tools ${MOERT_WHEEL_FROM}/bin/moert-run ${MOERT_WHEEL_FROM}/bin/moert-pack)
  foreach(file ${library} ${tools})
    if(NOT EXISTS ${file})
      message(FATAL_ERROR "MOERT_WHEEL_FROM: ${file} does not exist; build moert_shared, moert-run "
                          "and moert-pack in ${MOERT_WHEEL_FROM} first")
    endif()
  endforeach()
  file(REAL_PATH ${library} library)  # install() would copy a symbolic link as one
else()
  set(library $<TARGET_FILE:moert_shared>)
  set(tools $<TARGET_FILE:moert-run> $<TARGET_FILE:moert-pack>)
  add_custom_target(moert_wheel DEPENDS moert_shared moert-run moert-pack)
  # Nothing of the machine that builds is needed where the wheel goes: static libraries go inside, fmt
  # as in libmoert.so.
  moert_static_closure(fmt_library fmt::fmt)
  if(fmt_library MATCHES "\\.so")
    add_library(moert_wheel_fmt OBJECT ${PROJECT_SOURCE_DIR}/capi/src/fmt_instance.cc)
    target_include_directories(moert_wheel_fmt PRIVATE
                               $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
    target_compile_options(moert_wheel_fmt PRIVATE -fkeep-inline-functions -O1 -g0)
  endif()
  foreach(tool moert-run moert-pack)
    # Parts of libstdc++ that nothing calls would ask for a newer glibc, and so would a static libgcc.
    target_link_options(${tool} PRIVATE -static-libstdc++ -Wl,--as-needed -Wl,--gc-sections)
    target_link_libraries(${tool} PRIVATE $<TARGET_NAME_IF_EXISTS:moert_wheel_fmt>)
  endforeach()
endif()
# A wheel has no symbolic links: the library goes in under its plain name.
install(FILES ${library} DESTINATION moert RENAME libmoert.so COMPONENT wheel)
install(PROGRAMS ${tools} DESTINATION moert/bin COMPONENT wheel)
