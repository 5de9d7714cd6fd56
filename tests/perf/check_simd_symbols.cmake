# Fails if an object file compiled for AVX defines anything but its one entry point: an inline function
# emitted there might be the copy that the linker keeps for everyone (see kernels/reduce_job.hpp).
# Takes NM and OBJECTS.
set(checked 0)
foreach(object IN LISTS OBJECTS)
  if(NOT object MATCHES "reduce_(avx[0-9]+)\\.cpp")
    continue()
  endif()
  set(level ${CMAKE_MATCH_1})
  execute_process(
    COMMAND ${NM} --demangle --extern-only --defined-only --format=posix ${object}
    OUTPUT_VARIABLE symbols
    COMMAND_ERROR_IS_FATAL ANY)
  string(STRIP "${symbols}" symbols)
  set(expected "^lightcc::detail::reduce_${level}\\(lightcc::detail::ReduceJob const&\\) T [0-9a-f ]+$")
  if(NOT symbols MATCHES "${expected}")
    message(FATAL_ERROR "${object} defines more than its entry point:\n${symbols}")
  endif()
  math(EXPR checked "${checked} + 1")
endforeach()
if(NOT checked EQUAL 2)
  message(FATAL_ERROR "expected the objects of two AVX levels, found ${checked}")
endif()
