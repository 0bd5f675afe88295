# Makes the parts of a page constants of a C++ file. As a script: cmake -D FOLDER=... -D OUTPUT=... -P embed_page.cmake
# The script of the page is its .js files in this order, one after the other.
set(dspack_page_scripts elements.js catalogue.js map.js chosen.js totals.js page.js)

# dspack_embed_page(TARGET FOLDER): compiles FOLDER (page.html, page.css, *.js) into TARGET; reshard/verbs/inspect.h
# declares what comes of it.
function(dspack_embed_page target folder)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/inspect_page.cpp)
  list(TRANSFORM dspack_page_scripts PREPEND ${folder}/ OUTPUT_VARIABLE parts)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -D FOLDER=${folder} -D OUTPUT=${output} -P ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
    DEPENDS ${folder}/page.html ${folder}/page.css ${parts} ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
    VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  file(READ ${FOLDER}/page.html frame)
  file(READ ${FOLDER}/page.css style)
  set(script "")
  foreach(name IN LISTS dspack_page_scripts)
    file(READ ${FOLDER}/${name} text)
    string(APPEND script "${text}")
  endforeach()
  foreach(part frame style script)
    if("${${part}}" MATCHES "\\)page\"")
      message(FATAL_ERROR "${FOLDER}: the text )page\" would end the constant that holds it")
    endif()
  endforeach()
  file(WRITE ${OUTPUT} "#include \"reshard/verbs/inspect.h\"\n\nnamespace dspack::reshard {\n
extern const std::string_view kPageFrame = R\"page(${frame})page\";
extern const std::string_view kPageStyle = R\"page(${style})page\";
extern const std::string_view kPageScript = R\"page(${script})page\";

}  // namespace dspack::reshard\n")
endif()
