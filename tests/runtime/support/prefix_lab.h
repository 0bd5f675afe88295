// Prefix caches of the small model, in memory and in a folder, and files of theirs that are changed.
// Threads: one. Lifetime: caches borrow the lab.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "runtime/generate/prefix_cache.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/temp_folder.h"

namespace dspack::test {

using Tokens = std::vector<uint32_t>;
inline constexpr uint32_t kPrefixContext = 400;

inline Tokens numbers(uint32_t count, uint32_t from = 0) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

inline Tokens joined(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

struct PrefixLab {
  RecordingModel rig{tiny_folder(), {.context = kPrefixContext, .max_rows = kPrefixContext}};
  TempFolder folder;
  runtime::KvIdentity identity{
      .digest = format::sha256("this model"), .shape = rig.model().kv_shape(), .context = kPrefixContext};
  std::vector<std::string> log;

  [[nodiscard]] uint64_t bytes(uint64_t positions) const { return positions * identity.shape.block_bytes({0, 1}); }
  runtime::PrefixFolder::Log logging() {
    return [this](const Error& error) { log.push_back(error.message); };
  }
  runtime::PrefixCache cache(uint64_t positions) { return {identity, {.memory_bytes = bytes(positions)}, logging()}; }
  std::unique_ptr<runtime::PrefixFolder> open(const runtime::KvIdentity& as,
                                              std::optional<uint64_t> most = std::nullopt) {
    auto opened = runtime::PrefixFolder::open(format::posix_file_system(), folder.path(), as,
                                              most.value_or(1'000'000'000), logging());
    REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().message));
    return *std::move(opened);
  }
  runtime::PrefixCache on_disk(uint64_t positions_in_memory = 0, std::optional<uint64_t> most = std::nullopt) {
    return {identity, {.memory_bytes = bytes(positions_in_memory), .folder = open(identity, most)}, logging()};
  }
  runtime::Sequence computed(const Tokens& tokens) {
    runtime::Sequence sequence = rig.sequence();
    REQUIRE(rig.model().forward({.sequence = sequence, .tokens = tokens}, rig.scratch(), {}));
    return sequence;
  }
  /// How many of the tokens the cache has; with the bits that computing them gives.
  uint32_t restored(runtime::PrefixCache& cache, const Tokens& tokens) {
    runtime::Sequence sequence = rig.sequence();
    const uint32_t count = cache.restore(sequence, tokens);
    CHECK(sequence.length() == count);
    if (count == 0) return 0;
    const runtime::Sequence again = computed(Tokens(tokens.begin(), tokens.begin() + count));
    const auto here = sequence.read_block(0, count);
    const auto there = again.read_block(0, count);
    REQUIRE((here && there));
    CHECK(here->tokens == there->tokens);
    CHECK(here->rows == there->rows);
    return count;
  }
  /// Of the block that begins there; of several any.
  [[nodiscard]] std::filesystem::path file_at(uint32_t first) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("kv-")) continue;
      if (folder.read(name).find("\"first\":\"" + std::to_string(first) + "\"") != std::string::npos) return entry;
    }
    FAIL("no such block");
    return {};
  }
  /// Writes the file anew, with everything right, as somebody could who knows the form.
  void forge(const std::filesystem::path& file, const std::function<void(runtime::KvBlock&)>& edit) const {
    const auto opened = format::posix_file_system().open_read(file);
    REQUIRE(opened);
    auto content = runtime::read_kv_file(**opened, identity);
    REQUIRE(content);
    edit(content->block);
    REQUIRE(runtime::write_kv_file(format::posix_file_system(), file, content->block, content->notes, identity));
  }
  [[nodiscard]] size_t files() const {
    const auto all = std::filesystem::directory_iterator(folder.path());
    return static_cast<size_t>(std::count_if(
        begin(all), end(all), [](const auto& each) { return each.path().filename().string().starts_with("kv-"); }));
  }
};

}  // namespace dspack::test
