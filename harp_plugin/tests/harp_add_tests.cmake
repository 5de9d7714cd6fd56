# harp_add_tests(LIBRARIES...): a test of ctest for each <name>_test.cpp of the folder that calls it, with
# these libraries linked in. Headers of neighbouring folders are "room/name.hpp".
function(harp_add_tests)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
  add_tests_together(harp_ SOURCES ${sources} LIBRARIES ${ARGN})
  foreach(program IN LISTS LIGHTCC_TEST_PROGRAMS)
    target_include_directories(${program} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/..)
  endforeach()
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    set_tests_properties(harp_${name} PROPERTIES LABELS harp)
  endforeach()
endfunction()
