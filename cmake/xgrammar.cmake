# Whether dsrun holds answers to a form: by xgrammar, which no distribution has; scripts/xgrammar builds it. Without it,
# which is normal and said in one line, `dsrun serve` refuses such requests.
set(DSPACK_XGRAMMAR AUTO CACHE STRING "Answers that keep to a JSON schema: AUTO (where scripts/xgrammar has been run), ON (or fail), OFF")
set_property(CACHE DSPACK_XGRAMMAR PROPERTY STRINGS AUTO ON OFF)
set(DSPACK_XGRAMMAR_FOLDER ${PROJECT_SOURCE_DIR}/build-xgrammar CACHE PATH "Where scripts/xgrammar has installed it")

set(dspack_constraints absent)
if(DSPACK_XGRAMMAR)
  if(EXISTS ${DSPACK_XGRAMMAR_FOLDER}/version)
    set(dspack_constraints xgrammar)
    add_library(xgrammar STATIC IMPORTED)
    set_target_properties(xgrammar PROPERTIES
      IMPORTED_LOCATION ${DSPACK_XGRAMMAR_FOLDER}/lib/libxgrammar.a
      INTERFACE_INCLUDE_DIRECTORIES ${DSPACK_XGRAMMAR_FOLDER}/include)
  elseif(DSPACK_XGRAMMAR STREQUAL "ON")
    message(FATAL_ERROR "${DSPACK_XGRAMMAR_FOLDER} has no xgrammar; scripts/xgrammar brings it")
  else()
    message(STATUS "Without structured output: scripts/xgrammar has not been run")
  endif()
endif()
