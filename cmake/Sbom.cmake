# moert.spdx.json: what this build contains and needs, as SPDX 2.3. The same inputs give the same file;
# the date is SOURCE_DATE_EPOCH's where that is set.
set(sbom_packages "")
set(sbom_relations "")

# moert_sbom(<name> <version> <SPDX licence> <where from> <relation>): CONTAINS: parts of it are
# inside; DEPENDS_ON: needed beside it.
function(moert_sbom name version licence from relation)
  if(NOT version)
    set(version NOASSERTION)
  endif()
  string(MAKE_C_IDENTIFIER "${name}" id)
  string(REPLACE "_" "-" id "${id}")
  string(APPEND sbom_packages ",
    {\"SPDXID\": \"SPDXRef-${id}\", \"name\": \"${name}\", \"versionInfo\": \"${version}\",
     \"downloadLocation\": \"${from}\", \"filesAnalyzed\": false,
     \"licenseConcluded\": \"${licence}\", \"licenseDeclared\": \"${licence}\",
     \"copyrightText\": \"NOASSERTION\"}")
  string(APPEND sbom_relations ",
    {\"spdxElementId\": \"SPDXRef-moert\", \"relationshipType\": \"${relation}\",
     \"relatedSpdxElement\": \"SPDXRef-${id}\"}")
  set(sbom_packages "${sbom_packages}" PARENT_SCOPE)
  set(sbom_relations "${sbom_relations}" PARENT_SCOPE)
endfunction()

moert_sbom(abseil-cpp "${absl_VERSION}" Apache-2.0 https://github.com/abseil/abseil-cpp CONTAINS)
moert_sbom(fmt "${fmt_VERSION}" MIT https://github.com/fmtlib/fmt CONTAINS)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  moert_sbom(libstdc++ "${CMAKE_CXX_COMPILER_VERSION}" "GPL-3.0-only WITH GCC-exception-3.1"
             https://gcc.gnu.org CONTAINS)
endif()
if(MOERT_BUILD_OFFLINE AND MOERT_HAVE_CBC)
  moert_sbom(cbc "${CBC_VERSION}" EPL-2.0 https://github.com/coin-or/Cbc DEPENDS_ON)
endif()
if(TARGET moert-run)
  moert_sbom(nlohmann-json "${nlohmann_json_VERSION}" MIT https://github.com/nlohmann/json CONTAINS)
  file(STRINGS ${PCRE2_INCLUDE_DIR}/pcre2.h pcre2_lines REGEX "#define PCRE2_(MAJOR|MINOR) ")
  string(REGEX REPLACE "[^0-9;]*2_[A-Z]+ +([0-9]+)" "\\1" pcre2_lines "${pcre2_lines}")
  list(JOIN pcre2_lines . PCRE2_VERSION)
  moert_sbom(pcre2 "${PCRE2_VERSION}" BSD-3-Clause https://github.com/PCRE2Project/pcre2 DEPENDS_ON)
endif()
if(MOERT_HAVE_CUDA)
  moert_sbom(cuda-cudart "${CUDAToolkit_VERSION}" LicenseRef-NVIDIA-CUDA-EULA
             https://developer.nvidia.com/cuda-toolkit CONTAINS)
  moert_sbom(cuda-cub "${CUDAToolkit_VERSION}" BSD-3-Clause https://github.com/NVIDIA/cccl CONTAINS)
  set(sbom_licences ",
  \"hasExtractedLicensingInfos\": [
    {\"licenseId\": \"LicenseRef-NVIDIA-CUDA-EULA\", \"name\": \"NVIDIA CUDA Toolkit EULA\",
     \"extractedText\": \"https://docs.nvidia.com/cuda/eula\"}]")
endif()

string(TIMESTAMP sbom_created "%Y-%m-%dT%H:%M:%SZ" UTC)
string(SHA256 sbom_id "${PROJECT_VERSION}${sbom_packages}${sbom_relations}${sbom_created}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/moert.spdx.json @ONLY CONTENT [[{
  "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
  "name": "moert-@PROJECT_VERSION@", "documentNamespace": "https://spdx.org/spdxdocs/moert-@PROJECT_VERSION@-@sbom_id@",
  "creationInfo": {"created": "@sbom_created@", "creators": ["Tool: cmake/Sbom.cmake"]},
  "packages": [
    {"SPDXID": "SPDXRef-moert", "name": "moert", "versionInfo": "@PROJECT_VERSION@",
     "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
     "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
     "copyrightText": "NOASSERTION"}@sbom_packages@],
  "relationships": [
    {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
     "relatedSpdxElement": "SPDXRef-moert"}@sbom_relations@]@sbom_licences@
}
]])
