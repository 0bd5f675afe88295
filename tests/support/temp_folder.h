// A folder that lives as long as the test that made it; in memory where the system offers that, so that the many syncs
// of a test do not wait for a disk.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "format/base/check.h"

namespace dspack::test {

class TempFolder {
 public:
  TempFolder() {
    const std::filesystem::path memory = "/dev/shm";
    const bool in_memory = std::filesystem::is_directory(memory) && ::access(memory.c_str(), W_OK) == 0;
    make(in_memory ? memory : std::filesystem::temp_directory_path());
  }
  explicit TempFolder(const std::filesystem::path& parent) { make(parent); }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

 private:
  void make(const std::filesystem::path& parent) {
    std::string name = (parent / "dspack-test-XXXXXX").string();
    DSPACK_CHECK(mkdtemp(name.data()) != nullptr, "no temporary folder");
    path_ = name;
  }

  std::filesystem::path path_;
};

}  // namespace dspack::test
