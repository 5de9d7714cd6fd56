# harp_add_tests(LIBRARIES...): one executable for each <name>_test.cpp of the folder that calls it, with
# these libraries linked in. Headers of neighbouring folders are "room/name.hpp".
function(harp_add_tests)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(harp_${name} ${source})
    target_include_directories(harp_${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/..)
    target_link_libraries(harp_${name} PRIVATE ${ARGN} GTest::gtest GTest::gtest_main)
    compile_test_quickly(harp_${name})
    add_test(NAME harp_${name} COMMAND harp_${name})
    set_tests_properties(harp_${name} PROPERTIES TIMEOUT 300 LABELS harp)
  endforeach()
endfunction()
