# Targets `reference` (API reference of the public headers; warnings are errors) and `site` (the same
# with the pages of docs/), where Doxygen is installed.
find_program(MOERT_DOXYGEN doxygen)
if(NOT MOERT_DOXYGEN)
  message(STATUS "doxygen is not installed: no API reference, its test is skipped")
  return()
endif()
set(common "
PROJECT_NAME = libmoert
PROJECT_NUMBER = ${PROJECT_VERSION}
PROJECT_BRIEF = \"${PROJECT_DESCRIPTION}\"
STRIP_FROM_PATH = ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/capi/include
STRIP_FROM_INC_PATH = ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/capi/include
FILE_PATTERNS = *.h *.md
FILTER_PATTERNS = *.h=\"awk -f ${CMAKE_CURRENT_LIST_DIR}/doxygen-filter.awk\" *.md=\"awk -f ${CMAKE_CURRENT_LIST_DIR}/doxygen-pages.awk\"
IMAGE_PATH = ${PROJECT_SOURCE_DIR}/docs/images
EXTRACT_ALL = YES
JAVADOC_AUTOBRIEF = YES
OPTIMIZE_OUTPUT_FOR_C = NO
ENABLE_PREPROCESSING = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = MOERT_API= __cplusplus
MARKDOWN_SUPPORT = YES
AUTOLINK_SUPPORT = NO
TOC_INCLUDE_HEADINGS = 2
GENERATE_LATEX = NO
GENERATE_TREEVIEW = YES
HAVE_DOT = NO
QUIET = YES
WARNINGS = YES
WARN_IF_INCOMPLETE_DOC = NO
")
set(headers "${PROJECT_SOURCE_DIR}/capi/include/moert.h ${PROJECT_SOURCE_DIR}/capi/include/moert/c ${PROJECT_SOURCE_DIR}/include/moert")
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/doxygen/reference.doxyfile CONTENT "${common}
INPUT = ${headers}
OUTPUT_DIRECTORY = ${PROJECT_BINARY_DIR}/doxygen/reference
WARN_AS_ERROR = FAIL_ON_WARNINGS
")
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/doxygen/site.doxyfile CONTENT "${common}
INPUT = ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/CONTRIBUTING.md ${headers}
RECURSIVE = YES
USE_MDFILE_AS_MAINPAGE = ${PROJECT_SOURCE_DIR}/docs/index.md
OUTPUT_DIRECTORY = ${PROJECT_BINARY_DIR}/doxygen/site
")
foreach(target reference site)
  add_custom_target(${target}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/doxygen/${target}
    COMMAND ${MOERT_DOXYGEN} ${PROJECT_BINARY_DIR}/doxygen/${target}.doxyfile
    COMMENT "${target}: ${PROJECT_BINARY_DIR}/doxygen/${target}/html/index.html" VERBATIM)
endforeach()
