# Builds for AArch64 on another processor (Debian's cross compiler), and runs what was built under emulation.
# scripts/test-aarch64 installs both and fills the sysroot, which holds the libraries of the distribution, not the C
# library: that one comes with the compiler.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# The first cores of the family (Armv8.0): a later instruction would end a test.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -cpu cortex-a57 -L /usr/aarch64-linux-gnu)

get_filename_component(dspack_sysroot ${CMAKE_CURRENT_LIST_DIR}/../build-aarch64/sysroot ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH ${dspack_sysroot} /usr/aarch64-linux-gnu)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${dspack_sysroot})
set(ENV{PKG_CONFIG_LIBDIR} ${dspack_sysroot}/usr/lib/aarch64-linux-gnu/pkgconfig:${dspack_sysroot}/usr/share/pkgconfig)
