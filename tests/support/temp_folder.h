// A folder that lives as long as the test that made it; in memory where the system offers that, so that the many syncs
// of a test do not wait for a disk.
#pragma once

#include <filesystem>
#include <string>

namespace dspack::test {

class TempFolder {
 public:
  TempFolder();
  explicit TempFolder(const std::filesystem::path& parent);
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  void write(const std::string& name, const std::string& bytes) const;
  [[nodiscard]] std::string read(const std::string& name) const;

 private:
  std::filesystem::path path_;
};

}  // namespace dspack::test
