# compile_test_quickly(TARGET): for an executable with tests of one file. There are hundreds of them in each
# build, and compiling them takes longer than running them: headers that all of them include are
# precompiled once, and what they test is optimised, not they themselves.
function(compile_test_quickly target)
  if(NOT TARGET test_headers)
    # An executable, as tests are: their code is not that of libraries.
    add_executable(test_headers EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/test_headers.cpp)
    target_compile_options(test_headers PRIVATE -O1)
    target_link_libraries(test_headers PRIVATE GTest::gtest)
    target_precompile_headers(
      test_headers
      PRIVATE
      <algorithm>
      <array>
      <atomic>
      <chrono>
      <cstddef>
      <cstdint>
      <functional>
      <map>
      <memory>
      <optional>
      <random>
      <span>
      <string>
      <thread>
      <vector>
      <gtest/gtest.h>)
  endif()
  target_compile_options(${target} PRIVATE -O1)
  target_precompile_headers(${target} REUSE_FROM test_headers)
endfunction()
