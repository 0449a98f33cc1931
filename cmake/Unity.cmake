# Unity builds (-DCMAKE_UNITY_BUILD=ON): headers are most of what a file costs, so the files of a
# folder are compiled as one. Those that share a name with another of their folder stay alone;
# tests/unity.py finds them, and fails where this list is short of one.
set(MOERT_UNITY_ALONE
    lib/checkpoint/rope_config.cc lib/checkpoint/safetensors_writer.cc
    lib/pack/calibration.cc lib/pack/plan.cc lib/pack/version_json.cc lib/store/high_cache.cc
    lib/quant lib/gemm lib/offline/hqq.cc lib/offline/moe_block.cc kernels examples/cli/probe
    examples/cli/doctor/advice.cc
    capi/src/exception_state.cc capi/src/metrics.cc capi/src/opaque_source.cc
    capi/src/policy_placement.cc capi/src/policy_precision.cc capi/src/policy_prefetch.cc
    capi/src/policy_residency.cc capi/src/policy_routing.cc capi/src/policy_rules.cc
    capi/src/slots.cc capi/src/source.cc capi/src/step.cc)

function(moert_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  get_target_property(source_dir ${target} SOURCE_DIR)
  foreach(source ${sources})
    get_filename_component(path ${source} ABSOLUTE BASE_DIR ${source_dir})
    file(RELATIVE_PATH relative ${PROJECT_SOURCE_DIR} ${path})
    get_filename_component(folder ${relative} DIRECTORY)
    set(alone FALSE)
    foreach(name ${MOERT_UNITY_ALONE})
      if("${relative}/" MATCHES "^${name}/")
        set(alone TRUE)
      endif()
    endforeach()
    if(NOT alone AND relative MATCHES "\\.cc$" AND NOT relative MATCHES "_(avx2|avx512|amx|vnni|cuda)")
      string(MAKE_C_IDENTIFIER "${folder}" group)
      set_source_files_properties(${path} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
endfunction()
