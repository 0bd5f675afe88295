# The commit that is built, as a header that changes only with it. As a script, in every build:
#   cmake -D SOURCE=... -D OUTPUT=... [-D COMMIT=...] -P commit.cmake
if(CMAKE_SCRIPT_MODE_FILE)
  cmake_minimum_required(VERSION 3.25)
  set(commit "${COMMIT}")
  if(commit STREQUAL "")
    execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${SOURCE}
      OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      set(commit "unknown: built outside of a git repository")
    else()
      # By content: in a copied tree all times are new.
      execute_process(COMMAND git diff --quiet HEAD -- WORKING_DIRECTORY ${SOURCE} RESULT_VARIABLE status ERROR_QUIET)
      if(NOT status EQUAL 0)
        string(APPEND commit ", with changes")
      endif()
    endif()
  endif()
  file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT "// Written by cmake/commit.cmake.
#pragma once

namespace dspack {
// A constant length: all programs of one source are alike but for these bytes (scripts/suite.py).
inline constexpr char kCommit[64] = \"${commit}\";
}  // namespace dspack
")
  return()
endif()

set(DSPACK_COMMIT "" CACHE STRING "What --version calls the commit; empty: git is asked in every build")
set(dspack_commit_header ${PROJECT_BINARY_DIR}/generated/dspack_commit.h)
add_custom_target(dspack_commit
  COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D OUTPUT=${dspack_commit_header} -D COMMIT=${DSPACK_COMMIT}
    -P ${PROJECT_SOURCE_DIR}/cmake/commit.cmake
  BYPRODUCTS ${dspack_commit_header}
  VERBATIM)
