// Characters by class: all characters that a pattern cannot distinguish form one class, and a class is one byte.
//
// The regular expression engine sees a text as classes: so it needs no Unicode tables, and a set of characters is a set
// of bytes.
// Threads: immutable, thread-safe. Errors: build: unsupported (more than 256 classes).
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/codepoint_set.h"

namespace dspack::runtime {

class ClassMap {
 public:
  /// The newline is a class of its own, with the byte '\n'.
  [[nodiscard]] static Result<ClassMap> build(std::span<const CodepointSet> sets);

  /// The classes that make up set `index` of those given to build.
  [[nodiscard]] const std::bitset<256>& classes_of(size_t index) const { return members_[index]; }

  /// Maps valid UTF-8 `text` to one class per character. `offsets` is where each character starts, followed by the
  /// text's size; it stays empty if every character is one byte.
  void map(std::string_view text, std::vector<uint8_t>& classes, std::vector<uint32_t>& offsets) const;

 private:
  static constexpr uint32_t kPageBits = 8;
  using Page = std::array<uint8_t, 1U << kPageBits>;

  ClassMap() = default;
  [[nodiscard]] uint8_t class_of(uint32_t codepoint) const {
    return pages_[page_of_[codepoint >> kPageBits]][codepoint & ((1U << kPageBits) - 1)];
  }
  void fill_pages(std::span<const uint32_t> starts, std::span<const uint8_t> classes);

  std::array<uint16_t, (kLastCodepoint >> kPageBits) + 1> page_of_{};
  std::vector<Page> pages_;
  std::vector<std::bitset<256>> members_;
};

}  // namespace dspack::runtime
