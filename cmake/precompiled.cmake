# The headers that most files read, compiled once: much of a clean build's time. A file still includes what it uses;
# scripts/lint builds without, so that nothing leans on them.
option(DSPACK_PRECOMPILED "Precompile the headers that most files include" ON)

# dspack_precompiled_set(NAME LIBRARIES ... HEADERS ...): one set of headers.
function(dspack_precompiled_set name)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/${name}.cpp CONTENT "")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/generated/${name}.cpp)
  target_link_libraries(${name} PRIVATE dspack_settings ${ARG_LIBRARIES})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

# Called once, after every target has been added. `kernels` stays without, too: its files read few headers and choose
# their instruction sets one by one.
function(dspack_precompile)
  set(common
    <algorithm> <array> <chrono> <condition_variable> <cstdint> <functional> <map> <memory> <mutex> <optional> <random>
    <set> <span> <stop_token> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>
    <fmt/format.h> <nlohmann/json.hpp>)
  dspack_precompiled_set(dspack_precompiled LIBRARIES nlohmann_json::nlohmann_json fmt::fmt HEADERS ${common})
  dspack_precompiled_set(dspack_precompiled_cli
    LIBRARIES dspack_command_line nlohmann_json::nlohmann_json fmt::fmt CLI11::CLI11 HEADERS ${common} <CLI/CLI.hpp>)
  foreach(folder format reshard runtime)
    dspack_precompile_folder(${PROJECT_SOURCE_DIR}/${folder})
  endforeach()
  if(TARGET test_settings)
    dspack_precompiled_set(dspack_precompiled_tests
      LIBRARIES test_settings nlohmann_json::nlohmann_json fmt::fmt HEADERS ${common} <doctest/doctest.h>)
    dspack_precompile_folder(${PROJECT_SOURCE_DIR}/tests)
  endif()
endfunction()

function(dspack_precompile_folder folder)
  get_directory_property(targets DIRECTORY ${folder} BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "^(STATIC_LIBRARY|EXECUTABLE)$")
      continue()
    endif()
    get_target_property(libraries ${target} LINK_LIBRARIES)
    set(set dspack_precompiled)
    if("dspack_command_line" IN_LIST libraries)
      set(set dspack_precompiled_cli)
    elseif("test_settings" IN_LIST libraries)
      set(set dspack_precompiled_tests)
    endif()
    target_link_libraries(${target} PRIVATE fmt::fmt)  # the same macros for all, or the compiler refuses
    target_precompile_headers(${target} REUSE_FROM ${set})
  endforeach()
  get_directory_property(children DIRECTORY ${folder} SUBDIRECTORIES)
  foreach(child IN LISTS children)
    dspack_precompile_folder(${child})
  endforeach()
endfunction()
