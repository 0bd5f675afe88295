# What `cmake --install` lays out: programs, manual pages, completions, recipes and documents, in the usual folders
# (GNUInstallDirs). Programs look for recipes and for the CUDA library relative to themselves.
include(GNUInstallDirs)
set(DSPACK_ZSH_COMPLETIONS ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING
  "Where zsh completions go; Debian's zsh looks in share/zsh/vendor-completions for those of packages")
install(TARGETS reshard dsrun RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# Made by the programs themselves, so that they say what --help says.
set(generated ${PROJECT_BINARY_DIR}/generated)
set(dspack_texts "")
function(dspack_generated_text program file)
  add_custom_command(OUTPUT ${generated}/${file}
    COMMAND ${program} ${ARGN} > ${generated}/${file} DEPENDS ${program} VERBATIM)
  set(dspack_texts ${dspack_texts} ${generated}/${file} PARENT_SCOPE)
endfunction()
foreach(program reshard dsrun)
  dspack_generated_text(${program} ${program}.1 --manual)
  dspack_generated_text(${program} ${program}.bash --completion bash)
  dspack_generated_text(${program} _${program} --completion zsh)
  dspack_generated_text(${program} ${program}.fish --completion fish)
  install(FILES ${generated}/${program}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${generated}/${program}.bash RENAME ${program}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${generated}/_${program} DESTINATION ${DSPACK_ZSH_COMPLETIONS})
  install(FILES ${generated}/${program}.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endforeach()
add_custom_target(dspack_texts ALL DEPENDS ${dspack_texts})

install(FILES README.md CHANGELOG.md LICENSE THIRD-PARTY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
install(DIRECTORY recipes/ DESTINATION ${CMAKE_INSTALL_DATADIR}/dspack/recipes)

# Licence texts of what is inside the programs, as Debian's packages hold them (THIRD-PARTY.md): headers in every
# build, and archives in a portable one, which must have all the texts.
set(dspack_licences /usr/share/doc/nlohmann-json3-dev /usr/share/doc/libcli11-dev /usr/share/doc/libboost1.74-dev)
if(TARGET xgrammar)
  list(APPEND dspack_licences ${DSPACK_XGRAMMAR_FOLDER}/share/doc/xgrammar)
endif()
if(DSPACK_PORTABLE)
  foreach(package libfmt-dev libzstd-dev libpcre2-dev libedit-dev libncurses-dev libbsd-dev libmd-dev libssl-dev
                  libnghttp2-dev zlib1g-dev libstdc++-12-dev)
    list(APPEND dspack_licences /usr/share/doc/${package})
  endforeach()
  foreach(source curl onetbb)
    list(APPEND dspack_licences ${CMAKE_PREFIX_PATH}/share/doc/${source})
  endforeach()
endif()
foreach(folder IN LISTS dspack_licences)
  get_filename_component(package ${folder} NAME)
  if(EXISTS ${folder}/copyright)
    install(FILES ${folder}/copyright RENAME ${package} DESTINATION ${CMAKE_INSTALL_DOCDIR}/licenses)
  elseif(DSPACK_PORTABLE)
    message(FATAL_ERROR "${folder}/copyright, the licence of a library that is linked in, is not there")
  endif()
endforeach()

# Packages: `cpack -G DEB` and `cpack -G TGZ` in the build folder; scripts/package makes all of them.
set(CPACK_PACKAGE_NAME dspack)
set(CPACK_PACKAGE_VENDOR "dspack developers")
set(DSPACK_MAINTAINER "dspack developers (no address yet)" CACHE STRING
  "Maintainer field of packages: who publishes them writes a name and an address")
set(CPACK_PACKAGE_CONTACT "${DSPACK_MAINTAINER}")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
if(TARGET dspack_cuda)
  string(APPEND CPACK_PACKAGE_VERSION "+cuda")  # a package of the same name that holds libdspack_cuda.so
endif()
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DESCRIPTION "reshard streams a checkpoint from the Hugging Face Hub, a server or a folder into one safetensors file
for each layer and routed expert; dsrun runs it and reads only the experts that the router picks.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
include(CPack)
