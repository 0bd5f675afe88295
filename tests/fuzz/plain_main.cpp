// Runs files, and every file of folders, through a fuzz target, so that the committed corpus is a test in any build.
// Usage: fuzz_TARGET FILE|FOLDER ...
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/fuzz/target.h"

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool run(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
    return false;
  }
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::fprintf(stderr, "%s (%zu bytes)\n", path.c_str(), bytes.size());  // first: a crash then has its file's name
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  size_t done = 0;
  for (int i = 1; i < count; ++i) {
    for (const fs::path& path : files_of(arguments[i])) {
      if (!run(path)) return 1;
      ++done;
    }
  }
  std::fprintf(stderr, "%zu inputs\n", done);
  return done == 0 ? 1 : 0;  // a corpus that is not there has not been tested
}
