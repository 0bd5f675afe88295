#include "tests/support/temp_folder.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "format/base/check.h"

namespace dspack::test {
namespace {

std::filesystem::path scratch() {
  const std::filesystem::path memory = "/dev/shm";
  const bool in_memory = std::filesystem::is_directory(memory) && ::access(memory.c_str(), W_OK) == 0;
  return in_memory ? memory : std::filesystem::temp_directory_path();
}

}  // namespace

TempFolder::TempFolder() : TempFolder(scratch()) {}

TempFolder::TempFolder(const std::filesystem::path& parent) {
  std::string name = (parent / "dspack-test-XXXXXX").string();
  DSPACK_CHECK(mkdtemp(name.data()) != nullptr, "no temporary folder");
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TempFolder::write(const std::string& name, const std::string& bytes) const {
  std::filesystem::create_directories((path_ / name).parent_path());
  std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string TempFolder::read(const std::string& name) const {
  std::ifstream file(path_ / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace dspack::test
