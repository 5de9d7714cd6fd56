# Fails if an object file compiled for AVX defines anything but its entry points: an inline function
# emitted there might be the copy that the linker keeps for everyone (see kernels/reduce_job.hpp).
# Takes NM and OBJECTS.
set(checked 0)
foreach(object IN LISTS OBJECTS)
  if(object MATCHES "/reduce_(avx[0-9]+)\\.cpp")
    set(expected "reduce_${CMAKE_MATCH_1}\\(lightcc::detail::ReduceJob const&\\)")
  elseif(object MATCHES "/topk_block_(avx[0-9]+)\\.cpp")
    set(expected "topk_block_${CMAKE_MATCH_1}\\(lightcc::TopkBlockJob const&\\)")
  elseif(object MATCHES "/quantize_blocks_(avx[0-9]+)\\.cpp")
    set(expected "(de)?quantize_blocks_${CMAKE_MATCH_1}\\(lightcc::(Deq|Q)uantizeJob const&\\)")
  else()
    continue()
  endif()
  execute_process(
    COMMAND ${NM} --demangle --extern-only --defined-only --format=posix ${object}
    OUTPUT_VARIABLE symbols
    COMMAND_ERROR_IS_FATAL ANY)
  string(STRIP "${symbols}" symbols)
  if(NOT symbols MATCHES "^(lightcc::detail::${expected} T [0-9a-f ]+\n?)+$")
    message(FATAL_ERROR "${object} defines more than its entry points:\n${symbols}")
  endif()
  math(EXPR checked "${checked} + 1")
endforeach()
if(NOT checked EQUAL 6)
  message(FATAL_ERROR "expected three objects for each of two AVX levels, found ${checked}")
endif()
