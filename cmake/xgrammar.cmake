# Answers that keep to a form, by xgrammar, which no distribution has: scripts/xgrammar brings its source and builds it,
# here, where it has not been done. Every build has it unless it is told not to, and says so loudly.
option(DSPACK_XGRAMMAR "Structured output: `dsrun serve` holds answers to JSON schemas and calls of tools" ON)
set(DSPACK_XGRAMMAR_FOLDER ${PROJECT_SOURCE_DIR}/build-xgrammar CACHE PATH "Where scripts/xgrammar installs it")

set(dspack_constraints absent)
if(DSPACK_XGRAMMAR)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/scripts/xgrammar ${PROJECT_SOURCE_DIR}/cmake/xgrammar.patch)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/xgrammar ${DSPACK_XGRAMMAR_FOLDER} RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "scripts/xgrammar could not bring xgrammar (${failed}; its own words are above). "
      "-DDSPACK_XGRAMMAR=OFF builds without structured output: `dsrun serve` then refuses requests for it")
  endif()
  set(dspack_constraints xgrammar)
  add_library(xgrammar STATIC IMPORTED)
  set_target_properties(xgrammar PROPERTIES
    IMPORTED_LOCATION ${DSPACK_XGRAMMAR_FOLDER}/lib/libxgrammar.a
    INTERFACE_INCLUDE_DIRECTORIES ${DSPACK_XGRAMMAR_FOLDER}/include)
elseif(DSPACK_SERVE)
  message(WARNING "Without structured output (DSPACK_XGRAMMAR=OFF): `dsrun serve` refuses requests for JSON, for a schema "
    "or for a call")
endif()
