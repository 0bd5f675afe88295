# Makes files constants of a C++ program.
#
# dspack_embed(TARGET NAME HEADER NAMESPACE FOLDER CONSTANT=FILE[+FILE...] ...): compiles NAME.cpp into TARGET, which
# defines each constant, a std::string_view that HEADER declares in NAMESPACE, as the text of its files of FOLDER, one
# after the other.
function(dspack_embed target name header namespace folder)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  set(files "")
  foreach(constant IN LISTS ARGN)
    string(REGEX REPLACE "^[^=]*=" "" parts ${constant})
    string(REPLACE "+" ";" parts ${parts})
    list(APPEND files ${parts})
  endforeach()
  list(TRANSFORM files PREPEND ${folder}/)
  string(REPLACE ";" "," constants "${ARGN}")
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -D HEADER=${header} -D NAMESPACE=${namespace} -D FOLDER=${folder} -D CONSTANTS=${constants}
            -D OUTPUT=${output} -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${files} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  set(code "#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n\n")
  string(REPLACE "," ";" constants ${CONSTANTS})
  foreach(constant IN LISTS constants)
    string(REGEX MATCH "^([^=]*)=(.*)$" whole ${constant})
    set(name ${CMAKE_MATCH_1})
    string(REPLACE "+" ";" parts ${CMAKE_MATCH_2})
    string(APPEND code "extern const std::string_view ${name} =")
    foreach(part IN LISTS parts)
      file(READ ${FOLDER}/${part} text)
      if("${text}" MATCHES "\\)embedded\"")
        message(FATAL_ERROR "${FOLDER}/${part}: the text )embedded\" would end the constant that holds it")
      endif()
      string(APPEND code " R\"embedded(${text})embedded\"")
    endforeach()
    string(APPEND code ";\n")
  endforeach()
  string(APPEND code "\n}  // namespace ${NAMESPACE}\n")
  file(WRITE ${OUTPUT} "${code}")
endif()
