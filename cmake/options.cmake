# Compiler settings that hold for every target.
option(DSPACK_TESTS "Build the tests" ON)
option(DSPACK_SERVE "Build the server into dsrun (`dsrun serve`), which needs Boost; OFF for scripts/demo, to compile less" ON)
option(DSPACK_FUZZ "Make tests/fuzz libFuzzer programs (clang; the preset \"fuzz\" sets what belongs to it)" OFF)
option(DSPACK_HARDEN "Checked string functions, guarded stacks, addresses that nobody can guess (not with sanitizers)" ON)
option(DSPACK_WERROR "Warnings are errors, as in the presets; a package need not fail where a newer compiler warns" OFF)
option(DSPACK_PORTABLE "Programs that need the C library alone: scripts/package builds what Debian has no archives of" OFF)
set(DSPACK_GLIBC "" CACHE PATH "Of DSPACK_PORTABLE: the older C library to link with (scripts/package-libraries)")
set(DSPACK_SANITIZE "" CACHE STRING "Sanitizers for every target: address,undefined or thread")
option(DSPACK_SANITIZE_KERNELS "OFF: not the CPU's kernels for each instruction set, whose vector loads are checked by a call each" ON)
option(DSPACK_CUDA_OPTIMISE "OFF: the CUDA library compiles in half the time and is slow, where only its compiling is tested" ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# What a loop over data is worth -O3 for is kernels/, which asks for it; the rest takes a sixth less time to compile.
string(REPLACE -O3 -O2 CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# A processor family is a choice of files and of include folders; no source file of kernels/ asks where it is compiled.
# `portable`: a family without files of its own.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(DSPACK_PROCESSOR x86_64)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  set(DSPACK_PROCESSOR aarch64)
else()
  set(DSPACK_PROCESSOR portable)
endif()

add_library(dspack_settings INTERFACE)
target_include_directories(dspack_settings INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
# -ffp-contract=off: a product and a sum are fused only where a kernel says so, or results would depend on the compiler.
target_compile_options(dspack_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor $<$<BOOL:${DSPACK_WERROR}>:-Werror> -ffp-contract=off>)
if(DSPACK_HARDEN AND NOT DSPACK_SANITIZE AND NOT DSPACK_FUZZ)
  # What is left of a fault in memory that nobody has found: it ends the program instead of serving who sent the bytes.
  # Sanitizers find such faults themselves, and do not know the checked functions of _FORTIFY_SOURCE, which needs an
  # optimiser. What a shared library needs (-fPIC) serves for the addresses of a program (-fPIE) too.
  # A large frame touches each page that it takes, so that it cannot step over the page below a stack; where the processor
  # and the system can, returns and indirect jumps only go where the compiler put an end for them. _GLIBCXX_ASSERTIONS
  # looks at every index of a vector, span and view (what all of it costs: docs/performance.md).
  set(DSPACK_GUARDS_x86_64 -fstack-clash-protection -fcf-protection)
  set(DSPACK_GUARDS_aarch64 -fstack-clash-protection -mbranch-protection=standard)
  target_compile_options(dspack_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong;${DSPACK_GUARDS_${DSPACK_PROCESSOR}};-D_GLIBCXX_ASSERTIONS>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:$<TARGET_PROPERTY:POSITION_INDEPENDENT_CODE>>>>:-fPIE>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>)
  target_link_options(dspack_settings INTERFACE
    -Wl,-z,relro,-z,now $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>)
endif()
if(DSPACK_SANITIZE)
  target_compile_options(dspack_settings INTERFACE
    -fsanitize=${DSPACK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(dspack_settings INTERFACE -fsanitize=${DSPACK_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # g++ 12 follows the flow of instrumented code less well, and warns of what the plain builds show to be sound.
    target_compile_options(dspack_settings INTERFACE -Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overflow)
  endif()
  if(DSPACK_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # Boost.Asio has fences, of which this sanitizer knows nothing: it may see a race where there is none.
    target_compile_options(dspack_settings INTERFACE -Wno-tsan)
  endif()
endif()

# For command lines: read once a run, and CLI11 at -O3 takes twice the time to compile.
add_library(dspack_command_line INTERFACE)
target_compile_options(dspack_command_line INTERFACE $<$<CONFIG:Release,RelWithDebInfo>:-O1>)

configure_file(${PROJECT_SOURCE_DIR}/cmake/version.h.in ${PROJECT_BINARY_DIR}/generated/dspack_version.h)
