# compile_rooms_together(TARGET): several sources of one folder are compiled as one. Most of the time of
# a source goes into the headers that its neighbours include as well, so this takes a quarter of the time.
#
# In one room, names in anonymous namespaces must therefore differ. Sources with compile options of
# their own stay alone. Lint still sees each source by itself.
set(LIGHTCC_SOURCES_AT_ONCE 10)

function(compile_rooms_together target)
  if(NOT LIGHTCC_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  set(counted "")
  foreach(source IN LISTS sources)
    get_filename_component(room ${source} DIRECTORY)
    file(RELATIVE_PATH room ${PROJECT_SOURCE_DIR} ${room})
    string(MAKE_C_IDENTIFIER "${room}" room)
    list(APPEND counted ${room})
    set(neighbours ${counted})
    list(FILTER neighbours INCLUDE REGEX "^${room}$")
    list(LENGTH neighbours position)
    math(EXPR part "(${position} - 1) / ${LIGHTCC_SOURCES_AT_ONCE}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP "${room}_${part}")
  endforeach()
  # Relative paths, so that a compiler cache knows a source in another clone (CMake 4 does that).
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP
                                             UNITY_BUILD_RELOCATABLE ON)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # It takes a source that another one includes for a header.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()
