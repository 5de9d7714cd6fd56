# add_tests_together(PREFIX [NAME] SOURCES... LIBRARIES...): tests that are compiled together, file by file run.
#
# Compiling tests takes longer than running them. So up to LIGHTCC_TESTS_AT_ONCE files share a program
# and are compiled as one, and headers that all of them include are precompiled once. What they test
# is optimised, not they themselves. Each file is a namespace of its own, named after it.
#
# ctest knows each file as PREFIX<name>. NAME is that of the program, where it is one. Sets LIGHTCC_TEST_PROGRAMS to the programs that were added.
set(LIGHTCC_TESTS_AT_ONCE 7)

# Owns the precompiled headers. An executable, as tests are: their code is not that of libraries.
add_executable(test_headers EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/test_main.cpp)
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
  <set>
  <span>
  <string>
  <string_view>
  <thread>
  <vector>
  <gtest/gtest.h>)

# Adds one program. Unless there is a name, it is that of the folder, and a number where a folder has
# several.
function(lightcc_add_test_program prefix program sources libraries)
  list(GET sources 0 first)
  get_filename_component(folder ${first} DIRECTORY)
  get_filename_component(room ${folder} NAME)
  set(number 2)
  if(NOT program)
    set(program ${prefix}${room}_tests)
  endif()
  while(TARGET ${program})
    set(program ${prefix}${room}_tests_${number})
    math(EXPR number "${number} + 1")
  endwhile()
  add_executable(${program} ${sources} ${CMAKE_SOURCE_DIR}/cmake/test_main.cpp)
  target_link_libraries(${program} PRIVATE ${libraries} GTest::gtest)
  target_compile_options(${program} PRIVATE -O1)
  target_precompile_headers(${program} REUSE_FROM test_headers)
  if(LIGHTCC_UNITY)
    set_target_properties(${program} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0
                                                UNITY_BUILD_RELOCATABLE ON)
  endif()
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_test(NAME ${prefix}${name} COMMAND ${program} --file=${name})
    set_tests_properties(${prefix}${name} PROPERTIES TIMEOUT 300)
  endforeach()
  set(LIGHTCC_TEST_PROGRAMS ${LIGHTCC_TEST_PROGRAMS} ${program} PARENT_SCOPE)
endfunction()

function(add_tests_together prefix)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NAME" "SOURCES;LIBRARIES")
  set(LIGHTCC_TEST_PROGRAMS "")
  list(LENGTH arg_SOURCES files)
  # Programs of about the same size: 8 files are two programs of 4.
  math(EXPR programs "(${files} + ${LIGHTCC_TESTS_AT_ONCE} - 1) / ${LIGHTCC_TESTS_AT_ONCE}")
  math(EXPR count "(${files} + ${programs} - 1) / ${programs}")
  math(EXPR last "${files} - 1")
  foreach(begin RANGE 0 ${last} ${count})
    list(SUBLIST arg_SOURCES ${begin} ${count} sources)
    lightcc_add_test_program("${prefix}" "${arg_NAME}" "${sources}" "${arg_LIBRARIES}")
  endforeach()
  set(LIGHTCC_TEST_PROGRAMS ${LIGHTCC_TEST_PROGRAMS} PARENT_SCOPE)
endfunction()
