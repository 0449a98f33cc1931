# A file compiled for one ISA must define nothing that the linker could take for the whole program: no
# weak symbols, which is what inline functions and template instantiations with external linkage are.
# Usage: cmake -DNM=nm "-DOBJECTS=a.o;b.o" -P check_isa_symbols.cmake
set(checked 0)
foreach(object ${OBJECTS})
  if(object MATCHES "_(avx2|avx512|avx512bf16|vnni|amx)\\.cc\\.o(bj)?$")
    execute_process(COMMAND ${NM} -C ${object} OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
    if(failed)
      message(FATAL_ERROR "${NM} ${object} failed")
    endif()
    string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" weak "${symbols}")
    if(weak)
      message(SEND_ERROR "${object} defines or needs weak symbols: ${weak}")
    endif()
    math(EXPR checked "${checked} + 1")
  endif()
endforeach()
message(STATUS "${checked} ISA objects checked")
