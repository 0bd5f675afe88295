// What libstdc++ and libgcc of GCC 12 ask of a C library later than the one that portable programs are linked with.
// Each stands for a function or variable of the same name and contract in glibc; nothing of dspack calls them.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {

struct Search {
  uintptr_t address;
  dl_find_object* found;
};

// Whether this object's segments have the address; its table of unwinding is then in `found`.
int look_in(dl_phdr_info* object, size_t /*size*/, void* data) {
  const Search& search = *static_cast<Search*>(data);
  bool has_address = false;
  void* table = nullptr;
  for (size_t i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && search.address >= begin && search.address - begin < segment.p_memsz) {
      has_address = true;
    }
    // The loader's own number, as an address in this process.
    if (segment.p_type == PT_GNU_EH_FRAME) table = reinterpret_cast<void*>(begin);
  }
  if (!has_address || table == nullptr) return 0;
  search.found->dlfo_eh_frame = table;
  return 1;
}

}  // namespace

extern "C" {

// glibc 2.32. Zero: counts of references are always atomic.
char __libc_single_threaded = 0;

// glibc 2.35: where the object that has an address keeps its table of unwinding, which is all that libgcc reads.
int _dl_find_object(void* address, dl_find_object* found) noexcept {
  Search search{reinterpret_cast<uintptr_t>(address), found};
  return dl_iterate_phdr(look_in, &search) == 1 ? 0 : -1;
}

// glibc 2.36: std::random_device.
uint32_t arc4random() noexcept {
  uint32_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) std::abort();  // 256 bytes or fewer are never cut short
  return value;
}

}  // extern "C"
