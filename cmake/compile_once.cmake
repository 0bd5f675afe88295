# Compiles once what most files include: much of a clean build's time. A file still includes what it uses; scripts/lint
# builds without this, so that nothing leans on it.
# With ccache it is off: a cache of compiled files gains nothing from units of a dozen, each of which changes with any of
# them.
find_program(DSPACK_CCACHE ccache DOC "A cache of compiled files, used where it is; OFF: not used")
set(dspack_compile_once ON)
if(DSPACK_CCACHE)
  set(dspack_compile_once OFF)
endif()
option(DSPACK_COMPILE_ONCE "Precompile the headers that most files include, and a dozen files at a time" ${dspack_compile_once})

# Called once, after every target has been added. `kernels` stays as it is: its files read few headers and choose their
# instruction sets one by one.
function(dspack_compile_once)
  set(common
    <algorithm> <array> <chrono> <condition_variable> <cstdint> <functional> <map> <memory> <mutex> <optional> <random>
    <set> <span> <stop_token> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>
    <fmt/format.h> <nlohmann/json.hpp>)
  set(libraries nlohmann_json::nlohmann_json fmt::fmt)
  dspack_precompiled_set(dspack_precompiled LIBRARIES dspack_settings ${libraries} HEADERS ${common})
  if(TARGET test_settings)
    dspack_precompiled_set(dspack_precompiled_tests
      LIBRARIES test_settings ${libraries} HEADERS ${common} <doctest/doctest.h>)
  endif()
  get_directory_property(folders DIRECTORY ${PROJECT_SOURCE_DIR} SUBDIRECTORIES)  # without the tests where there are none
  list(REMOVE_ITEM folders ${PROJECT_SOURCE_DIR}/kernels)
  foreach(folder IN LISTS folders)
    dspack_compile_folder_once(${folder})
  endforeach()
endfunction()

# dspack_precompiled_set(NAME LIBRARIES ... HEADERS ...): one set of headers.
function(dspack_precompiled_set name)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/${name}.cpp CONTENT "")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/generated/${name}.cpp)
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

function(dspack_compile_folder_once folder)
  get_directory_property(targets DIRECTORY ${folder} BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "^(STATIC_LIBRARY|EXECUTABLE)$")
      dspack_compile_target_once(${target})
    endif()
  endforeach()
  get_directory_property(children DIRECTORY ${folder} SUBDIRECTORIES)
  foreach(child IN LISTS children)
    dspack_compile_folder_once(${child})
  endforeach()
endfunction()

function(dspack_compile_target_once target)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  if("dspack_command_line" IN_LIST libraries)
    # CLI11 is nothing but headers, with functions that every file which includes it compiles anew.
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
    return()
  endif()
  set(set dspack_precompiled)
  if("test_settings" IN_LIST libraries)
    set(set dspack_precompiled_tests)
  endif()
  target_link_libraries(${target} PRIVATE fmt::fmt)  # the same macros for all, or the compiler refuses
  target_precompile_headers(${target} REUSE_FROM ${set})
  if(NOT target MATCHES "bench")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  endif()
endfunction()
